// Manifests as text.
#include "weir/weights/manifest_header.hpp"

#include "catch.hpp"

using namespace weir;

TEST_CASE("a manifest comes back from its header as it was") {
  const manifest m{
      {{"a", dtype::bf16, {3, 4}, 0, 24}, {"b \"quoted\"", dtype::f32, {}, 64, 4}, {"c", dtype::f16, {2}, 68, 4}}, 128};
  auto back = read_header(to_header(m));
  REQUIRE(back);
  CHECK(*back == m);
}

TEST_CASE("a header that is wrong is told by its tensor") {
  const auto told = [](const std::string& text) {
    auto read = read_header(text);
    REQUIRE_FALSE(read);
    CHECK(read.error().code == errc::invalid_data);
    return read.error().message;
  };
  const auto one = [](const std::string& about) { return R"({"__metadata__":{"bytes":"64"},"w":)" + about + "}"; };
  CHECK(told("") == "a manifest is no JSON object");
  CHECK(told("[1]") == "a manifest is no JSON object");
  CHECK(told("{}").find("does not say its size") != std::string::npos);
  CHECK(told(R"({"__metadata__":{"bytes":"-1"}})").find("does not say its size") != std::string::npos);
  CHECK(told(one("7")) == "tensor w: it lacks dtype, shape or data_offsets");
  CHECK(told(one(R"({"dtype":"I8","shape":[1],"data_offsets":[0,1]})")) ==
        "tensor w: dtype I8 is none of F32, F16, BF16");
  CHECK(told(one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})")).find("tensor w: a dimension") == 0);
  CHECK(told(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]})"))
            .find("tensor w: a dimension") == 0);
  CHECK(told(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})")).find("do not fit its shape") !=
        std::string::npos);
  CHECK(told(one(R"({"dtype":"F32","shape":[2],"data_offsets":[60,68]})")).find("buffer of 64 bytes") !=
        std::string::npos);
  CHECK(told(R"({"__metadata__":{"bytes":"64"},"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
             R"("w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})") ==
        "tensor w: its bytes overlap another tensor's");
}

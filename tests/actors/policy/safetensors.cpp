// The safetensors format: what is written is read back, and no lie of a header is believed.
#include "weir/policy/safetensors.hpp"

#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "policy_support.hpp"

using namespace weir::testing;
using nlohmann::json;

namespace {

std::span<const std::byte> bytes_of(const std::string& s) { return std::as_bytes(std::span(s)); }

/// A file's content: a header as long as it says, or as `claimed` says.
std::string raw(const std::string& header, const std::string& data, std::optional<std::uint64_t> claimed = {}) {
  const std::uint64_t length = claimed.value_or(header.size());
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

json entry(const char* type, std::vector<std::int64_t> shape, std::uint64_t begin, std::uint64_t end) {
  return {{"dtype", type}, {"shape", shape}, {"data_offsets", {begin, end}}};
}

/// The error's message for a file of this content.
std::string refusal(const std::string& content) {
  temporary_folder folder;
  const auto file = folder.path() / "x.safetensors";
  spill(file, content);
  auto opened = weir::safetensors_file::open(file);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == weir::errc::invalid_data);
  CHECK(opened.error().message.find("x.safetensors") != std::string::npos);
  return opened.error().message;
}

bool says(const std::string& message, const std::string& what) {
  INFO(message);
  CHECK(message.find(what) != std::string::npos);
  return message.find(what) != std::string::npos;
}

}  // namespace

TEST_CASE("what is written is read back") {
  temporary_folder folder;
  const auto file = folder.path() / "a.safetensors";
  const std::string a = "0123456789abcdef", b = "xyz";
  REQUIRE(weir::write_safetensors(
      file, {{"a", "F32", {2, 2}, bytes_of(a)}, {"b", "U8", {3}, bytes_of(b)}, {"none", "F32", {0, 5}, {}}},
      {{"step", "7"}}));
  auto read = weir::safetensors_file::open(file);
  REQUIRE(read);
  REQUIRE(read->entries().size() == 3);
  CHECK(read->find("c") == nullptr);
  CHECK(read->metadata() == std::map<std::string, std::string>{{"step", "7"}});
  const auto* found = read->find("a");
  REQUIRE(found != nullptr);
  CHECK(found->type == "F32");
  CHECK(found->shape == std::vector<std::int64_t>{2, 2});
  CHECK(found->count() == 4);
  CHECK(std::memcmp(found->bytes.data(), a.data(), a.size()) == 0);
  CHECK(std::memcmp(read->find("b")->bytes.data(), b.data(), b.size()) == 0);
  CHECK(read->find("none")->count() == 0);
  // As the reference implementation writes it: the data begins at a multiple of 8.
  std::uint64_t header = 0;
  std::memcpy(&header, slurp(file).data(), 8);
  CHECK(header % 8 == 0);
}

TEST_CASE("entries outlive the file's name") {
  temporary_folder folder;
  const auto file = folder.path() / "a.safetensors";
  const std::string a = "0123456789abcdef";
  REQUIRE(weir::write_safetensors(file, {{"a", "F32", {4}, bytes_of(a)}}));
  auto read = weir::safetensors_file::open(file);
  REQUIRE(read);
  REQUIRE(weir::write_safetensors(file, {}));  // renamed over it: the mapping keeps the old one
  CHECK(std::memcmp(read->find("a")->bytes.data(), a.data(), a.size()) == 0);
}

TEST_CASE("bytes that don't fit the shape are the caller's fault") {
  temporary_folder folder;
  const auto file = folder.path() / "a.safetensors";
  const std::string a = "0123";
  CHECK(thrown_by([&] {
          (void)weir::write_safetensors(file, {{"tensor_a", "F32", {2}, bytes_of(a)}});
        }).find("tensor_a") != std::string::npos);
  CHECK(thrown_by([&] {
          (void)weir::write_safetensors(file, {{"tensor_a", "F99", {2}, bytes_of(a)}});
        }).find("tensor_a") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(file));
}

TEST_CASE("files cut short, at every length, are refused") {
  temporary_folder folder;
  const auto whole_file = folder.path() / "a.safetensors", cut = folder.path() / "b.safetensors";
  const std::string a(32, 'a');
  REQUIRE(weir::write_safetensors(whole_file, {{"a", "F32", {8}, bytes_of(a)}}));
  const auto content = slurp(whole_file);
  for (std::size_t n = 0; n < content.size(); ++n) {
    spill(cut, content.substr(0, n));
    INFO(n << " bytes");
    CHECK_FALSE(weir::safetensors_file::open(cut));
  }
  spill(cut, content);
  CHECK(weir::safetensors_file::open(cut));
  says(refusal(content.substr(0, content.size() - 1)), "tensor a");
}

TEST_CASE("a header that lies about its length, or is no JSON object") {
  const auto good = json{{"a", entry("F32", {1}, 0, 4)}}.dump();
  says(refusal(raw(good, "1234", ~std::uint64_t{0})), "header claims");
  says(refusal(raw(good, "1234", std::uint64_t{1} << 62)), "header claims");
  says(refusal(raw(good, "1234", good.size() + 5)), "header claims");
  CHECK_FALSE(refusal(raw(good, "1234", good.size() + 4)).empty());  // then the data is taken for JSON
  CHECK_FALSE(refusal(raw(good, "1234", good.size() - 1)).empty());
  says(refusal(raw("[1, 2]", "")), "no JSON object");
  CHECK_FALSE(refusal(raw("", "")).empty());
  CHECK_FALSE(refusal(raw(R"({"a": {}, "a": {}})", "")).empty());
}

TEST_CASE("a header that lies about a tensor names it") {
  auto one = [](const json& about, const std::string& data = "12345678") {
    return refusal(raw(json{{"tensor_a", about}}.dump(), data));
  };
  for (const auto& about : {json(3), json::object(), json{{"dtype", "F32"}, {"shape", {2}}},
                            json{{"dtype", 1}, {"shape", {2}}, {"data_offsets", {0, 8}}},
                            json{{"dtype", "F32"}, {"shape", {2}}, {"data_offsets", {0, 8, 9}}}})
    says(one(about), "tensor_a");
  says(one(entry("F31", {2}, 0, 8)), "F31");
  says(one(entry("F32", {2}, 0, 9)), "outside");
  says(one(entry("F32", {2}, 4, 12)), "outside");
  says(one(entry("F32", {2}, 8, 0)), "outside");
  says(one(entry("F32", {1}, 0, 8)), "needs 4 bytes");
  says(one(entry("F32", {3}, 0, 8)), "more bytes than the file has");
  says(one(entry("F32", {-2}, 0, 8)), "-2");
  says(one(entry("F32", {std::int64_t{1} << 62, std::int64_t{1} << 62}, 0, 8)), "more bytes");
  says(one({{"dtype", "F32"}, {"shape", {1.5}}, {"data_offsets", {0, 8}}}), "1.5");
  says(one({{"dtype", "F32"}, {"shape", {2}}, {"data_offsets", {"0", "8"}}}), "tensor_a");
  says(one({{"dtype", "F32"}, {"shape", {2}}, {"data_offsets", {-8, 0}}}), "tensor_a");
}

TEST_CASE("tensors that share bytes, leave some out between them, or at the end are refused, as by the reference") {
  auto two = [](const json& a, const json& b, const std::string& data) {
    return refusal(raw(json{{"a", a}, {"b", b}}.dump(), data));
  };
  says(two(entry("F32", {2}, 0, 8), entry("F32", {2}, 4, 12), std::string(12, 'x')), "tensor b");
  says(two(entry("F32", {2}, 0, 8), entry("F32", {2}, 0, 8), std::string(8, 'x')), "overlap");
  says(two(entry("F32", {2}, 12, 20), entry("F32", {2}, 0, 8), std::string(20, 'x')), "tensor a");
  says(refusal(raw(json{{"a", entry("F32", {2}, 0, 8)}}.dump(), std::string(9, 'x'))), "belong to no tensor");
}

TEST_CASE("metadata that is no object of strings is passed over or refused, never believed") {
  temporary_folder folder;
  const auto file = folder.path() / "a.safetensors";
  for (const auto& metadata : {json(1), json("x"), json::array({"x"}), json{{"step", 7}}}) {
    spill(file, raw(json{{"__metadata__", metadata}}.dump(), ""));
    auto read = weir::safetensors_file::open(file);
    if (read) CHECK(read->metadata().count("step") == 0);
  }
}

TEST_CASE("a file that is not there, and a folder") {
  temporary_folder folder;
  auto missing = weir::safetensors_file::open(folder.path() / "none.safetensors");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == weir::errc::not_found);
  says(missing.error().message, "none.safetensors");
  CHECK_FALSE(weir::safetensors_file::open(folder.path()));
}

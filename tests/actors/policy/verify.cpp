// Verification against reference values: it passes on what transformers wrote, and finds what differs.
#include "weir/policy/verify.hpp"

#include "catch.hpp"
#include "policy_support.hpp"
#include "weir/policy/safetensors.hpp"

using namespace weir::testing;
namespace fs = std::filesystem;

namespace {

const fs::path fixtures = WEIR_FIXTURES;

void copy_model(const std::string& name, const fs::path& to) {
  fs::copy(fixtures / name, to, fs::copy_options::recursive);
}

/// Adds `by` to one number of a tensor, in the file.
void change(const fs::path& file, const std::string& tensor, std::size_t index, float by) {
  auto content = slurp(file);
  auto opened = weir::safetensors_file::open(file);
  REQUIRE(opened);
  REQUIRE(opened->find(tensor) != nullptr);
  // The data ends with the file, and the tensors' places in it are known from the mapping.
  std::uint64_t header = 0;
  std::memcpy(&header, content.data(), 8);
  const std::byte* begin = nullptr;
  for (const auto& [name, entry] : opened->entries())
    if (begin == nullptr || entry.bytes.data() < begin) begin = entry.bytes.data();
  auto* at = content.data() + 8 + header + (opened->find(tensor)->bytes.data() - begin) + index * 4;
  float value = 0;
  std::memcpy(&value, at, 4);
  value += by;
  std::memcpy(at, &value, 4);
  spill(file, content);
}

const weir::check& named(const weir::verification& v, const std::string& name) {
  for (const auto& c : v.checks)
    if (c.name == name) return c;
  FAIL("no check " + name);
  throw std::logic_error(name);
}

}  // namespace

TEST_CASE("both reference models verify: logits, log-probabilities, greedy tokens, training") {
  for (const char* name : {"qwen3-tiny", "qwen3-tiny-untied"}) {
    INFO(name);
    auto v = weir::verify_policy(fixtures / name);
    REQUIRE(v);
    CHECK(v->ok());
    CHECK(v->notes.empty());
    CHECK(v->checks.size() == 6);
    for (const auto& c : v->checks) {
      INFO(c.name << ": " << c.difference << " of " << c.tolerance << " " << c.where);
      CHECK(c.ok);
      CHECK(c.where.empty());
    }
  }
}

TEST_CASE("a model with one weight changed does not verify, and the place is named") {
  temporary_folder folder;
  const auto model = folder.path() / "model";
  copy_model("qwen3-tiny", model);
  change(model / "model.safetensors", "model.layers.1.mlp.down_proj.weight", 5, 0.05F);
  auto v = weir::verify_policy(model);
  REQUIRE(v);
  CHECK_FALSE(v->ok());
  const auto& logits = named(*v, "logits");
  CHECK_FALSE(logits.ok);
  CHECK(logits.difference > logits.tolerance);
  CHECK(logits.where.starts_with("row 0, position "));
  CHECK(logits.where.find("the reference has") != std::string::npos);
  CHECK_FALSE(named(*v, "token log-probabilities").ok);
}

TEST_CASE("one changed reference value is found where it stands") {
  temporary_folder folder;
  const auto model = folder.path() / "model";
  copy_model("qwen3-tiny-untied", model);
  change(model / "golden.safetensors", "token_logprobs", 2, 0.01F);
  auto v = weir::verify_policy(model);
  REQUIRE(v);
  CHECK(named(*v, "token log-probabilities").where.starts_with("row 0, position 3:"));
  CHECK(named(*v, "token log-probabilities").difference == Approx(0.01).epsilon(0.01));
  CHECK(named(*v, "logits").ok);
  CHECK_FALSE(v->ok());
}

TEST_CASE("what is missing is noted, and nothing to check is no success") {
  temporary_folder folder;
  const auto model = folder.path() / "model";
  copy_model("qwen3-tiny-untied", model);
  fs::remove(model / "golden.json");
  auto v = weir::verify_policy(model);
  REQUIRE(v);
  CHECK(v->ok());
  CHECK(v->checks.size() == 3);
  CHECK(v->notes.size() == 1);
  CHECK_FALSE(weir::verification{}.ok());
}

TEST_CASE("files that cannot be used are errors that name them") {
  temporary_folder folder;
  const auto model = folder.path() / "model";
  auto failure = [&] {
    auto v = weir::verify_policy(model);
    REQUIRE_FALSE(v);
    return v.error().message;
  };
  CHECK(failure().find("config.json") != std::string::npos);
  copy_model("qwen3-tiny-untied", model);
  for (const char* numbers :
       {"[1", R"({"losses": ["a"]})", R"({"losses": [5.5], "grad_norms": {"model.norm.weight": []}})"}) {
    INFO(numbers);
    spill(model / "golden.json", numbers);
    CHECK(failure().find("golden.json") != std::string::npos);
    CHECK(failure().find("exception") == std::string::npos);
  }
  fs::remove(model / "golden.safetensors");
  CHECK(failure().find("golden.safetensors") != std::string::npos);
}

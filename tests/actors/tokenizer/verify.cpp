// The reference values of the fixtures, and that a difference is found and named.
#include "weir/tokenizer/verify.hpp"

#include <cstdlib>

#include "support.hpp"

using namespace weir::testing;

namespace {

void check_all(const weir::result<weir::verification>& outcome) {
  if (!outcome) FAIL(outcome.error().message);
  CHECK(outcome->checks.size() == 3);
  for (const auto& c : outcome->checks) {
    INFO(c.name << ": " << c.where);
    CHECK(c.ok);
  }
  CHECK(outcome->ok());
}

/// The small golden file after `change`, held against the small tokenizer.
weir::result<weir::verification> against(const std::function<void(nlohmann::json&)>& change) {
  auto golden = *weir::read_json_file(small_folder / "golden.json");
  change(golden);
  const temporary_folder folder;
  return weir::verify_tokenizer(small_folder, folder.write("golden.json", golden.dump()));
}

}  // namespace

TEST_CASE("the small tokenizer equals its reference values") {
  check_all(weir::verify_tokenizer(small_folder / "tokenizer.json", small_folder / "golden.json"));
}

TEST_CASE("Qwen3's tokenizer equals its reference values, where its file is given") {
  const char* file = std::getenv("WEIR_QWEN3_TOKENIZER");
  if (file == nullptr || !std::filesystem::exists(file)) {
    WARN("skipped: WEIR_QWEN3_TOKENIZER names no file; tools/fetch-qwen3-tokenizer fetches it");
    return;
  }
  check_all(weir::verify_tokenizer(file, std::filesystem::path(WEIR_FIXTURES) / "tokenizer-qwen3" / "golden.json"));
}

TEST_CASE("verification counts the differences and names the first") {
  auto outcome = against([](nlohmann::json& g) {
    g[4]["ids"][0] = 7;
    g[5]["ids"].push_back(7);
    g[4].erase("decoded");
    g[5]["decoded_skip_special"] = "something else";
  });
  REQUIRE(outcome);
  CHECK_FALSE(outcome->ok());
  REQUIRE(outcome->checks.size() == 3);
  CHECK(outcome->checks[0].difference == 2);
  CHECK_FALSE(outcome->checks[0].ok);
  CHECK(outcome->checks[0].where.find("text 4 \"Hello, world!\": [39,68,") == 0);
  CHECK(outcome->checks[0].where.find("the reference has [7,68,") != std::string::npos);
  CHECK(outcome->checks[1].where.find("text 5 ") == 0);  // the first whose "decoded" is still there
  CHECK(outcome->checks[2].where.find("text 4 ") == 0);
}

TEST_CASE("a golden file that is none is an error that names it") {
  for (const auto& change : std::vector<std::function<void(nlohmann::json&)>>{
           [](auto& g) { g = nlohmann::json::object(); }, [](auto& g) { g[0].erase("ids"); },
           [](auto& g) { g[0]["text"] = 3; }, [](auto& g) { g[0] = nullptr; }, [](auto& g) { g[0]["ids"] = "abc"; }}) {
    auto outcome = against(change);
    REQUIRE_FALSE(outcome);
    CHECK(outcome.error().code == weir::errc::invalid_data);
    CHECK(outcome.error().message.find("golden.json") != std::string::npos);
    CHECK(outcome.error().message.find("exception") == std::string::npos);
  }
  const auto text = against([](auto& g) { g[2]["text"] = 3; });
  REQUIRE_FALSE(text);
  CHECK(text.error().message.ends_with("golden.json: [2].text is 3, needs a string"));
  const auto none = weir::verify_tokenizer(small_folder, small_folder / "no.json");
  REQUIRE_FALSE(none);
  CHECK(none.error().code == weir::errc::not_found);
  const auto empty = against([](auto& g) { g = nlohmann::json::array(); });
  REQUIRE(empty);
  CHECK_FALSE(empty->ok());  // nothing was checked
}

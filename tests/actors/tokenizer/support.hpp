#pragma once
// What the tokenizer's tests share: the small tokenizer of the fixtures, as it is and changed.
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "weir/runtime/files.hpp"
#include "weir/tokenizer/tokenizer.hpp"

namespace weir::testing {

inline const std::filesystem::path small_folder = std::filesystem::path(WEIR_FIXTURES) / "tokenizer-small";

/// Ids 0 to 255 are the bytes, then come 174 merges and seven added tokens from 430.
inline const nlohmann::json& small_json() {
  static const nlohmann::json read = *read_json_file(small_folder / "tokenizer.json");
  return read;
}

inline tokenizer small() {
  auto made = tokenizer::load(small_folder / "tokenizer.json");
  REQUIRE(made);
  return *made;
}

/// The small tokenizer after `change`.
inline result<tokenizer> changed(const std::function<void(nlohmann::json&)>& change) {
  auto json = small_json();
  change(json);
  return tokenizer::parse(json.dump(), "t.json");
}

/// Bytes only, and what `merges` join, as ids from 256 in their order; no added tokens.
inline tokenizer of_merges(const std::vector<std::pair<std::string, std::string>>& merges) {
  auto made = changed([&](nlohmann::json& t) {
    auto& model = t["model"];
    auto vocab = nlohmann::json::object();
    for (const auto& [text, id] : model["vocab"].items())
      if (id < 256) vocab[text] = id;
    model["merges"] = nlohmann::json::array();
    for (const auto& [a, b] : merges) {
      vocab[a + b] = vocab.size();
      model["merges"].push_back({a, b});
    }
    model["vocab"] = vocab;
    t["added_tokens"] = nlohmann::json::array();
  });
  REQUIRE(made);
  return *made;
}

/// A folder that is gone with it.
class temporary_folder {
 public:
  temporary_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "weir-tokenizer-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace weir::testing

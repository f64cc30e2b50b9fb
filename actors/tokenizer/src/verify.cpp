#include "weir/tokenizer/verify.hpp"

#include <nlohmann/json.hpp>

#include "weir/runtime/files.hpp"
#include "weir/tokenizer/tokenizer.hpp"

namespace weir {

namespace {

/// Counts the texts that differ and keeps the first.
struct count {
  check result;
  explicit count(const char* name) { result.name = name; }
  void add(bool same, const std::string& where) {
    if (same) return;
    if (result.difference == 0) result.where = where;
    ++result.difference;
  }
  check done() && {
    result.ok = result.difference == 0;
    return std::move(result);
  }
};

}  // namespace

result<verification> verify_tokenizer(const std::filesystem::path& tokenizer_json,
                                      const std::filesystem::path& golden_json) {
  auto text = tokenizer::load(tokenizer_json);
  if (!text) return fail(text.error());
  auto golden = read_json_file(golden_json);
  if (!golden) return fail(golden.error());
  if (!golden->is_array()) return fail(errc::invalid_data, golden_json.string() + ": is no JSON array");
  count ids("texts encoded differently"), decoded("texts decoded differently"),
      skipped("texts decoded differently without special tokens");
  try {
    for (std::size_t i = 0; i < golden->size(); ++i) {
      const auto& entry = (*golden)[i];
      const auto where = "text " + std::to_string(i) + " " + entry.at("text").dump();
      const auto expected = entry.at("ids").get<std::vector<token>>();
      const auto ours = text->encode(entry.at("text").get<std::string>());
      ids.add(ours == expected, where + ": " + nlohmann::json(ours).dump() + ", the reference has " + entry.at("ids").dump());
      if (entry.contains("decoded")) decoded.add(text->decode(expected) == entry.at("decoded").get<std::string>(), where);
      if (entry.contains("decoded_skip_special"))
        skipped.add(text->decode(expected, true) == entry.at("decoded_skip_special").get<std::string>(), where);
    }
  } catch (const nlohmann::json::exception& e) {
    return fail(errc::invalid_data, golden_json.string() + ": " + e.what());
  }
  verification out;
  if (golden->empty()) return out;
  out.checks = {std::move(ids).done(), std::move(decoded).done(), std::move(skipped).done()};
  return out;
}

}  // namespace weir

#include "weir/tokenizer/verify.hpp"

#include <limits>

#include "weir/runtime/files.hpp"
#include "weir/runtime/json_view.hpp"
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

void check_text(const tokenizer& text, const json_view& entry, std::size_t number, count& ids, count& decoded,
                count& skipped) {
  const auto where = "text " + std::to_string(number) + " " + entry.at("text").json().dump();
  const auto listed = entry.at("ids");
  std::vector<token> expected;
  for (std::size_t i = 0; i < listed.size(); ++i) {
    const auto id = listed.at(i).integer();
    if (id < std::numeric_limits<token>::min() || id > std::numeric_limits<token>::max())
      listed.at(i).refuse("a token of 32 bits");
    expected.push_back(static_cast<token>(id));
  }
  const auto ours = text.encode(entry.at("text").text());
  ids.add(ours == expected, where + ": " + nlohmann::json(ours).dump() + ", the reference has " + listed.json().dump());
  if (entry.has("decoded")) decoded.add(text.decode(expected) == entry.at("decoded").text(), where);
  if (entry.has("decoded_skip_special"))
    skipped.add(text.decode(expected, true) == entry.at("decoded_skip_special").text(), where);
}

}  // namespace

result<verification> verify_tokenizer(const std::filesystem::path& tokenizer_json,
                                      const std::filesystem::path& golden_json) {
  auto text = tokenizer::load(tokenizer_json);
  if (!text) return fail(text.error());
  auto golden = read_json_file(golden_json);
  if (!golden) return fail(golden.error());
  count ids("texts encoded differently"), decoded("texts decoded differently"),
      skipped("texts decoded differently without special tokens");
  try {
    const json_view all(*golden, golden_json.string());
    for (std::size_t i = 0; i < all.size(); ++i) check_text(*text, all.at(i), i, ids, decoded, skipped);
  } catch (const json_view::mismatch& e) {
    return fail(errc::invalid_data, e.what());
  }
  verification out;
  if (golden->empty()) return out;
  out.checks = {std::move(ids).done(), std::move(decoded).done(), std::move(skipped).done()};
  return out;
}

}  // namespace weir

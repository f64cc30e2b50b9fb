// Encoding speed on mixed text, against one pass of PCRE2 with the same pattern over the same text: what no tokenizer
// that splits by this pattern can beat.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "weir/tokenizer/tokenizer.hpp"

#include <pcre2.h>

#include <filesystem>
#include <memory>

#include "bench.hpp"
#include "weir/runtime/files.hpp"

namespace {

/// Words, numbers, code, punctuation and other scripts, in the proportions of the golden texts, repeated to `bytes`.
std::string mixed_text(const std::string& golden_file, std::size_t bytes) {
  auto golden = weir::read_json_file(golden_file);
  std::string piece, text;
  if (golden)
    for (const auto& entry : *golden) piece += entry.at("text").get<std::string>() + "\n";
  while (!piece.empty() && text.size() < bytes) text += piece;
  return text;
}

/// Matches found by one pass.
std::size_t split_with_pcre2(const std::string& pattern, const std::string& text) {
  int code = 0;
  std::size_t at = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> compiled(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP, &code, &at,
                    nullptr),
      pcre2_code_free);
  if (!compiled) return 0;
  pcre2_jit_compile(compiled.get(), PCRE2_JIT_COMPLETE);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(pcre2_match_data_create(1, nullptr),
                                                                                  pcre2_match_data_free);
  std::size_t found = 0, position = 0;
  while (position < text.size() && pcre2_match(compiled.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                               position, PCRE2_NO_UTF_CHECK, match.get(), nullptr) > 0) {
    position = std::max(pcre2_get_ovector_pointer(match.get())[1], position + 1);
    ++found;
  }
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  weir::bench::report report("tokenizer", argc, argv);
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().string() + "/data/tokenizer-small/";
  const auto text = mixed_text(folder + "golden.json", report.quick() ? 400'000 : 4'000'000);
  const auto tokenizer = weir::tokenizer::load(folder + "tokenizer.json");
  const auto json = weir::read_json_file(folder + "tokenizer.json");
  if (text.empty() || !tokenizer || !json) {
    std::fprintf(stderr, "tokenizer: the reference files in %s cannot be read\n", folder.c_str());
    return 1;
  }
  const auto pattern = (*json)["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"].get<std::string>();
  std::size_t tokens = 0, words = 0;
  const auto megabytes = static_cast<double>(text.size()) / 1e6;
  const auto ours = megabytes / weir::bench::best_seconds(3, [&] { tokens = tokenizer->encode(text).size(); });
  const auto limit = megabytes / weir::bench::best_seconds(3, [&] { words = split_with_pcre2(pattern, text); });
  report.add("encoding, one core", ours, "MB/s", 5);
  report.add("splitting alone (PCRE2, the same pattern)", limit, "MB/s");
  report.add("encoding / splitting alone", ours / limit, "x");
  report.add("tokens a word", static_cast<double>(tokens) / static_cast<double>(std::max<std::size_t>(words, 1)), "");
  return report.finish();
}

#include "splitter.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <stdexcept>

namespace weir {

namespace {

/// HF's regex engine (Oniguruma) means Unicode's White_Space by \s; PCRE2 means U+180E as well, which is none.
std::string with_unicode_space(std::string_view pattern) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out.push_back(pattern[i]);
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's')
      out.append("\\p{White_Space}");
    else if (escaped == 'S')
      out.append("\\P{White_Space}");
    else
      out.append({'\\', escaped});
  }
  return out;
}

}  // namespace

const char* const gpt2_pattern = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

result<splitter> splitter::compile(const std::string& pattern, bool removed, const std::string& origin) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  const auto ours = with_unicode_space(pattern);
  auto* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(ours.data()), ours.size(), PCRE2_UTF | PCRE2_UCP, &code,
                                 &offset, nullptr);
  if (compiled == nullptr) {
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(code, text, sizeof text);
    return fail(errc::invalid_data, origin + ": the regex does not compile: " + reinterpret_cast<const char*>(text) +
                                        " at offset " + std::to_string(offset) + " of " + ours);
  }
  // Without JIT (an architecture that has none) matching works too, only slower.
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
  splitter made;
  made.code_ = std::shared_ptr<void>(compiled, [](void* c) { pcre2_code_free(static_cast<pcre2_code*>(c)); });
  made.removed_ = removed;
  return made;
}

void splitter::split(std::string_view text, std::vector<std::string_view>& to) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  struct freed {
    void operator()(pcre2_match_data* d) const { pcre2_match_data_free(d); }
  };
  // JIT's own stack is 32 KiB, which a long run of one class of characters can exceed.
  struct stack_freed {
    void operator()(pcre2_jit_stack* s) const { pcre2_jit_stack_free(s); }
  };
  struct context_freed {
    void operator()(pcre2_match_context* c) const { pcre2_match_context_free(c); }
  };
  const std::unique_ptr<pcre2_match_data, freed> match(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, context_freed> context(pcre2_match_context_create(nullptr));
  const std::unique_ptr<pcre2_jit_stack, stack_freed> stack(
      text.size() > 4096 ? pcre2_jit_stack_create(32 * 1024, std::size_t{64} << 20, nullptr) : nullptr);
  // The default limit of ten million steps would refuse a run of as many characters, which costs linear time only.
  pcre2_set_match_limit(context.get(), UINT32_MAX);
  if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto* bounds = pcre2_get_ovector_pointer(match.get());
  std::size_t from = 0;
  while (from < text.size()) {
    const int found =
        pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match.get(), context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) throw std::runtime_error("PCRE2 gave up on a text: error " + std::to_string(found));
    if (bounds[0] > from) to.push_back(text.substr(from, bounds[0] - from));
    if (!removed_) to.push_back(text.substr(bounds[0], bounds[1] - bounds[0]));
    from = bounds[1];
  }
  if (from < text.size()) to.push_back(text.substr(from));
}

}  // namespace weir

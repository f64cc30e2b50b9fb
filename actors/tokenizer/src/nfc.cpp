#include "nfc.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "utf8.hpp"

namespace weir {

namespace {

/// True in the common ranges whose characters NFC leaves as they are, whatever stands beside them.
bool stays_in_nfc(char32_t c) noexcept {
  auto in = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
  return c < 0x300 || in(0x400, 0x482) || in(0x2010, 0x2027) || in(0x3001, 0x3029) || in(0x309B, 0x30FF) ||
         in(0x4E00, 0x9FFF) || in(0xAC00, 0xD7A3) || in(0xFF00, 0xFFEF) || in(0x1F300, 0x1FAFF);
}

/// Appends the composed form of `codes`, decomposed and in canonical order, and empties it.
void compose(std::vector<utf8proc_int32_t>& codes, std::string& out) {
  const auto length = utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) throw std::runtime_error(std::string("NFC: ") + utf8proc_errmsg(length));
  for (utf8proc_ssize_t i = 0; i < length; ++i)
    utf8::append(out, static_cast<char32_t>(codes[static_cast<std::size_t>(i)]));
  codes.clear();
}

}  // namespace

bool is_plainly_nfc(std::string_view text) noexcept {
  while (!text.empty()) {
    const auto step = utf8::next(text);
    if (!stays_in_nfc(utf8::code_of(text, step.length))) return false;
    text.remove_prefix(step.length);
  }
  return true;
}

// utf8proc_map does the same, but orders a run of n combining marks in O(n^2): one hostile text would take minutes.
std::string to_nfc(std::string_view text) {
  constexpr utf8proc_int32_t before_trailing_consonants = 0x11A7;  // utf8proc composes it as if it were one of them
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  std::size_t marks = 0;  // where the run of combining marks at the end of `codes` begins
  auto class_of = [](utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; };
  auto order = [&] {
    std::stable_sort(codes.begin() + static_cast<std::ptrdiff_t>(marks), codes.end(),
                     [&](auto a, auto b) { return class_of(a) < class_of(b); });
  };
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (const auto* end = at + text.size(); at < end;) {
    utf8proc_int32_t code = 0;
    at += utf8proc_iterate(at, end - at, &code);
    utf8proc_int32_t parts[8];
    const auto count = utf8proc_decompose_char(
        code, parts, 8, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), nullptr);
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      const bool mark = class_of(parts[i]) != 0;
      if (!mark) order();
      if (parts[i] == before_trailing_consonants) {
        compose(codes, out);
        utf8::append(out, before_trailing_consonants);
      } else {
        codes.push_back(parts[i]);
      }
      if (!mark) marks = codes.size();
    }
  }
  order();
  compose(codes, out);
  return out;
}

}  // namespace weir

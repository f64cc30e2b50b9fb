#include "utf8.hpp"

#include <cstdint>
#include <cstring>

namespace weir::utf8 {

step next(std::string_view text) noexcept {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return {1, true, false};
  // The range of the second byte excludes overlong forms, surrogates and what lies beyond U+10FFFF.
  std::size_t length = 0;
  unsigned low = 0x80, high = 0xBF;
  if (first >= 0xC2 && first <= 0xDF)
    length = 2;
  else if (first >= 0xE0 && first <= 0xEF)
    length = 3;
  else if (first >= 0xF0 && first <= 0xF4)
    length = 4;
  else
    return {1, false, false};
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  for (std::size_t i = 1; i < length; ++i) {
    if (i >= text.size()) return {i, false, true};
    const auto b = static_cast<unsigned char>(text[i]);
    if (b < low || b > high) return {i, false, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true, false};
}

char32_t code_of(std::string_view text, std::size_t length) noexcept {
  const auto first = static_cast<unsigned char>(text[0]);
  if (length == 1) return first;
  auto code = static_cast<char32_t>(first & (0x7FU >> length));
  for (std::size_t i = 1; i < length; ++i) code = code << 6U | (static_cast<unsigned char>(text[i]) & 0x3FU);
  return code;
}

std::size_t space_length(std::string_view text) noexcept {
  if (text.empty()) return 0;
  if (text[0] == ' ' || (text[0] >= '\t' && text[0] <= '\r')) return 1;
  if (text.starts_with("\xC2\x85") || text.starts_with("\xC2\xA0")) return 2;
  if (text.size() < 3) return 0;
  const auto three = text.substr(0, 3);
  // U+1680, U+2000 to U+200A, U+2028, U+2029, U+202F, U+205F, U+3000.
  if (three.starts_with("\xE2\x80")) {
    const auto last = static_cast<unsigned char>(three[2]);
    return last <= 0x8A || last == 0xA8 || last == 0xA9 || last == 0xAF ? 3 : 0;
  }
  return three == "\xE1\x9A\x80" || three == "\xE2\x81\x9F" || three == "\xE3\x80\x80" ? 3 : 0;
}

bool is_ascii(std::string_view text) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080ULL) != 0) return false;
  }
  for (; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0x80U) != 0) return false;
  return true;
}

std::string repaired(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto s = next(text);
    if (s.valid)
      out.append(text.substr(0, s.length));
    else
      out.append("\xEF\xBF\xBD");
    text.remove_prefix(s.length);
  }
  return out;
}

void append(std::string& to, char32_t code) {
  auto put = [&to](unsigned bits) { to.push_back(static_cast<char>(bits)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0U | (code >> 6U)), put(0x80U | (code & 0x3FU));
  } else if (code < 0x10000) {
    put(0xE0U | (code >> 12U)), put(0x80U | ((code >> 6U) & 0x3FU)), put(0x80U | (code & 0x3FU));
  } else {
    put(0xF0U | (code >> 18U)), put(0x80U | ((code >> 12U) & 0x3FU)), put(0x80U | ((code >> 6U) & 0x3FU));
    put(0x80U | (code & 0x3FU));
  }
}

}  // namespace weir::utf8

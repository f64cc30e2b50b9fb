#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace weir::utf8 {

/// What stands at the start of `text` (not empty): a whole character, or bytes that are none.
struct step {
  std::size_t length;  ///< of the character, or of the longest part that could have begun one (at least 1)
  bool valid;
  bool cut;  ///< not valid, but only because the text ends
};
step next(std::string_view text) noexcept;

/// The code point of the whole character of `length` bytes at the start of `text`.
char32_t code_of(std::string_view text, std::size_t length) noexcept;

/// Each maximal part that is no UTF-8 replaced by U+FFFD (Unicode 15, section 3.9, "best practice").
std::string repaired(std::string_view text);

/// Bytes of the character with the property White_Space that `text` begins with; 0 if it begins with none.
std::size_t space_length(std::string_view text) noexcept;

bool is_ascii(std::string_view text) noexcept;

/// Appends a code point, at most U+10FFFF.
void append(std::string& to, char32_t code);

}  // namespace weir::utf8

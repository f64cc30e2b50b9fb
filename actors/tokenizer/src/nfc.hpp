#pragma once
#include <string>
#include <string_view>

namespace weir {

/// True if it is plain that NFC leaves `text`, valid UTF-8, as it is; false if it takes a closer look.
bool is_plainly_nfc(std::string_view text) noexcept;

/// Unicode's normalization form C of `text`, valid UTF-8. O(n log n) whatever the text.
std::string to_nfc(std::string_view text);

}  // namespace weir

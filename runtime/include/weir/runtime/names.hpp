#pragma once
// What someone who mistyped a name may have meant.

#include <optional>
#include <span>
#include <string>

namespace weir {

/// The one of `names` that is nearest to `written`: by letters that differ, by its words, or by its initials. Nothing
/// if none is near enough to have been meant.
std::optional<std::string> nearest_name(const std::string& written, std::span<const std::string> names);

}  // namespace weir

#pragma once
// What `weir verify` prints: how far Weir is from reference values.

#include <algorithm>
#include <string>
#include <vector>

namespace weir {

struct check {
  std::string name;
  double difference = 0;  ///< the largest found
  double tolerance = 0;
  bool ok = false;
  std::string where;  ///< the first place that differs by more; empty if ok
};

struct verification {
  std::vector<check> checks;
  std::vector<std::string> notes;  ///< what could not be checked, and why
  /// True if something was checked and nothing differs by more than it may.
  bool ok() const {
    return !checks.empty() && std::all_of(checks.begin(), checks.end(), [](const check& c) { return c.ok; });
  }
};

}  // namespace weir

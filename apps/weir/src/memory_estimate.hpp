#pragma once
// What a run will hold in memory, from its config and model alone: told before anything of it is allocated.

#include <optional>
#include <string>
#include <vector>

#include "setup.hpp"
#include "weir/runtime/memory.hpp"

namespace weir::app {

/// One part of the estimate.
struct memory_need {
  std::string what;
  double bytes = 0;
  std::string from;     ///< the fields that decide it
  bool firm = true;     ///< false: at most so much, if batches are full and sequences long
  bool on_host = true;  ///< false: on the config's device
};

/// The large parts of a run, or of an evaluation alone. The program itself, tasks and episodes come on top.
std::vector<memory_need> memory_needs(const run_parts& parts, bool training);

/// A table, a line a part.
std::string describe(const std::vector<memory_need>& needs, const std::optional<memory_limits>& limits);

/// An error (invalid_config) if what is firm is more than there is at all; a warning if the whole is, or is more than
/// is free now. Both with the table.
result<std::optional<std::string>> check_memory(const std::vector<memory_need>& needs,
                                                const std::optional<memory_limits>& limits);

}  // namespace weir::app

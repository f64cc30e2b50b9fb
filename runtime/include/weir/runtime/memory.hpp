#pragma once
// How much memory there is, as the operating system tells it.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace weir {

/// In bytes.
struct memory_limits {
  std::uint64_t most =
      0;  ///< that all processes may ever hold: the machine's, swap included, or a control group's if that is less
  std::uint64_t available = 0;  ///< of it now
  std::string set_by;           ///< "this machine", or the control group's file
};

/// From /proc/meminfo and the control groups (version 1 or 2) that this process is in. `root` is where /proc and /sys
/// are. Nothing where there is no such file.
std::optional<memory_limits> read_memory_limits(const std::filesystem::path& root = "/");

/// "14.2 MB", in powers of 1,000.
std::string format_bytes(double bytes);

}  // namespace weir

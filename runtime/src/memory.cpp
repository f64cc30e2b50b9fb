#include "weir/runtime/memory.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <vector>

#include "weir/runtime/files.hpp"

namespace weir {

namespace fs = std::filesystem;

namespace {

std::optional<std::uint64_t> number_in(std::string_view text) {
  while (text.starts_with(' ') || text.starts_with('\t')) text.remove_prefix(1);
  std::uint64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc{} ? std::optional(value) : std::nullopt;
}

/// The number that follows `name` at the start of a line.
std::optional<std::uint64_t> field_of(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.starts_with(name)) return number_in(line.substr(name.size()));
  }
  return std::nullopt;
}

std::optional<std::uint64_t> number_of(const fs::path& file) {
  const auto text = read_file(file, 4096);
  return text ? number_in(*text) : std::nullopt;  // "max": no limit
}

/// A version of control groups: where they are, and what its files are called.
struct group_kind {
  const char* folder;
  const char* limit;
  const char* used;
  const char* cache;  ///< the part of `used` that the kernel gives back, in memory.stat
};
constexpr group_kind version_2{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
constexpr group_kind version_1{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                               "total_inactive_file"};

/// Lowers the limits to those of one group.
void apply(const fs::path& group, const group_kind& kind, memory_limits& limits) {
  const auto most = number_of(group / kind.limit);
  if (!most) return;
  if (*most < limits.most) {
    limits.most = *most;
    limits.set_by = (group / kind.limit).string();
  }
  const auto stat = read_file(group / "memory.stat", 1 << 20);
  const auto used = number_of(group / kind.used).value_or(0);
  const auto cache = stat ? field_of(*stat, std::string(kind.cache) + " ").value_or(0) : 0;
  const auto held = used - std::min(used, cache);
  limits.available = std::min(limits.available, *most - std::min(*most, held));
}

/// The groups that /proc/self/cgroup names for `kind`, and those above them. A container sees its own as the root.
void apply_all(const fs::path& root, std::string_view path, const group_kind& kind, memory_limits& limits) {
  const auto folder = root / kind.folder;
  for (auto at = fs::path(path).relative_path();; at = at.parent_path()) {
    apply(folder / at, kind, limits);
    if (at.empty()) return;
  }
}

}  // namespace

std::optional<memory_limits> read_memory_limits(const fs::path& root) {
  const auto machine = read_file(root / "proc/meminfo", 1 << 20);
  if (!machine) return std::nullopt;
  const auto total = field_of(*machine, "MemTotal:"), available = field_of(*machine, "MemAvailable:");
  if (!total || !available) return std::nullopt;
  memory_limits limits{(*total + field_of(*machine, "SwapTotal:").value_or(0)) * 1024, *available * 1024,
                       "this machine"};
  const auto groups = read_file(root / "proc/self/cgroup", 1 << 20);
  std::string_view rest = groups ? std::string_view(*groups) : std::string_view();
  while (!rest.empty()) {  // hierarchy:controllers:path
    const auto line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const auto controllers = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    if (controllers == ",,")
      apply_all(root, line.substr(second + 1), version_2, limits);
    else if (controllers.find(",memory,") != std::string::npos)
      apply_all(root, line.substr(second + 1), version_1, limits);
  }
  return limits;
}

std::string format_bytes(double bytes) {
  static constexpr std::array units{"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  std::size_t unit = 0;
  for (; bytes >= 999.5 && unit + 1 < units.size(); ++unit) bytes /= 1000;
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f %s", unit == 0 || bytes >= 99.95 ? 0 : 1, bytes, units[unit]);
  return text.data();
}

}  // namespace weir

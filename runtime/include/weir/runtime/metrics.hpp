#pragma once
// What a run measures: the file of its steps.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "weir/runtime/descriptor.hpp"
#include "weir/transport/result.hpp"

namespace weir {

/// How far a run has come, in one of the counts that its lines carry, such as {"step", 100}.
struct metrics_mark {
  std::string field;
  std::uint64_t through = 0;
};

/// A file of JSON objects, one a line. One thread at a time.
class metrics_log {
 public:
  /// Opens `path` to append, creating it if need be. A torn last line, of a process that died while it wrote, is
  /// dropped. So are the lines that are beyond one of `marks`, and those with no mark's field that follow them: the
  /// steps after a checkpoint are done again. The file is then rewritten whole or not at all. A broken line elsewhere
  /// is an error (invalid_data) that names it.
  static result<metrics_log> open(const std::filesystem::path& path, std::span<const metrics_mark> marks = {});

  /// Appends one line in one write; NaN and infinity become null. Other processes may read at any time. On an error (a
  /// full disk) no part of the line stays, and a later append may succeed. Not synced: a crash of the machine, not of
  /// the process, can lose the last lines.
  result<void> append(const nlohmann::ordered_json& line);

 private:
  metrics_log(std::filesystem::path path, descriptor file) : path_(std::move(path)), file_(std::move(file)) {}
  std::filesystem::path path_;
  descriptor file_;
  std::optional<std::uint64_t> torn_at_;  ///< where half a line begins that could not be taken back yet
};

}  // namespace weir

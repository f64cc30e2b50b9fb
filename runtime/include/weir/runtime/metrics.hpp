#pragma once
// What a run measures: the file of its steps.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "weir/runtime/descriptor.hpp"
#include "weir/transport/result.hpp"

namespace weir {

/// A file of JSON objects, one a line. One thread at a time.
class metrics_log {
 public:
  /// Opens `path` to append, creating it if need be. A torn last line, of a process that died while it wrote, is
  /// dropped. With `keep_through_step`, so are the lines whose "step" is greater, and those without a "step" that follow
  /// them: the steps after a checkpoint are done again. The file is then rewritten whole or not at all. A broken line
  /// elsewhere is an error (invalid_data) that names it.
  static result<metrics_log> open(const std::filesystem::path& path, std::optional<std::uint64_t> keep_through_step);

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

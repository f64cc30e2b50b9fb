#pragma once
// The folder of one training run: what it was told, what it measured, and the checkpoints from which it can go on.
//
//   config.json                  the resolved config
//   metrics.jsonl                a line a step
//   run.log                      what it said
//   checkpoints/step-00000100/   whole or not there
//   lock                         held while a process uses the folder; holds its process id

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "weir/runtime/descriptor.hpp"
#include "weir/transport/result.hpp"

namespace weir {

struct checkpoint {
  std::uint64_t step = 0;
  std::filesystem::path path;
};

/// A checkpoint that is being written. Let it go before its run directory. Let go without a commit, it was never there.
class pending_checkpoint {
 public:
  ~pending_checkpoint();
  pending_checkpoint(pending_checkpoint&& other) noexcept;
  pending_checkpoint& operator=(pending_checkpoint&&) = delete;

  /// The empty folder to write into.
  const std::filesystem::path& path() const noexcept { return path_; }

  /// Makes what was written into `path()` the run's checkpoint of this step, on the disk and under its name, in place
  /// of an older one of the same step; then deletes all but the newest `keep` checkpoints, and never this one. On an
  /// error the older checkpoints are as they were. What cannot be deleted is tried again at the next commit. Call once.
  result<checkpoint> commit(std::size_t keep);

 private:
  friend class run_directory;
  pending_checkpoint(std::filesystem::path path, checkpoint target)
      : path_(std::move(path)), target_(std::move(target)) {}
  std::filesystem::path path_;  ///< empty: committed or moved from
  checkpoint target_;
};

/// A run directory that this process, and no other, uses for as long as the object lives. One thread at a time. A child
/// process that was forked and executes no other program holds the lock too.
class run_directory {
 public:
  /// Makes a new one, parents included. Errors: invalid_argument (the folder is not empty), unavailable (another
  /// process uses it: named by its process id), io.
  static result<run_directory> create(const std::filesystem::path& path, const nlohmann::ordered_json& resolved_config);

  /// Opens one to go on, and removes what unfinished checkpoints left. Errors: not_found (names what is missing;
  /// nothing is left there), unavailable, io.
  static result<run_directory> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const noexcept { return path_; }
  std::filesystem::path metrics_path() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path log_path() const { return path_ / "run.log"; }

  result<nlohmann::json> config() const;
  /// Replaces the config: for a run that goes on with other settings.
  result<void> write_config(const nlohmann::ordered_json& resolved_config);

  /// Starts a checkpoint. One at a time.
  result<pending_checkpoint> begin_checkpoint(std::uint64_t step);

  /// All checkpoints, by ascending step.
  result<std::vector<checkpoint>> checkpoints() const;
  result<std::optional<checkpoint>> latest_checkpoint() const;

 private:
  run_directory(std::filesystem::path path, descriptor lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::filesystem::path path_;
  descriptor lock_;
};

}  // namespace weir

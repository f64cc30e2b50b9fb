#pragma once
// What a run measures: the file of its steps, values that anyone may look at while it runs, and busy time.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

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

/// Named values of a running program. Thread-safe. Whoever asks for a name gets the same value as everyone else; it may
/// outlive the registry. Asking for a counter by a gauge's name, or the reverse, is a fault of the program and throws.
class metrics_registry {
 public:
  using gauge_value = std::shared_ptr<std::atomic<double>>;           ///< goes up and down; 0 at first
  using counter_value = std::shared_ptr<std::atomic<std::uint64_t>>;  ///< only grows

  struct sample {
    std::string name;
    std::variant<std::uint64_t, double> value;  ///< of a counter, of a gauge
  };

  gauge_value gauge(const std::string& name);
  counter_value counter(const std::string& name);

  /// All values, in the order in which their names were first asked for. Each is read atomically, all of them not.
  std::vector<sample> snapshot() const;

 private:
  using entry = std::variant<counter_value, gauge_value>;
  template <class Value>
  Value find_or_add(const std::string& name, const char* kind);
  mutable std::mutex mutex_;
  std::vector<std::pair<std::string, entry>> entries_;
  std::map<std::string, std::size_t> index_;
};

/// How long a thread has been at work. `enter` and `leave` belong to one thread; `seconds` to all, without a lock.
class busy_meter {
 public:
  void enter() noexcept;  ///< work begins; nothing if it had begun already
  void leave() noexcept;  ///< work ends; nothing if it had not begun

  /// Total busy time, that of the stretch under way included. Never less than before.
  double seconds() const noexcept;

 private:
  /// Nanoseconds times two, plus one while busy. Idle: the total. Busy: the total minus the time at which the stretch
  /// began, so that adding the time of now gives the total. One word, so that no reader sees half of a change.
  std::atomic<std::int64_t> state_{0};
  mutable std::atomic<std::int64_t> reported_{0};  ///< the most that `seconds` ever gave, in the same unit
};

}  // namespace weir

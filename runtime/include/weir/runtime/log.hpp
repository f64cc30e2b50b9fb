#pragma once
// The log of a run: to the console, and whole to a file.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "weir/runtime/console.hpp"
#include "weir/transport/result.hpp"

namespace weir {

enum class log_level : unsigned char { debug, info, warn, error };

/// Writes messages of `least` level and above as lines of a console, with "warning: " and the like before all but info,
/// and to a file with time (UTC) and level; each takes one line, whatever is in it (`one_line`). Thread-safe. Belongs
/// to whoever made it: there is no global one. If the file cannot be written later (a full disk), the console says so
/// once, and messages go on there.
class logger {
 public:
  /// `screen` must outlive the logger. `file` is appended to. Error: the file cannot be opened.
  static result<logger> open(console& screen, const std::optional<std::filesystem::path>& file,
                             log_level least = log_level::info);
  ~logger();
  logger(logger&&) noexcept;
  logger& operator=(logger&&) noexcept;

  void write(log_level level, const std::string& message);
  void debug(const std::string& message) { write(log_level::debug, message); }
  void info(const std::string& message) { write(log_level::info, message); }
  void warn(const std::string& message) { write(log_level::warn, message); }
  void error(const std::string& message) { write(log_level::error, message); }

 private:
  struct state;
  explicit logger(std::unique_ptr<state> made);
  std::unique_ptr<state> state_;
};

}  // namespace weir

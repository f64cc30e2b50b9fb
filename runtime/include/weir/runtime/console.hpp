#pragma once
// What a run shows to the one who watches it.

#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace weir {

struct console_settings {
  std::chrono::milliseconds redraw{100};  ///< least time between two draws of the live line
  std::chrono::milliseconds plain_status{
      10000};  ///< least time between two status lines where no live line is possible
};

/// Writes progress to a stream. On a terminal the status is one live line at the bottom, cut to the terminal's width
/// and redrawn in place; other lines appear above it. On a pipe, in a file or with TERM=dumb all is plain lines, and a
/// status is one from time to time. NO_COLOR turns colour off. Thread-safe: no line ever stands inside another.
///
/// Control characters in a text, other than line ends and tabs, are replaced: what a model or an environment wrote
/// cannot steer the terminal. What the stream does not take is lost without an error: a run does not end because nobody
/// watches (a `main` that may outlive the reader of its pipe ignores SIGPIPE).
class console {
 public:
  enum class tone : unsigned char { plain, faint, warning, error };

  /// `fd` stays the caller's and must outlive the console.
  explicit console(int fd, console_settings settings = {});
  /// Clears the live line.
  ~console();
  console(const console&) = delete;
  console& operator=(const console&) = delete;

  /// Replaces the live line. A status that comes too soon after the last is drawn with the next one or the next line.
  void status(std::string text);

  /// Prints a whole line; several, if the text has line ends within.
  void line(std::string text, tone how = tone::plain);

  /// Clears the live line. What comes later is printed as before.
  void finish();

  bool is_live() const noexcept { return live_; }
  bool has_color() const noexcept { return color_; }

 private:
  using clock = std::chrono::steady_clock;
  std::string live_line() const;
  std::string erase() const;
  bool due(std::chrono::milliseconds least);

  const int fd_;
  const console_settings settings_;
  bool live_ = false;
  bool color_ = false;
  std::mutex mutex_;
  std::string status_;
  bool drawn_ = false;
  std::optional<clock::time_point> last_;
};

/// `text` without line ends about it, and those within, like other control characters, written as \\n and \\x1b: what
/// an exception or an environment said takes one line.
std::string one_line(std::string_view text);

/// "42s", "2m 03s", "5h 07m", "3d 04h"; "?" if it is no finite number or negative.
std::string format_duration(double seconds);

/// Estimates the time that is left, from the pace of the last minutes. Not thread-safe.
class eta {
 public:
  /// `memory`: seconds after which a measured pace counts for a third.
  explicit eta(double total, double memory = 120) : total_(total), memory_(memory) {}

  /// `done` of `total` at the time `now`, in seconds of any clock. The first call says where the work began, so that
  /// what a resumed run did before does not count; if `done` shrinks, the estimate begins anew.
  void update(double done, double now);

  /// Seconds; nothing as long as there is no pace.
  std::optional<double> remaining() const;

 private:
  double total_;
  double memory_;
  bool begun_ = false;
  double done_ = 0;
  double now_ = 0;
  double recent_work_ = 0;  ///< both fade by the same factor: their ratio is the pace
  double recent_time_ = 0;
};

}  // namespace weir

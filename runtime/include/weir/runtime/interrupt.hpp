#pragma once
// Ctrl-C and SIGTERM as a question that a waiting main asks.

#include <signal.h>

#include <chrono>

namespace weir {

/// While it lives, SIGINT and SIGTERM are a request to stop instead of the end. A second signal ends the process at
/// once, with exit status 128 + signal; one that comes within 100 ms of the first is the same request (`timeout` sends
/// its signal twice). Signal handlers belong to the whole process: only a `main` makes one, one at a time (a second one
/// throws std::logic_error), and a service with handlers of its own makes none. Destroying it puts the old handlers
/// back.
class interrupt {
 public:
  interrupt();
  ~interrupt();
  interrupt(const interrupt&) = delete;
  interrupt& operator=(const interrupt&) = delete;

  /// True once a signal came. From any thread.
  bool requested() const noexcept;

  /// What a program that was asked to stop ends with: 130 after SIGINT, 143 after SIGTERM; 0 if it was not asked.
  int exit_code() const noexcept;

  /// Waits for a signal, at most for `longest`; true if one came, now or before. From one thread at a time.
  bool wait_for(std::chrono::milliseconds longest) const noexcept;

 private:
  struct sigaction old_int_ {};
  struct sigaction old_term_ {};
};

}  // namespace weir

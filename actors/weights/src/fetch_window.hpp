#pragma once
// How many chunks to ask for at a time. Fewer than fill the way leave it idle; more wait in the queues of its links,
// where what others send, such as word of new chunks, waits behind them: on a chain of eight hosts that is a queue's
// delay for each. The rule is TCP Vegas' (Brakmo, O'Malley, Peterson, SIGCOMM 1994): what waits is the window times the
// part of an answer's time that exceeds the least one.

#include <algorithm>
#include <cstddef>
#include <limits>

namespace weir::broadcast {

class fetch_window {
 public:
  /// `most` chunks, at least two.
  explicit fetch_window(std::size_t most) : most_(std::max<double>(2, static_cast<double>(most))) {}

  std::size_t chunks() const noexcept { return static_cast<std::size_t>(window_); }

  /// A whole chunk took so long from being asked for.
  void answered(double seconds) noexcept {
    least_ = std::min(least_, seconds);
    const auto waiting = seconds > 0 ? window_ * (1 - least_ / seconds) : 0;
    if (waiting >= few) starting_ = false;
    if (waiting < few)
      window_ += starting_ ? 1 : 1 / window_;  // at the start it doubles with every window
    else if (waiting > many)
      window_ -= 1 / window_;
    window_ = std::clamp(window_, 2.0, most_);
  }

 private:
  static constexpr double few = 1, many = 2;  ///< chunks
  double most_;
  double window_ = 2;
  double least_ = std::numeric_limits<double>::infinity();
  bool starting_ = true;
};

}  // namespace weir::broadcast

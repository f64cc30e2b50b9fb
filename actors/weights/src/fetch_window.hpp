#pragma once
// How many chunks to ask for at a time. Fewer than fill the way leave it idle; more wait in the queues of its links,
// where what others send, such as word of new chunks, waits behind them: on a chain of eight hosts that is a queue's
// delay for each. The rule is TCP Vegas' (Brakmo, O'Malley, Peterson, SIGCOMM 1994): what waits is the window times the
// part of an answer's time that exceeds the least one.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace weir::broadcast {

class fetch_window {
 public:
  /// `most` chunks, at least two.
  explicit fetch_window(std::size_t most) : most_(std::max<double>(2, static_cast<double>(most))) {}

  std::size_t chunks() const noexcept { return static_cast<std::size_t>(window_); }

  /// A whole chunk took so long from being asked for.
  void answered(double seconds) noexcept {
    least_ = std::min(least_, seconds);
    round_least_ = std::min(round_least_, seconds);
    if (starting_) window_ = std::min(window_ + 1, most_);  // it doubles with every round
    if (++answers_ < round_) return;
    // Of chunks that are asked for in one go all but the first wait for one another: the least of a round tells.
    const auto waiting = round_least_ > 0 ? window_ * (1 - least_ / round_least_) : 0;
    const bool was_starting = std::exchange(starting_, starting_ && waiting < few);
    if (was_starting && !starting_)
      window_ = std::max(window_ - waiting + few, 2.0);  // what was opened too far
    else if (waiting > many)
      window_ = std::max(window_ - std::max(1.0, (waiting - many) / 2), 2.0);
    else if (waiting < few && !starting_)
      window_ = std::min(window_ + 1, most_);
    answers_ = 0;
    round_ = window_;
    round_least_ = std::numeric_limits<double>::infinity();
  }

 private:
  static constexpr double few = 1, many = 2;  ///< chunks
  double most_;
  double window_ = 2;
  double least_ = std::numeric_limits<double>::infinity();
  bool starting_ = true;
  double answers_ = 0, round_ = 2;  ///< of this round, which is one window long
  double round_least_ = std::numeric_limits<double>::infinity();
};

}  // namespace weir::broadcast

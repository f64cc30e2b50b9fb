#pragma once
// A few threads that help the one which calls with what divides into independent pieces.

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace weir::broadcast {

/// How many threads code deltas where the settings say 0: some of the cores, since others compute.
inline std::size_t delta_threads(std::size_t wanted) {
  return wanted > 0 ? wanted : std::clamp<std::size_t>(std::thread::hardware_concurrency() / 4, 1, 8);
}

class crew {
 public:
  /// `size` counts the caller: 1 starts no thread.
  explicit crew(std::size_t size = 1) {
    for (std::size_t i = 1; i < size; ++i)
      helpers_.emplace_back([this, i](const std::stop_token& stop) { help(stop, i); });
  }
  crew(const crew&) = delete;
  crew& operator=(const crew&) = delete;

  std::size_t size() const noexcept { return helpers_.size() + 1; }

  /// Calls piece(i, who) for every i below `count`, each once, on any of the threads; `who`, below `size`, is the
  /// thread's number. Returns when all calls have returned. `piece` throws nothing. One caller at a time.
  void run(std::size_t count, const std::function<void(std::size_t, std::size_t)>& piece) {
    if (helpers_.empty() || count < 2) {
      for (std::size_t i = 0; i < count; ++i) piece(i, 0);
      return;
    }
    std::unique_lock lock(mutex_);
    piece_ = &piece;
    next_ = 0;
    count_ = count;
    ++round_;
    wake_.notify_all();
    take_pieces(lock, 0);
    done_.wait(lock, [&] { return busy_ == 0; });
    piece_ = nullptr;
  }

 private:
  void take_pieces(std::unique_lock<std::mutex>& lock, std::size_t who) {
    ++busy_;
    while (next_ < count_) {
      const auto i = next_++;
      lock.unlock();
      (*piece_)(i, who);
      lock.lock();
    }
    if (--busy_ == 0) done_.notify_one();
  }

  void help(const std::stop_token& stop, std::size_t who) {
    std::unique_lock lock(mutex_);
    for (std::uint64_t seen = 0;;) {
      if (!wake_.wait(lock, stop, [&] { return round_ != seen; })) return;
      seen = round_;
      take_pieces(lock, who);
    }
  }

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::condition_variable done_;
  const std::function<void(std::size_t, std::size_t)>* piece_ = nullptr;
  std::size_t next_ = 0, count_ = 0, busy_ = 0;
  std::uint64_t round_ = 0;
  std::vector<std::jthread> helpers_;  ///< last: they end before what they use
};

}  // namespace weir::broadcast

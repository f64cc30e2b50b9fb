#pragma once
// A few threads that help the one which calls with what divides into independent pieces.

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <latch>
#include <memory>
#include <thread>

namespace weir::broadcast {

/// How many threads code deltas where the settings say 0: some of the cores, since others compute.
inline std::size_t delta_threads(std::size_t wanted) {
  return wanted > 0 ? wanted : std::clamp<std::size_t>(std::thread::hardware_concurrency() / 4, 1, 8);
}

class crew {
 public:
  /// `size` counts the caller: 1 starts no thread.
  explicit crew(std::size_t size = 1) : size_(size) {
    if (size > 1) helpers_ = std::make_unique<boost::asio::thread_pool>(size - 1);
  }

  std::size_t size() const noexcept { return size_; }

  /// Calls piece(i) for every i below `count`, each once, on any of the threads, and returns when all have returned.
  /// `piece` throws nothing.
  template <class Piece>
  void run(std::size_t count, const Piece& piece) {
    if (count == 0) return;
    // The caller does every size-th piece itself, so that it waits for little.
    const auto is_ours = [&](std::size_t i) { return !helpers_ || i % size_ == 0; };
    // Shared: a helper may still be in `count_down` when the caller returns.
    const auto done = std::make_shared<std::latch>(static_cast<std::ptrdiff_t>(count));
    for (std::size_t i = 0; i < count; ++i)
      if (!is_ours(i)) boost::asio::post(*helpers_, [&piece, done, i] { piece(i), done->count_down(); });
    for (std::size_t i = 0; i < count; ++i)
      if (is_ours(i)) piece(i), done->count_down();
    done->wait();
  }

 private:
  std::size_t size_;
  std::unique_ptr<boost::asio::thread_pool> helpers_;
};

}  // namespace weir::broadcast

#pragma once
// What other threads leave for a transport's next progress().

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>

namespace weir {

class inbox {
 public:
  inbox() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  ~inbox() { ::close(fd_); }
  inbox(const inbox&) = delete;
  inbox& operator=(const inbox&) = delete;

  /// From any thread.
  void post(std::function<void()> work) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      work_.push_back(std::move(work));
    }
    const std::uint64_t one = 1;
    // A full counter is readable already.
    [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
  }

  /// Runs what was posted before the call, without the lock: that may post. Returns how much there was.
  std::size_t run() {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(fd_, &count, sizeof count);
    std::deque<std::function<void()>> due;
    {
      std::lock_guard lock(mutex_);
      due.swap(work_);
    }
    for (auto& work : due) work();
    return due.size();
  }

  /// Nobody will run it any more: what waits is dropped, and what comes. It may hold what holds the inbox.
  void close() {
    std::deque<std::function<void()>> dropped;  // destroyed without the lock
    std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(work_);
  }

  /// Readable when `run` has something to do.
  int fd() const noexcept { return fd_; }

 private:
  int fd_;
  std::mutex mutex_;
  bool closed_ = false;
  std::deque<std::function<void()>> work_;
};

}  // namespace weir

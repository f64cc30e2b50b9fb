#include "weir/runtime/interrupt.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <system_error>

namespace weir {

namespace {

// What a signal handler can reach is per process, as handlers are. The descriptor is made once and never closed: a
// handler may still run in another thread while an `interrupt` goes away.
std::atomic<bool> in_use{false};
std::atomic<int> wake_fd{-1};
std::atomic<int> caught{0};
std::atomic<std::int64_t> caught_at_ms{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t now_ms() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

extern "C" void weir_on_signal(int signal) {
  const int saved = errno;
  int none = 0;
  if (caught.compare_exchange_strong(none, signal)) {
    caught_at_ms = now_ms();
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_fd, &one, sizeof one);
  } else if (const auto first = caught_at_ms.load(); first != 0 && now_ms() - first > 100) {
    std::_Exit(128 + signal);
  }
  errno = saved;
}

void empty_wake_fd() noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(wake_fd, &count, sizeof count);
}

}  // namespace

interrupt::interrupt() {
  if (in_use.exchange(true)) throw std::logic_error("there is an interrupt in this process already");
  if (wake_fd < 0) wake_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) {
    in_use = false;
    throw std::system_error(errno, std::generic_category(), "cannot wait for signals");
  }
  empty_wake_fd();
  caught_at_ms = 0;
  caught = 0;
  struct sigaction action {};
  action.sa_handler = weir_on_signal;
  action.sa_flags = SA_RESTART;
  sigaddset(&action.sa_mask, SIGINT);
  sigaddset(&action.sa_mask, SIGTERM);
  ::sigaction(SIGINT, &action, &old_int_);
  ::sigaction(SIGTERM, &action, &old_term_);
}

interrupt::~interrupt() {
  ::sigaction(SIGINT, &old_int_, nullptr);
  ::sigaction(SIGTERM, &old_term_, nullptr);
  in_use = false;
}

bool interrupt::requested() const noexcept { return caught != 0; }

int interrupt::exit_code() const noexcept {
  const int signal = caught;
  return signal == 0 ? 0 : 128 + signal;
}

bool interrupt::wait_for(std::chrono::milliseconds longest) const noexcept {
  const auto deadline = now_ms() + std::min<std::int64_t>(longest.count(), std::int64_t{1} << 60);
  while (!requested()) {
    const auto left = std::clamp<std::int64_t>(deadline - now_ms(), 0, 60000);
    pollfd wake{wake_fd, POLLIN, 0};
    const int ready = ::poll(&wake, 1, static_cast<int>(left));
    // Woken without a request: by a child's handler, between its fork and its exec.
    if (ready > 0 && !requested()) empty_wake_fd();
    if (now_ms() >= deadline) break;
  }
  return requested();
}

}  // namespace weir

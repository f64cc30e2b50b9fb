#pragma once
// A thread that runs one end of a broadcast: progress, and work that others leave for it.

#include <poll.h>

#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "weir/transport/inbox.hpp"

namespace weir::broadcast {

/// `End` has progress(), event_fd() and patience(). It is used by the thread alone once this object is made, and
/// destroyed by it.
template <class End>
class service {
 public:
  explicit service(std::unique_ptr<End> end)
      : end_(std::move(end)), thread_([this](const std::stop_token& stop) { run(stop); }) {}
  ~service() {
    thread_.request_stop();
    work_->post([] {});
  }
  service(const service&) = delete;
  service& operator=(const service&) = delete;

  /// From any thread.
  void post(std::function<void(End&)> work) {
    work_->post([this, work = std::move(work)] { work(*end_); });
  }

 private:
  void run(const std::stop_token& stop) {
    pollfd events[2] = {{end_->event_fd(), POLLIN, 0}, {work_->fd(), POLLIN, 0}};
    while (!stop.stop_requested()) {
      if (work_->run() + end_->progress() > 0) continue;
      ::poll(events, 2, static_cast<int>(end_->patience().count()));
    }
    end_.reset();
  }

  std::unique_ptr<inbox> work_ = std::make_unique<inbox>();
  std::unique_ptr<End> end_;
  std::jthread thread_;
};

}  // namespace weir::broadcast

#pragma once
// UCX's objects, made as this transport needs them.

#include <ucp/api/ucp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weir/transport/result.hpp"

namespace weir::ucx {

/// UCX's major and minor version as it was loaded, 16 bits each. Peers need the same: what UCX itself sends is made for
/// no other.
std::uint32_t library_version();
std::string written_version(std::uint32_t version);

/// A UCX context, from the environment's UCX_* variables and, where those say nothing, from settings that this
/// transport needs. May be used by several threads.
class context {
 public:
  /// `unsupported`: UCX finds nothing that it could work with.
  static result<std::shared_ptr<context>> make();
  ~context();
  context(const context&) = delete;
  context& operator=(const context&) = delete;
  ucp_context_h handle() const noexcept { return handle_; }

  /// Memory that UCX knows. What is returned ends that; null if there is nothing to know. Its destruction comes before
  /// the memory's.
  static std::shared_ptr<void> know(const std::shared_ptr<context>& c, void* at, std::size_t bytes);

 private:
  explicit context(ucp_context_h handle) noexcept : handle_(handle) {}
  ucp_context_h handle_;
};

/// A worker, used by one thread at a time.
class worker {
 public:
  /// What UCX's handlers of active messages are given.
  using on_message = std::function<ucs_status_t(worker& at, const void* header, std::size_t header_length, void* data,
                                                std::size_t length, bool announced)>;
  /// Messages with the identifier `message_id` go to `handler`, which runs while `handle` is progressed.
  static result<std::shared_ptr<worker>> make(std::shared_ptr<context> c, on_message handler);
  ~worker();
  worker(const worker&) = delete;
  worker& operator=(const worker&) = delete;
  /// Before its time, whoever still has it.
  void destroy();
  ucp_worker_h handle() const noexcept { return handle_; }
  int event_fd() const noexcept { return fd_; }
  const std::string& address() const noexcept { return address_; }

 private:
  worker(std::shared_ptr<context> c, on_message handler) : context_(std::move(c)), handler_(std::move(handler)) {}
  std::shared_ptr<context> context_;
  on_message handler_;
  ucp_worker_h handle_ = nullptr;
  int fd_ = -1;
  std::string address_;
};

/// What UCX chose for the bulk of an endpoint's bytes, by what it prints of it.
struct lanes {
  std::string bulk;          ///< such as "posix/cma", "tcp"; "?" if it can't be told
  bool within_host = false;  ///< one of them is memory of this machine
};
lanes lanes_of(ucp_ep_h endpoint);
/// The same, of the text.
lanes lanes_in(const std::string& printed);

}  // namespace weir::ucx

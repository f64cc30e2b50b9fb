#pragma once
// UCX's endpoint to one peer, shared by all connections to it, and the operations on it. The service's thread alone.

#include <ucp/api/ucp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "library.hpp"
#include "side.hpp"

namespace weir::ucx {

/// What an operation came to. Called from a UCX callback: it starts operations at most, and doesn't progress.
using ended = std::function<void(ucs_status_t)>;

class endpoint : public std::enable_shared_from_this<endpoint> {
 public:
  /// `unsupported`: UCX finds no way to the peer. `on_failed` is called, from UCX's callback, when the peer is lost.
  static result<std::shared_ptr<endpoint>> make(std::shared_ptr<worker> at, const std::string& address,
                                                std::uint64_t id, const transport_id& peer,
                                                std::function<void()> on_failed);
  ~endpoint();
  endpoint(const endpoint&) = delete;
  endpoint& operator=(const endpoint&) = delete;

  const std::uint64_t id;
  const transport_id peer;
  const std::shared_ptr<worker> at;  ///< where the peer's answers arrive
  const std::uint64_t address_sum;   ///< of the peer's worker
  std::uint64_t pair = 0;            ///< the peer's endpoint that belongs to it, once that is known
  std::size_t links = 0;             ///< connections that use it
  time_point idle_since{};
  bool lost = false;    ///< it failed, or its peer is gone
  bool doomed = false;  ///< to be closed by the loop; why:
  std::string why;
  const lanes& path() const noexcept { return path_; }

  /// `keep` holds the payload, unless that is the user's; it stays until UCX has let go of it, which `then` says.
  void send(const message& m, std::span<const std::byte> payload, std::shared_ptr<const void> keep, unsigned flags,
            ended then = {});
  /// Receives what a rendezvous announces.
  void receive(void* announced, std::span<std::byte> into, ended then);
  /// At once, whatever is under way: that ends with an error. Outside of callbacks. Once.
  void close();
  /// After a close: UCX will call nothing of it any more.
  bool quiet();
  std::size_t under_way() const noexcept { return under_way_; }

 private:
  struct pending;
  endpoint(std::shared_ptr<worker> w, const std::string& address, std::uint64_t number, const transport_id& to)
      : id(number), peer(to), at(std::move(w)), address_sum(sum_of(address)) {}
  static void failed(void* self, ucp_ep_h, ucs_status_t status);
  static void finished(void* request, ucs_status_t status, pending* p);

  ucp_ep_h handle_ = nullptr;
  lanes path_;
  std::function<void()> on_failed_;
  std::size_t under_way_ = 0;
  void* closing_ = nullptr;
};

}  // namespace weir::ucx

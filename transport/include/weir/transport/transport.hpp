#pragma once
// The bulk data plane: registered memory, one-sided access to it, and small control frames. Actors' messages don't pass
// here, and nothing here knows an actor or a tensor.
//
// Threads: a transport object and everything made from it belong to one thread (UCX's SINGLE mode needs that, and the
// others keep the same rule), except where a method says otherwise. Completions and handlers run inside `progress()`,
// on that thread, never inside the call that started the operation. They may start new operations, but not call
// `progress`.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "weir/transport/result.hpp"

namespace weir {

/// What an implementation can do; asked before it is relied on.
struct transport_capabilities {
  std::string name;  ///< such as "inproc", "tcp", "ucx"
  bool crosses_processes = false;
  bool map = false;               ///< `connection::map` works towards a peer whose `host` is equal
  std::string host;               ///< where regions can be mapped; empty if they cannot
  bool one_sided = false;         ///< get and put need no work of the peer's
  bool device_memory = false;     ///< regions may be in an accelerator's memory
  std::size_t longest_frame = 0;  ///< bytes of `send`
};

/// Memory that peers may read and write. Destroying it ends that: an operation under way then fails or has its effect
/// as a whole, and none begins after. Views that `map` gave out keep the memory itself alive.
class region {
 public:
  virtual ~region() = default;
  virtual std::span<std::byte> bytes() noexcept = 0;
  std::span<const std::byte> bytes() const noexcept { return const_cast<region*>(this)->bytes(); }
  /// What a peer needs to reach it, to be sent by any channel. Holds a random key: a descriptor of another run, or of a
  /// region that is gone, is refused.
  virtual const std::string& descriptor() const noexcept = 0;
};

/// Called once, from `progress()`. An error says why: unavailable (peer or region gone), timeout, invalid_argument
/// (range, descriptor).
using completion = std::function<void(result<void>)>;

/// A read-only view of a peer's region; `owner` keeps the memory in place for as long as it is held, also when the
/// region is destroyed. Whether its content may change meanwhile is up to the peers' protocol.
struct mapped_region {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

/// A way to one peer. Destroying or closing it completes what is under way with `unavailable`.
class connection {
 public:
  virtual ~connection() = default;

  /// Reads `into.size()` bytes at `offset` of the peer's region. The buffer is the caller's and stays untouched and
  /// alive until `done` was called; its content is defined only after success. `done` comes by `deadline` at the
  /// latest.
  virtual void get(const std::string& descriptor, std::uint64_t offset, std::span<std::byte> into,
                   std::chrono::steady_clock::time_point deadline, completion done) = 0;

  /// Writes into the peer's region. `from` stays alive until `done`, which means that the data is there.
  virtual void put(const std::string& descriptor, std::uint64_t offset, std::span<const std::byte> from,
                   std::chrono::steady_clock::time_point deadline, completion done) = 0;

  /// The region in this process's memory, without a copy. `unsupported` where capabilities().map is false, and
  /// towards a peer on another host.
  virtual result<mapped_region> map(const std::string& descriptor) = 0;

  /// Sends a control frame, which is copied; frames to one peer arrive whole and in order, or the connection fails.
  /// `unavailable` if the peer is gone, `invalid_argument` if the frame is too long.
  virtual result<void> send(std::span<const std::byte> frame) = 0;

  /// By what path bulk data comes from the peer, for logs: "mapped memory", "tcp, 4 streams". It may change when a path
  /// turns out not to work; `on_notice` says so.
  virtual std::string lane() const = 0;

  /// Idempotent. The peer's `on_closed` hears of it.
  virtual void close() = 0;
};

/// What a transport tells its owner; given when it is made. Called from `progress()`.
struct transport_handlers {
  std::function<void(std::shared_ptr<connection>)> on_accepted;
  std::function<void(connection&, std::span<const std::byte> frame)> on_frame;
  std::function<void(connection&, const error& why)> on_closed;
  /// Something that works, but not as well as the machine could: a slower path, or memory that can't be shared. A
  /// sentence for the log, once a cause.
  std::function<void(const std::string&)> on_notice = {};
};

class transport {
 public:
  virtual ~transport() = default;

  virtual transport_capabilities capabilities() const = 0;

  /// Accepts peers at `address`, whose form is the implementation's. Returns the address that a peer connects to.
  virtual result<std::string> listen(const std::string& address) = 0;

  virtual result<std::shared_ptr<connection>> connect(const std::string& address,
                                                      std::chrono::steady_clock::time_point deadline) = 0;

  /// Memory of `size` bytes, 64-byte aligned, zeroed and touched, that peers may reach. May be called from any thread.
  virtual result<std::shared_ptr<region>> allocate(std::size_t size) = 0;

  /// Moves what is under way forward and runs what is due; returns how many completions and handlers ran.
  virtual std::size_t progress() = 0;

  /// Readable when `progress` may have something to do: for an event loop. Owned by the transport.
  virtual int event_fd() const = 0;
};

/// Makes a transport with these handlers: what those take that must hear of peers.
using transport_maker = std::function<std::unique_ptr<transport>(transport_handlers handlers)>;

}  // namespace weir

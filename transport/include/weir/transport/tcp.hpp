#pragma once
// The transport over TCP: several connections a peer, payloads straight from and to the memory that they belong to.

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "weir/transport/transport.hpp"

namespace weir {

struct tcp_settings {
  /// TCP connections to a peer that carry regions' bytes, beside one for control frames; 1 to 64. The connecting side
  /// chooses.
  std::size_t streams = 4;
  /// Threads that move the bytes, of this transport alone; at least 1. Peers are served by them, without `progress`.
  std::size_t threads = 1;
  /// A transfer is cut into requests of at most so many bytes, spread over the streams; at least 4 KiB.
  std::size_t chunk = std::size_t{1} << 20;
  /// Peers must have the same, else they are refused: one a run. At most 255 bytes. It keeps runs apart; it is no
  /// protection against who can read the network.
  std::string token;
  /// A peer that acknowledges nothing for so long is gone.
  std::chrono::milliseconds silence{10'000};
  /// Regions can be mapped by processes on this host (machine, process and network namespace), and `get` from such a
  /// peer copies from its memory. Off: all bytes go through the sockets.
  bool shared_memory = true;
};

/// Addresses are "HOST:PORT", "[IPV6]:PORT"; port 0 lets the system choose, host "*" is every interface. One-sided: a
/// peer's `get` and `put` are served by the transport's own threads; a `get` from a peer on the same host is copied by
/// this side's `progress()`. Throws std::invalid_argument for settings out of range, std::system_error if there are no
/// descriptors or threads.
std::unique_ptr<transport> make_tcp_transport(transport_handlers handlers = {}, const tcp_settings& settings = {});

/// The same as a maker.
transport_maker tcp_maker(tcp_settings settings = {});

}  // namespace weir

#pragma once
// The way to the regions of a peer on the same host: its memory, mapped. Of one connection, for every transport that
// crosses processes.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "regions.hpp"
#include "shared_memory.hpp"
#include "weir/transport/inbox.hpp"
#include "weir/transport/transport.hpp"

namespace weir {

/// Belongs to the user's thread.
class local_lane {
 public:
  /// Why nothing may go this way any more (the connection is closed or broken), or nothing.
  using refusal = std::function<std::optional<error>()>;

  local_lane(std::shared_ptr<segment_cache> cache, std::weak_ptr<inbox> in, const whereabouts& ours,
             const whereabouts& peers)
      : cache_(std::move(cache)), inbox_(std::move(in)), ours_(ours), peers_(peers) {}

  bool same_host() const noexcept { return ours_.same_host(peers_); }
  const whereabouts& peers() const noexcept { return peers_; }

  /// The peer's region in this process's memory. No segment: it is reached by the wire alone, with an obstacle if the
  /// machine could do better.
  result<segment_found> find(const region_address& a) const;

  result<mapped_region> map(const region_address& a, const std::string& peer) const;

  /// Copies out of the peer's memory, a piece each `progress()`. False if it has to go by the wire: then nothing was
  /// done, and `obstacle` says what is in the way if the machine could do better.
  bool get(const region_address& a, std::uint64_t offset, std::span<std::byte> into,
           std::chrono::steady_clock::time_point deadline, const refusal& refused, completion& done,
           std::string& obstacle) const;

 private:
  std::shared_ptr<segment_cache> cache_;
  std::weak_ptr<inbox> inbox_;
  whereabouts ours_, peers_;
};

}  // namespace weir

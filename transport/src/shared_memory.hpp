#pragma once
// Regions that peers on the same machine map, whatever carries the bytes to other machines. A region's memory is a
// memfd; a peer finds it as /proc/PID/fd/FD, so nothing has a name in a file system and nothing is left to clean up
// when a process is killed. What a descriptor says is checked against the header in the memory itself: a number that
// leads to other memory is refused.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "weir/transport/result.hpp"

namespace weir {

using region_key = std::array<char, 16>;
using transport_id = std::array<char, 16>;

/// Who a transport is, and where it runs: what peers tell one another before they map each other's regions.
struct whereabouts {
  std::uint64_t machine = 0;    ///< of this boot of it; 0: it shares no memory
  std::uint64_t processes = 0;  ///< the namespace that process ids are of
  std::uint64_t network = 0;    ///< the network namespace: another one counts as another host
  transport_id transport{};

  /// Memory of one can be mapped by the other, as far as the system lets it.
  bool same_host(const whereabouts& other) const noexcept {
    return machine != 0 && machine == other.machine && processes == other.processes && network == other.network;
  }
  /// Equal where memory can be shared; empty if it cannot.
  std::string host() const {
    return machine == 0 ? std::string()
                        : std::to_string(machine) + "." + std::to_string(processes) + "." + std::to_string(network);
  }
  /// On one machine and network, and yet out of reach.
  bool walled_off(const whereabouts& other) const noexcept {
    return machine != 0 && machine == other.machine && network == other.network && processes != other.processes;
  }
};
static_assert(sizeof(whereabouts) == 40 && std::is_trivially_copyable_v<whereabouts>);

/// Of this process, with a random transport id. `machine` is 0 if nothing is to be shared, or can be.
whereabouts make_whereabouts(bool shares_memory);

/// How a process of the same host reaches a segment: part of a descriptor.
struct segment_place {
  std::uint64_t processes = 0;
  std::uint32_t pid = 0;
  std::uint32_t fd = 0;
  std::uint64_t size = 0;
  bool operator==(const segment_place&) const = default;
};
static_assert(sizeof(segment_place) == 24 && std::is_trivially_copyable_v<segment_place>);

/// The first page of a segment; the region's bytes follow it.
struct segment_header {
  static constexpr std::uint64_t expected_magic = 0x746E656D67657357;  ///< "Wsegment"
  static constexpr std::uint32_t expected_version = 1;
  std::uint64_t magic = expected_magic;
  std::uint32_t version = expected_version;
  std::atomic<std::uint32_t> live{1};  ///< until the region is destroyed
  region_key key{};
  transport_id owner{};
  std::uint64_t size = 0;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "it is shared by processes");
inline constexpr std::size_t segment_data = 4096;  ///< where the bytes begin

/// Memory of this process that others may map, read-only. The memory stays as long as the object; `retire` ends that
/// anybody can come to it anew.
class segment {
 public:
  /// Zeroed and touched. `unavailable`: there is not so much memory; `unsupported`: the system has no memfd or no
  /// descriptor to give, and other memory will do.
  static result<std::unique_ptr<segment>> make(std::size_t size, const region_key& key, const transport_id& owner);
  ~segment();
  segment(const segment&) = delete;
  segment& operator=(const segment&) = delete;

  std::byte* data() noexcept { return at_ + segment_data; }
  /// Until it is retired.
  segment_place place() const noexcept { return place_; }
  /// The region is destroyed: says so to those that map it, and gives the descriptor back. Once.
  void retire() noexcept;

 private:
  segment() = default;
  std::byte* at_ = nullptr;
  std::size_t mapped_ = 0;
  int fd_ = -1;
  segment_place place_;
};

/// A peer's segment in this process's memory.
class mapped_segment {
 public:
  /// Takes over the mapping.
  mapped_segment(const std::byte* at, std::size_t mapped) noexcept : at_(at), mapped_(mapped) {}
  ~mapped_segment();
  mapped_segment(const mapped_segment&) = delete;
  mapped_segment& operator=(const mapped_segment&) = delete;

  const segment_header& header() const noexcept { return *reinterpret_cast<const segment_header*>(at_); }
  std::span<const std::byte> bytes() const noexcept { return {at_ + segment_data, mapped_ - segment_data}; }
  bool live() const noexcept { return header().live.load(std::memory_order_acquire) != 0; }

 private:
  const std::byte* at_;
  std::size_t mapped_;
};

/// What looking for a peer's segment came to.
struct segment_found {
  std::shared_ptr<const mapped_segment> segment;  ///< null: not to be had this way
  std::string obstacle;                           ///< why not, if the system is in the way
};

/// Opens and checks. `unavailable`: what is there is not that region, or no longer. Not to be had (gone, or forbidden)
/// is no error: the peer itself knows what is true of its region.
result<segment_found> map_segment(const segment_place& place, const region_key& key, const transport_id& owner);

/// Mappings that are used again and again, by key. Lets go of those whose region is gone, that nobody used for a while,
/// and of the oldest beyond a bound; what somebody holds stays with him. Thread-safe.
class segment_cache {
 public:
  result<segment_found> find(const segment_place& place, const region_key& key, const transport_id& owner);
  /// To be called now and then from `on_first` on, until it returns false: there is nothing left to let go of.
  bool sweep();
  /// What is told when the cache holds something again; null for nobody.
  void on_first(std::function<void()> tell);

 private:
  struct entry {
    segment_place place;
    std::weak_ptr<const mapped_segment> known;
    std::shared_ptr<const mapped_segment> held;
    std::chrono::steady_clock::time_point used;
  };
  void trim();
  std::mutex mutex_;
  std::map<region_key, entry> entries_;
  std::function<void()> on_first_;
  bool swept_ = false;  ///< somebody sweeps
};

}  // namespace weir

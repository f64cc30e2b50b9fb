#pragma once
// Weight versions in this process's memory: one side writes them or brings them here, the other reads them in place. No
// actor, no tensor: bytes.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "weir/actors/messages.hpp"
#include "weir/transport/transport.hpp"

namespace weir {

/// Where a version lies. `owner` keeps the memory, and for as long as the version is not released its content, in
/// place.
struct weight_content {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
  std::shared_ptr<region> memory;  ///< what peers of a transport can be given; null if it is memory of one of them
};

/// The versions that can be read in this process, by number. Thread-safe.
class weight_shelf {
 public:
  /// `layout`: of every version. Null: as their reader computes, in fp32.
  explicit weight_shelf(std::shared_ptr<const manifest> layout = nullptr) : layout_(std::move(layout)) {}
  std::shared_ptr<const manifest> layout() const;
  void set_layout(std::shared_ptr<const manifest> layout);
  void put(weight_version version, weight_content content);
  void remove(weight_version version);
  /// Error: unavailable, which names the version.
  result<weight_content> find(weight_version version) const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const manifest> layout_;
  std::map<weight_version, weight_content> versions_;
};

/// The writer's regions, used in turn. One thread at a time.
///
/// How many regions: each reader holds one and may be taking another; one more is being written. With `readers + 2` the
/// writer waits only while readers hold that many different versions.
class snapshot_writer {
 public:
  using allocator = std::function<result<std::shared_ptr<region>>()>;

  /// `count` (at least 1) regions of `allocate`, whose versions are put on `shelf`. `allocate` is used later as well.
  static result<snapshot_writer> make(std::shared_ptr<weight_shelf> shelf, allocator allocate, std::size_t count);
  /// The same with memory of this process alone.
  static result<snapshot_writer> make(std::shared_ptr<weight_shelf> shelf, std::size_t bytes, std::size_t count);

  std::shared_ptr<const manifest> layout() const { return shelf_->layout(); }

  /// Memory for the next version; empty while readers hold every region. The same memory until `publish`.
  std::span<std::byte> next() noexcept;

  /// What `next` holds is `version`: the message that says so. Its region is taken until it is released.
  publish_weights publish(weight_version version);

  /// The answer to that message: the region may be written again, or, if it is spoiled, other memory takes its place.
  /// Unknown versions are passed over.
  void released(const weights_released& news);

 private:
  struct slot {
    std::shared_ptr<region> memory;  ///< null if there was none to replace what was spoiled
    bool taken = false;
    weight_version version = 0;
  };
  snapshot_writer(std::shared_ptr<weight_shelf> shelf, allocator allocate)
      : shelf_(std::move(shelf)), allocate_(std::move(allocate)) {}
  slot* free_slot() noexcept;
  std::shared_ptr<weight_shelf> shelf_;
  allocator allocate_;
  std::vector<slot> slots_;
};

}  // namespace weir

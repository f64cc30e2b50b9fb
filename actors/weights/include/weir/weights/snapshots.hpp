#pragma once
// Weight versions in registered memory: one side writes them, the other reads them in place. No actor, no tensor: bytes.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weir/actors/messages.hpp"
#include "weir/transport/transport.hpp"

namespace weir {

/// XXH3, 64 bits (xxHash specification, version 0.1.1), of a snapshot.
std::uint64_t snapshot_checksum(std::span<const std::byte> bytes);

/// The writer's regions, allocated once and used in turn. One thread at a time.
///
/// How many regions: each engine holds one and may be taking another; one more is being written. With `engines + 2` the
/// writer waits only while engines hold that many different versions.
class snapshot_writer {
 public:
  /// Allocates `count` regions of `bytes` and lets readers connect at `address`.
  static result<snapshot_writer> make(const transport_maker& maker, const std::string& address, std::size_t bytes, std::size_t count);

  /// Memory for the next version; empty while readers hold every region. The same memory until `publish`.
  std::span<std::byte> next() noexcept;

  /// What `next` holds is `version`: the message that says so. Its region is taken until `released(version)`.
  publish_weights publish(weight_version version);

  /// The answer to that message: the region may be written again. Unknown versions are passed over.
  void released(weight_version version) noexcept;

  /// Lets the transport work; call now and then.
  void progress() { data_->progress(); }

 private:
  struct slot {
    std::shared_ptr<region> memory;
    bool taken = false;
    weight_version version = 0;
  };
  using peers = std::vector<std::shared_ptr<connection>>;
  snapshot_writer(std::unique_ptr<transport> data, std::shared_ptr<peers> readers) : readers_(std::move(readers)), data_(std::move(data)) {}
  slot* free_slot() noexcept;
  std::shared_ptr<peers> readers_;  ///< an accepted connection is open for as long as it is held
  std::unique_ptr<transport> data_;
  std::vector<slot> slots_;
};

/// A reader in the same process, or on the same machine where the transport maps. One thread at a time.
class snapshot_reader {
 public:
  /// Connects to the writer at `address`; snapshots have `bytes` bytes. `unsupported` if the transport does not map.
  static result<snapshot_reader> connect(std::unique_ptr<transport> data, const std::string& address, std::size_t bytes);

  /// The version's bytes in place, checked. They stay as they are until the store hears that a newer version was
  /// adopted; `owner` keeps the memory itself alive. Errors: unavailable (the region is gone), invalid_data (size or
  /// checksum: names the version).
  result<mapped_region> read(const adopt_weights& which);

 private:
  snapshot_reader(std::unique_ptr<transport> data, std::shared_ptr<connection> writer, std::size_t bytes)
      : data_(std::move(data)), writer_(std::move(writer)), bytes_(bytes) {}
  std::unique_ptr<transport> data_;
  std::shared_ptr<connection> writer_;
  std::size_t bytes_;
};

}  // namespace weir

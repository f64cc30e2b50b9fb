#pragma once
// What a machine of a broadcast holds and gives on: payloads, whole or still arriving, and who reads them. One thread.

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "broadcast_frames.hpp"
#include "weir/transport/transport.hpp"

namespace weir::broadcast {

/// XXH3, 64 bits, of a chunk.
std::uint64_t chunk_checksum(std::span<const std::byte> chunk);

/// The bytes of chunk `index`; the last one may be shorter.
template <class Byte>
std::span<Byte> chunk_of(std::span<Byte> payload, const payload_size& size, std::uint64_t index) {
  const auto begin = index * size.chunk;
  return payload.subspan(begin, std::min(size.chunk, size.bytes - begin));
}
inline std::uint64_t chunks_of(const payload_size& size) {
  return size.bytes == 0 ? 0 : (size.bytes - 1) / size.chunk + 1;
}

class payload_server {
 public:
  /// A payload, of which nothing is ready yet. `memory` holds at least size.bytes.
  void add(const payload_size& size, std::shared_ptr<region> memory);
  /// The next chunk is there, and its checksum known.
  void advance(const payload_id& id, std::uint64_t checksum);
  /// All of it is there; checksums are made when somebody asks.
  void complete(const payload_id& id);
  /// Its readers are told that it is gone.
  void remove(const payload_id& id, const std::string& why);
  bool has(const payload_id& id) const { return payloads_.contains(id); }
  /// Whether somebody reads it.
  bool used(const payload_id& id) const;
  /// What there will be of this version is here, or added: who asks for another payload of it, or for an older version,
  /// is refused, who asks for a newer one waits.
  void expect(weight_version version);

  void subscribed(const std::shared_ptr<connection>& by, const subscribe& what);
  /// Counts `to` as one that maps a payload that is all there, and says where it lies.
  std::string lend(const std::shared_ptr<connection>& to, const payload_id& id);
  void released(const connection& by, const payload_id& id);
  /// Returns the payloads that it had mapped: it may still read their memory.
  std::vector<payload_id> closed(const connection& gone);

  /// Makes checksums that are waited for, for a few milliseconds, and gives signs of life. Returns what it did.
  std::size_t work();
  bool busy() const;

 private:
  struct subscriber {
    std::weak_ptr<connection> peer;
    std::uint64_t told = 0;  ///< chunks
    broadcast::access access = broadcast::access::wire;
    std::chrono::steady_clock::time_point last{};
  };
  struct payload {
    payload_size size;
    std::shared_ptr<region> memory;
    std::vector<std::uint64_t> checksums;
    bool complete = false;
    std::map<const connection*, subscriber> readers;
    bool wants_checksums() const { return complete && checksums.size() < chunks_of(size); }
  };
  struct waiting {
    std::weak_ptr<connection> peer;
    subscribe what;
    std::chrono::steady_clock::time_point last{};
  };
  void accept(payload& p, const std::shared_ptr<connection>& by, const subscribe& what);
  void tell(payload& p);
  void tell(payload& p, subscriber& s);
  static bool waits(const payload& p);

  std::map<payload_id, payload> payloads_;
  std::vector<waiting> waiting_;
  weight_version first_to_come_ = 0;
};

}  // namespace weir::broadcast

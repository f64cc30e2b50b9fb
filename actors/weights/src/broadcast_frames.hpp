#pragma once
// What the machines of a broadcast say to one another, in control frames of a transport: a kind (1 byte), then the
// fields in their order, little-endian; strings and lists after their length (32 bits). All of it comes from outside:
// `read` checks lengths before it allocates.

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "weir/actors/types.hpp"
#include "weir/transport/result.hpp"

namespace weir::broadcast {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

inline constexpr std::uint32_t protocol = 2;
inline constexpr weight_version no_base = ~weight_version{0};

/// The bytes that make `version`: all of them, or what turns `base` into it.
struct payload_id {
  weight_version version = 0;
  weight_version base = no_base;
  bool is_delta() const noexcept { return base != no_base; }
  auto operator<=>(const payload_id&) const = default;
  auto fields() { return std::tie(version, base); }
};

struct payload_size {
  payload_id id;
  std::uint64_t bytes = 0;
  std::uint64_t chunk = 0;
  bool operator==(const payload_size&) const = default;
  auto fields() { return std::tie(id, bytes, chunk); }
};

/// Who connects, to whom it connects. `address` is where others can reach it; `host` is equal for those that can map
/// each other's memory.
struct hello {
  static constexpr std::uint8_t kind = 1;
  std::uint32_t protocol = broadcast::protocol;
  std::uint8_t join = 0;             ///< to the source: send announcements
  std::uint64_t snapshot_bytes = 0;  ///< of a version, as far as it knows; 0: it asks
  std::string name, address, host;
  auto fields() { return std::tie(protocol, join, snapshot_bytes, name, address, host); }
};

/// Source -> receiver that joins: what versions are like.
struct welcome {
  static constexpr std::uint8_t kind = 9;
  std::uint64_t snapshot_bytes = 0;
  std::string description;
  auto fields() { return std::tie(snapshot_bytes, description); }
};

/// Source -> receiver: there is a version. `deltas` form a chain that ends there; it may be empty. Whom to ask for it,
/// in this order, and the source after them.
struct announce {
  static constexpr std::uint8_t kind = 2;
  payload_size snapshot;
  std::vector<payload_size> deltas;
  std::vector<std::string> parents;
  std::uint8_t local = 0;  ///< the first of them, or the source if there is none, is on the same machine
  std::string region;      ///< if `local` and it is the source's memory: where; the receiver counts as one that maps it
  auto fields() { return std::tie(snapshot, deltas, parents, local, region); }
};

/// How a payload is read: what comes over a wire is checked chunk by chunk; from memory of the same machine it is taken
/// as it is, once all of it is there.
enum class access : std::uint8_t { wire, copy, map };

/// Receiver -> parent: tell me what is ready of this payload, from chunk `from` on.
struct subscribe {
  static constexpr std::uint8_t kind = 3;
  payload_id id;
  std::uint64_t from = 0;
  broadcast::access access = broadcast::access::wire;
  auto fields() { return std::tie(id, from, access); }
};

/// The answers: where it lies, or why not; then what is ready, as it becomes so. No new chunks: a sign of life.
struct offer {
  static constexpr std::uint8_t kind = 4;
  payload_size size;
  std::string region;
  auto fields() { return std::tie(size, region); }
};
struct refuse {
  static constexpr std::uint8_t kind = 5;
  payload_id id;
  std::string why;
  auto fields() { return std::tie(id, why); }
};
struct ready {
  static constexpr std::uint8_t kind = 6;
  payload_id id;
  std::uint64_t first = 0;
  std::vector<std::uint64_t> checksums;  ///< XXH3 of chunks `first`...
  auto fields() { return std::tie(id, first, checksums); }
};

/// Receiver -> parent: no more of this payload is needed, its memory may change.
struct release {
  static constexpr std::uint8_t kind = 7;
  payload_id id;
  auto fields() { return std::tie(id); }
};

/// Receiver -> source. Versions are counted from 1 here: 0 is none.
struct status {
  static constexpr std::uint8_t kind = 8;
  std::uint64_t arrived = 0, adopted = 0;
  std::uint64_t failed = 0;  ///< could not be had: send it again, or a newer one
  std::uint64_t wire_bytes = 0, microseconds = 0;
  std::uint8_t delta = 0, mapped = 0;
  std::string why;
  auto fields() { return std::tie(arrived, adopted, failed, wire_bytes, microseconds, delta, mapped, why); }
};

using frame = std::variant<hello, welcome, announce, subscribe, offer, refuse, ready, release, status>;

class frame_writer {
 public:
  template <class T>
  void put(T& x) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      const auto at = out.size();
      out.resize(at + sizeof x);
      std::memcpy(out.data() + at, &x, sizeof x);
    } else if constexpr (requires { x.fields(); }) {
      std::apply([this](auto&... field) { (put(field), ...); }, x.fields());
    } else {
      auto size = static_cast<std::uint32_t>(x.size());
      put(size);
      for (auto& element : x) put(element);
    }
  }
  std::vector<std::byte> out;
};

template <class Frame>
std::vector<std::byte> write(Frame f) {
  frame_writer w;
  auto kind = Frame::kind;
  w.put(kind);
  w.put(f);
  return std::move(w.out);
}

class frame_reader {
 public:
  explicit frame_reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <class T>
  bool get(T& x) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      if (rest_.size() < sizeof x) return false;
      std::memcpy(&x, rest_.data(), sizeof x);
      rest_ = rest_.subspan(sizeof x);
      return true;
    } else if constexpr (requires { x.fields(); }) {
      return std::apply([this](auto&... field) { return (get(field) && ...); }, x.fields());
    } else {
      // An element takes at least a byte: a length beyond the frame allocates nothing.
      std::uint32_t size = 0;
      if (!get(size) || size > rest_.size()) return false;
      x.clear();
      for (std::uint32_t i = 0; i < size; ++i) {
        typename T::value_type element{};
        if (!get(element)) return false;
        x.push_back(std::move(element));
      }
      return true;
    }
  }
  bool done() const noexcept { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

/// The frame, whole and no longer. Error: invalid_data.
inline result<frame> read(std::span<const std::byte> bytes) {
  frame_reader r(bytes);
  std::uint8_t kind = 0;
  if (!r.get(kind)) return fail(errc::invalid_data, "an empty frame");
  frame found;
  const auto take = [&]<class T>(T empty) {
    if (kind != T::kind || !r.get(empty) || !r.done()) return false;
    found = std::move(empty);
    return true;
  };
  if (take(hello{}) || take(welcome{}) || take(announce{}) || take(subscribe{}) || take(offer{}) || take(refuse{}) ||
      take(ready{}) || take(release{}) || take(status{}))
    return found;
  return fail(errc::invalid_data,
              "a frame of kind " + std::to_string(kind) + " that is malformed or of another version");
}

}  // namespace weir::broadcast

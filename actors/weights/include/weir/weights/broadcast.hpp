#pragma once
// Brings versions of weights from one machine to many: whole or as deltas, along a plan, each machine giving on what it
// has checked. Bytes over a transport: no actor, no tensor.
//
// The source tells each receiver of one version at a time, always the newest: who is slow skips those between. A
// receiver reads from its parent in the plan, and when that fails from the parent's parents, from the chunk that it
// has; the source is the last of them. Every chunk is checked (XXH3) against what the source said of it, whoever passed
// it on, and a delta against its base and its outcome. Receivers on one machine read what the first of them got, or
// what the source has, in place, where the transport maps.
//
// Threads: an object of these classes belongs to one thread, which calls `progress` in a loop that sleeps on `event_fd`
// for at most `patience`. Handlers are called from `progress`.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weir/actors/types.hpp"
#include "weir/transport/transport.hpp"
#include "weir/weights/broadcast_plan.hpp"
#include "weir/weights/delta.hpp"

namespace weir {

enum class delta_use : std::uint8_t {
  off,
  on,         ///< whenever a receiver has the base
  automatic,  ///< where coding, sending and applying it takes less time than sending the whole, by what was measured
};

struct broadcast_settings {
  std::string listen = "127.0.0.1:0";
  std::uint64_t bytes = 0;               ///< of a version
  std::string description;               ///< of what is in it, for receivers; not looked into here
  std::vector<delta_range> ranges;       ///< how a version is divided for deltas, without a gap from 0 to `bytes`
  std::optional<broadcast_shape> shape;  ///< none: chosen for each version
  std::uint64_t chunk = 0;               ///< bytes; 0: chosen
  delta_use delta = delta_use::off;
  std::size_t delta_chain = 4;    ///< deltas kept for receivers that are some versions behind
  std::size_t delta_threads = 0;  ///< that code a delta; 0: a quarter of the machine's, at least 1 and at most 8
  bool share = true;              ///< receivers on one machine get at its memory, where the transport can
  /// A receiver that says nothing for so long is let go of, so that it holds up nobody; it may join again. At least 2
  /// s: receivers say something every second.
  std::chrono::milliseconds silence{30'000};
};

/// What became of a version.
struct broadcast_report {
  weight_version version = 0;
  broadcast_shape shape = broadcast_shape::direct;
  std::uint64_t chunk = 0;
  std::size_t receivers = 0;
  std::uint64_t bytes = 0;        ///< of the version
  std::uint64_t delta_bytes = 0;  ///< of its delta; 0 if there is none
  std::uint64_t wire_bytes = 0;   ///< that receivers took in
  double encode_seconds = 0;
  double seconds = 0;  ///< from `publish` until every receiver had it
};

struct source_handlers {
  /// The version's region is free again. `spoiled`: a receiver that had mapped it was lost, and may still read it; its
  /// memory must not be written any more.
  std::function<void(weight_version, bool spoiled)> on_released;
  /// Every receiver reads this version or a newer one. With no receiver there is nobody to wait for: the newest.
  std::function<void(weight_version)> on_adopted;
  std::function<void(const broadcast_report&)> on_delivered;
  std::function<void(const std::string&)> on_notice;
};

class broadcast_source {
 public:
  /// Listens at settings.listen. Throws std::invalid_argument for settings that make no sense.
  static result<std::unique_ptr<broadcast_source>> make(const transport_maker& maker, broadcast_settings settings,
                                                        source_handlers handlers);
  ~broadcast_source();

  /// Where receivers connect.
  const std::string& address() const noexcept;

  /// Memory for versions. From any thread.
  result<std::shared_ptr<region>> allocate();

  /// `content`, of `allocate`, holds `version`, which is newer than all before; it stays as it is until it is released.
  void publish(weight_version version, std::shared_ptr<region> content);

  std::size_t receivers() const noexcept;
  std::size_t progress();
  int event_fd() const noexcept;
  std::chrono::milliseconds patience() const noexcept;

 private:
  struct state;
  explicit broadcast_source(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

struct receiver_settings {
  std::string name;                                ///< in messages
  std::string source;                              ///< the source's address
  std::string listen = "127.0.0.1:0";              ///< where other receivers reach this one
  std::uint64_t bytes = 0;                         ///< of a version; 0: what the source says
  std::size_t slots = 3;                           ///< versions in memory: one is read, one was brought, one arrives
  bool map = true;                                 ///< read in place what is on this machine
  std::uint64_t window = std::uint64_t{16} << 20;  ///< bytes asked for at a time
  std::chrono::milliseconds silence{5'000};        ///< a parent that says nothing for so long is given up
  std::size_t delta_threads = 0;                   ///< that apply a delta; 0: as for the source
};

/// A version that is here. Its bytes stay as they are while `owner` is held.
struct arrived_weights {
  weight_version version = 0;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
  bool delta = false;   ///< it came as one
  bool mapped = false;  ///< it is another process's memory
  std::string lane;     ///< how it came, as the transport says: "ucx: tcp", "mapped memory"
  std::uint64_t wire_bytes = 0;
  double seconds = 0;  ///< since the announcement
};

struct receiver_handlers {
  /// The source, joined for the first time or again, says what versions are like, before the first of them. An error
  /// ends it: no version is taken, and the source is not looked for again.
  std::function<result<void>(std::uint64_t bytes, const std::string& description)> on_joined;
  std::function<void(const arrived_weights&)> on_arrived;
  std::function<void(const std::string&)> on_notice;
};

class broadcast_receiver {
 public:
  /// Connects to the source. Should it be lost later, it is looked for again. Throws std::invalid_argument for settings
  /// that make no sense.
  static result<std::unique_ptr<broadcast_receiver>> make(const transport_maker& maker, receiver_settings settings,
                                                          receiver_handlers handlers);
  ~broadcast_receiver();

  /// Nobody here reads a version older than this one any more: the source hears of it.
  void adopted(weight_version version);

  std::size_t progress();
  int event_fd() const noexcept;
  std::chrono::milliseconds patience() const noexcept;

 private:
  struct state;
  explicit broadcast_receiver(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

}  // namespace weir

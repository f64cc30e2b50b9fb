#pragma once
// One broadcast, measured: a source here, receivers as processes of their own.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weir/transport/load.hpp"
#include "weir/weights/broadcast.hpp"

namespace weir::bench {

/// How receivers on one machine come to the bytes.
enum class sharing : std::uint8_t {
  map,   ///< they read the source's memory in place
  copy,  ///< each copies out of it
  wire,  ///< over the transport's wire, as between machines
};

struct spread_settings {
  std::string transport = "tcp";
  std::uint64_t bytes = std::uint64_t{256} << 20;
  std::size_t receivers = 1;
  std::optional<broadcast_shape> shape;
  std::uint64_t chunk = 0;  ///< 0: chosen
  double delta_fraction =
      -1;  ///< of the 16-bit words that change from one version to the next; negative: all, no delta
  sharing share = sharing::wire;
  int rounds = 5;
  std::size_t streams = 4;  ///< of the transport "tcp"
  std::string listen = "127.0.0.1:0";
  /// What a receiver's command line begins with: another network namespace. {} for none.
  std::function<std::vector<std::string>(std::size_t receiver)> prefix;
  /// Where receiver i listens. {}: on loopback.
  std::function<std::string(std::size_t receiver)> receiver_listen;
};

/// Of the rounds after the first, which pays for connections and page tables: the best, and what they all agree in.
struct spread_outcome {
  double seconds = 0;            ///< from publishing until every receiver had said that it has it
  double cpu_seconds = 0;        ///< of all processes, in that round
  std::uint64_t wire_bytes = 0;  ///< of a receiver
  std::uint64_t delta_bytes = 0;
  double encode_seconds = 0;
  broadcast_shape shape = broadcast_shape::direct;
  std::uint64_t chunk = 0;
  bool mapped = false;
  std::string lanes;  ///< what the bytes came by, each way once
  int checked = 0;    ///< versions that every receiver had bit for bit
};

result<spread_outcome> measure_spread(const std::string& program, const spread_settings& settings);

/// What a receiver process does; its words are those that `measure_spread` starts it with.
int run_receiver(const std::vector<std::string>& words);

/// The transport by its name, as these benchmarks set it.
result<known_transport> transport_of(const std::string& name, sharing share, std::size_t streams);

}  // namespace weir::bench

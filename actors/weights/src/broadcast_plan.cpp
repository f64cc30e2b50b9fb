#include "weir/weights/broadcast_plan.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace weir {

namespace {

constexpr std::uint64_t granule = std::uint64_t{64} << 10;
// Measured over loopback: larger ones have left the cache before they are checked, smaller ones cost more requests.
constexpr std::uint64_t least_chunks = 64, checked_in_cache = std::uint64_t{4} << 20;

/// Levels of a binary tree below the source, whose first level is one machine: the source sends once.
double height(std::size_t receivers) { return static_cast<double>(std::bit_width(receivers)); }

/// How many hops the last chunk that leaves the source has before it.
double hops(broadcast_shape shape, std::size_t receivers) {
  switch (shape) {
    case broadcast_shape::direct:
      return 0;
    case broadcast_shape::chain:
      return static_cast<double>(receivers) - 1;
    case broadcast_shape::tree:
      return height(receivers) - 1;
  }
  return 0;
}

/// How often one machine sends each chunk, at most.
double sends(broadcast_shape shape, std::size_t receivers) {
  switch (shape) {
    case broadcast_shape::direct:
      return static_cast<double>(receivers);
    case broadcast_shape::chain:
      return 1;
    case broadcast_shape::tree:
      return receivers > 2 ? 2 : 1;  // up to two receivers it is the chain
  }
  return 1;
}

}  // namespace

const char* to_string(broadcast_shape shape) noexcept {
  switch (shape) {
    case broadcast_shape::direct:
      return "direct";
    case broadcast_shape::chain:
      return "chain";
    case broadcast_shape::tree:
      return "tree";
  }
  return "unknown";
}

double predict_seconds(broadcast_shape shape, std::uint64_t bytes, std::uint64_t chunk, std::size_t receivers,
                       const link_costs& costs) {
  if (bytes == 0 || receivers == 0) return 0;
  const auto size = static_cast<double>(std::min(chunk, bytes));
  const auto chunks = std::ceil(static_cast<double>(bytes) / size);
  return sends(shape, receivers) * (chunks + costs.hop_chunks * hops(shape, receivers)) *
         (costs.chunk_seconds + size / costs.bytes_per_second);
}

std::uint64_t best_chunk(broadcast_shape shape, std::uint64_t bytes, std::size_t receivers, const link_costs& costs) {
  const auto waits = receivers < 2 ? 0 : costs.hop_chunks * hops(shape, receivers);
  const auto best = waits > 0
                        ? std::sqrt(static_cast<double>(bytes) * costs.bytes_per_second * costs.chunk_seconds / waits)
                        : static_cast<double>(std::min(bytes / least_chunks, checked_in_cache));
  const auto bounded = std::clamp(best, static_cast<double>(smallest_chunk), static_cast<double>(largest_chunk));
  return (static_cast<std::uint64_t>(bounded) + granule / 2) / granule * granule;
}

broadcast_plan choose_plan(std::optional<broadcast_shape> asked, std::uint64_t bytes, std::size_t receivers,
                           const link_costs& costs) {
  std::optional<broadcast_plan> best;
  for (auto shape : std::array{broadcast_shape::direct, broadcast_shape::tree, broadcast_shape::chain}) {
    if (asked && *asked != shape) continue;
    const auto chunk = best_chunk(shape, bytes, receivers, costs);
    const broadcast_plan plan{shape, chunk, predict_seconds(shape, bytes, chunk, receivers, costs)};
    if (!best || plan.seconds < best->seconds) best = plan;
  }
  return *best;
}

std::vector<std::size_t> ancestors(broadcast_shape shape, std::size_t receiver) {
  std::vector<std::size_t> found;
  if (shape == broadcast_shape::direct) return found;
  while (receiver > 0) {
    receiver = shape == broadcast_shape::chain ? receiver - 1 : (receiver - 1) / 2;
    found.push_back(receiver);
  }
  return found;
}

result<std::optional<broadcast_shape>> read_shape(std::string_view name) {
  if (name == "auto") return std::optional<broadcast_shape>{};
  for (auto shape : std::array{broadcast_shape::direct, broadcast_shape::chain, broadcast_shape::tree})
    if (name == to_string(shape)) return std::optional(shape);
  return fail(errc::invalid_argument,
              "no broadcast plan is called \"" + std::string(name) + "\": there are auto, direct, chain, tree");
}

}  // namespace weir

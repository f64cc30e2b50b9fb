#pragma once
// Who reads a payload from whom, and in what chunks: the arithmetic, without any connection.
//
// The model is the usual one for one-port, full-duplex machines: a chunk of c bytes takes a + c / B seconds from one to
// the next (Hockney 1994, Parallel Computing 20(3)); a machine takes in one chunk and gives out one at a time. For S
// bytes to N receivers:
//   direct: N S/c (a + c/B)             the source sends everything N times
//   chain:  (S/c + N - 1) (a + c/B)     a pipeline (van de Geijn and Watts 1997; Thakur et al. 2005, section 3)
//   tree:   2 (S/c + h - 1) (a + c/B)   binary, pipelined, of height h: each machine sends every chunk twice
// No plan takes less than S/B. The chain's best chunk is sqrt(S B a / (N - 1)), where its derivative is zero. A real
// relay is more than one chunk behind its parent: one arrives, one is checked, some wait on the way. With k chunks for
// each hop, k (N - 1) stands for N - 1, and k (h - 1) for h - 1.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/transport/result.hpp"

namespace weir {

enum class broadcast_shape : std::uint8_t { direct, chain, tree };

/// "direct", "chain", "tree".
const char* to_string(broadcast_shape shape) noexcept;

/// What a link costs; measured, not believed.
struct link_costs {
  double bytes_per_second = 1e9;  ///< B, > 0
  double chunk_seconds = 1e-4;    ///< a, > 0: request, notice and check of a chunk, whatever its size
  double hop_chunks = 1;          ///< k, > 0: how many chunks a relay is behind its parent
};

/// Bounds of chosen chunks, in bytes.
inline constexpr std::uint64_t smallest_chunk = std::uint64_t{128} << 10;
inline constexpr std::uint64_t largest_chunk = std::uint64_t{32} << 20;

struct broadcast_plan {
  broadcast_shape shape = broadcast_shape::direct;
  std::uint64_t chunk = smallest_chunk;
  double seconds = 0;  ///< what the model predicts
};

/// Seconds that `shape` takes for `bytes` in chunks of `chunk` (> 0) to `receivers` machines; 0 for none of either.
double predict_seconds(broadcast_shape shape, std::uint64_t bytes, std::uint64_t chunk, std::size_t receivers,
                       const link_costs& costs);

/// The best chunk for a shape: within the bounds, a multiple of 64 KiB; for fewer than two receivers the largest that
/// still gives 64 chunks, at most 4 MiB, so that checking overlaps the transfer.
std::uint64_t best_chunk(broadcast_shape shape, std::uint64_t bytes, std::size_t receivers, const link_costs& costs);

/// The fastest shape, or the one that is asked for, with its best chunk. Of equals the one with fewer hops.
broadcast_plan choose_plan(std::optional<broadcast_shape> asked, std::uint64_t bytes, std::size_t receivers,
                           const link_costs& costs);

/// For receiver i of a plan, whom it reads from: its parent, and after that those to ask when the parent is gone, each
/// the parent of the one before. Numbers are receivers', ascending order of arrival; the source, always last, is not
/// listed.
std::vector<std::size_t> ancestors(broadcast_shape shape, std::size_t receiver);

/// "auto" is none. Error: invalid_argument, which names what there is.
result<std::optional<broadcast_shape>> read_shape(std::string_view name);

}  // namespace weir

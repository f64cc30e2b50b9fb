#pragma once
// Lossless differences between two versions of a model's parameters: which words changed, and by how much.
//
// An RL step changes about one bf16 weight in a hundred, mostly by one unit in the last place. A record holds, for one
// range of bytes, the gaps between the changed words and the integer differences of their bit patterns, both
// entropy-coded (range asymmetric numeral systems, Duda 2013, arXiv:1311.2540, with tables of the record's own): close
// to H(p) + p H(d) bits a word. It holds for every bit pattern: NaN payloads, -0, any dtype of 1, 2, 4 or 8 bytes. A
// record stands alone: records are coded, sent and applied in any order, by any number of threads.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "weir/transport/result.hpp"

namespace weir {

/// Bytes of a version that hold words of one size: a tensor, or a part of one.
struct delta_range {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;  ///< a multiple of `word`; below 2^32
  std::uint8_t word = 2;    ///< 1, 2, 4 or 8: the dtype's size
};

/// A tensor of `bytes` bytes at `offset`, divided for coding: ranges of at most `chunk` bytes (a multiple of 8).
/// Appends to `ranges`.
void divide_for_delta(std::uint64_t offset, std::uint64_t bytes, std::uint8_t word, std::uint32_t chunk,
                      std::vector<delta_range>& ranges);

enum class delta_method : std::uint8_t {
  same = 0,    ///< nothing changed
  sparse = 1,  ///< gaps and differences
  dense = 2,   ///< the new bytes as they are: where that is no longer
};

/// The head of a record, as it stands in its first 32 bytes (little-endian).
struct delta_head {
  std::uint64_t offset = 0;
  std::uint64_t checksum = 0;  ///< XXH3 (64 bits) of the range's new bytes, the seed being the offset
  std::uint32_t bytes = 0;
  std::uint32_t changed = 0;  ///< words
  std::uint32_t payload = 0;  ///< bytes that follow
  std::uint8_t word = 0;
  delta_method method = delta_method::same;
  std::uint16_t reserved = 0;
};
static_assert(sizeof(delta_head) == 32);

/// Codes ranges. One thread at a time; keeps its working memory (about four bytes a changed word) between calls.
class delta_encoder {
 public:
  delta_encoder();
  ~delta_encoder();
  delta_encoder(delta_encoder&&) noexcept;
  delta_encoder& operator=(delta_encoder&&) noexcept;

  /// Appends the record of `range`, which lies in `base` and `next`, two versions of equal size. Throws
  /// std::invalid_argument if it does not.
  void encode(std::span<const std::byte> base, std::span<const std::byte> next, const delta_range& range,
              std::vector<std::byte>& out);

 private:
  struct scratch;
  std::unique_ptr<scratch> scratch_;
};

/// The first record's head. invalid_data if `records` does not begin with a whole record, or one that no encoder
/// writes.
result<delta_head> read_delta_head(std::span<const std::byte> records);

/// Applies the first of `records` to `version`, which holds the base in that record's range and afterwards, after
/// success, the new version. Returns the record's length in bytes. Writes nowhere but in that range. Different records
/// may be applied by different threads at once.
/// Error: invalid_data (the record is damaged or truncated, or the base was another one; names the range), after which
/// the range's content is undefined.
result<std::size_t> apply_delta(std::span<const std::byte> records, std::span<std::byte> version);

/// The same, from `base` into another version's memory of equal size: `base` stays as it is.
result<std::size_t> apply_delta(std::span<const std::byte> records, std::span<const std::byte> base,
                                std::span<std::byte> into);

}  // namespace weir

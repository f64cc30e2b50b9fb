#pragma once
// Byte-pair merging (Sennrich, Haddow, Birch 2016): of all adjacent pairs the one of lowest rank, leftmost first,
// becomes one token, until no pair has a rank.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weir/actors/types.hpp"

namespace weir {

class bpe {
 public:
  struct merged {
    std::int32_t rank;
    token id;
  };

  void reserve(std::size_t merges);
  /// False if the pair is there already.
  bool add(token left, token right, merged result);

  /// Replaces the bytes' tokens in `symbols` by merged ones. O(n log n) for long words.
  void apply(std::vector<token>& symbols) const;

 private:
  const merged* find(token left, token right) const noexcept;
  void apply_short(std::vector<token>& symbols) const;
  void apply_long(std::vector<token>& symbols) const;

  struct entry {
    std::uint64_t key = ~std::uint64_t{0};
    merged value{};
  };
  std::vector<entry> table_;  ///< open addressing, a power of two long
  std::size_t count_ = 0;
};

}  // namespace weir

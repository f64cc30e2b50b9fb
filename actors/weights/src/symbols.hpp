#pragma once
// What the delta codec is made of: numbers as a symbol and bits beside it, and a table of the symbols' frequencies.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace weir::delta {

// A number below 16 is its own symbol. Above, each octave has two symbols, and the bits below the two that a symbol
// fixes stand beside it as they are: within half an octave the geometric gaps of a sparse change are nearly uniform.
inline constexpr unsigned direct = 16;
inline constexpr unsigned symbol_count = direct + 2 * 60;
inline constexpr unsigned scale_bits = 12;
inline constexpr std::uint32_t scale = 1U << scale_bits;
/// Lower end of a coder's state; it is filled up by 16 bits at a time.
inline constexpr std::uint32_t state_low = 1U << 16;

struct coded {
  std::uint8_t symbol;
  std::uint8_t extra;  ///< how many bits stand beside it
};

constexpr coded code(std::uint64_t number) noexcept {
  if (number < direct) return {static_cast<std::uint8_t>(number), 0};
  const unsigned octave = std::bit_width(number) - 1U;
  const auto half = static_cast<unsigned>(number >> (octave - 1)) & 1U;
  return {static_cast<std::uint8_t>(direct + (octave - 4) * 2 + half), static_cast<std::uint8_t>(octave - 1)};
}

constexpr std::uint8_t extra_of(unsigned symbol) noexcept {
  return static_cast<std::uint8_t>(symbol < direct ? 0 : 3 + (symbol - direct) / 2);
}

/// The least number with this symbol.
constexpr std::uint64_t first_of(unsigned symbol) noexcept {
  if (symbol < direct) return symbol;
  return (2ULL | ((symbol - direct) & 1U)) << extra_of(symbol);
}

/// How often each symbol is expected, in 4096ths; none or a sum of 4096.
using frequencies = std::array<std::uint16_t, symbol_count>;

/// Every symbol that was counted has at least one 4096th.
inline frequencies normalized(const std::array<std::uint32_t, symbol_count>& counts, std::uint64_t total) {
  frequencies f{};
  std::uint32_t sum = 0;
  for (unsigned s = 0; s < symbol_count; ++s) {
    if (counts[s] == 0) continue;
    f[s] =
        static_cast<std::uint16_t>(std::max<std::uint64_t>(1, (counts[s] * std::uint64_t{scale} + total / 2) / total));
    sum += f[s];
  }
  for (; sum > scale; --sum) --*std::max_element(f.begin(), f.end());
  if (sum > 0) *std::max_element(f.begin(), f.end()) += static_cast<std::uint16_t>(scale - sum);
  return f;
}

class bit_writer {
 public:
  void clear() noexcept {
    words_.clear();
    kept_ = 0;
    used_ = 0;
  }
  /// The low `count` bits of `bits`, the others being 0; up to 64.
  void put(std::uint64_t bits, unsigned count) {
    if (count > 32) {
      put(bits & 0xffffffffU, 32);
      put(bits >> 32, count - 32);
      return;
    }
    kept_ |= bits << used_;
    used_ += count;
    if (used_ < 32) return;
    words_.push_back(static_cast<std::uint32_t>(kept_));
    kept_ >>= 32;
    used_ -= 32;
  }
  /// What was put, filled up with zeros to whole words.
  std::span<const std::uint32_t> finish() {
    if (used_ > 0) words_.push_back(static_cast<std::uint32_t>(kept_));
    kept_ = 0;
    used_ = 0;
    return words_;
  }

 private:
  std::vector<std::uint32_t> words_;
  std::uint64_t kept_ = 0;
  unsigned used_ = 0;
};

/// Reads what a bit_writer wrote, from bytes at any alignment. Beyond the end it gives zeros, and `overrun` says so.
class bit_reader {
 public:
  explicit bit_reader(std::span<const std::byte> bytes) noexcept : bytes_(bytes.first(bytes.size() / 4 * 4)) {}
  std::uint64_t get(unsigned count) noexcept {
    if (count > 32) {
      const auto low = get(32);
      return low | get(count - 32) << 32;
    }
    if (have_ < count) {
      std::uint32_t word = 0;
      if (at_ < bytes_.size()) std::memcpy(&word, bytes_.data() + at_, 4);
      at_ += 4;
      kept_ |= std::uint64_t{word} << have_;
      have_ += 32;
    }
    const auto bits = kept_ & ((1ULL << count) - 1);
    kept_ >>= count;
    have_ -= count;
    return bits;
  }
  /// Leaves out what fills up the last word that was begun: the next bits are another writer's.
  void next_writer() noexcept {
    kept_ = 0;
    have_ = 0;
  }
  bool overrun() const noexcept { return at_ > bytes_.size(); }
  bool at_end() const noexcept { return at_ == bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::uint64_t kept_ = 0;
  unsigned have_ = 0;
};

/// A table as bits: the number of symbols, then for each the bits that its frequency has, and those but the first.
inline void put_frequencies(bit_writer& out, const frequencies& f) {
  unsigned used = symbol_count;
  while (used > 0 && f[used - 1] == 0) --used;
  out.put(used, 8);
  for (unsigned s = 0; s < used; ++s) {
    const auto width = static_cast<unsigned>(std::bit_width(f[s]));
    out.put(width, 4);
    if (width > 1) out.put(f[s] & ((1U << (width - 1)) - 1), width - 1);
  }
}

/// False if that is no table.
inline bool get_frequencies(bit_reader& in, frequencies& f) {
  f.fill(0);
  const auto used = in.get(8);
  if (used > symbol_count) return false;
  std::uint32_t sum = 0;
  for (unsigned s = 0; s < used; ++s) {
    const auto width = static_cast<unsigned>(in.get(4));
    if (width > scale_bits + 1) return false;
    if (width > 0) f[s] = static_cast<std::uint16_t>((1U << (width - 1)) | in.get(width - 1));
    sum += f[s];
  }
  return sum == scale && !in.overrun();
}

}  // namespace weir::delta

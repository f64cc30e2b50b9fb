#pragma once
// Random streams without state: a number is a pure function of the run's seed, the stream's name and its counters.
// So a checkpoint needs no generator state, and what one actor draws never depends on when another one draws.

#include <cstdint>
#include <string_view>

namespace weir {

/// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection that mixes all 64 bits.
constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// The seed of one stream: `derive_seed(run_seed, "episode", group, sample)`.
template <class... Counters>
constexpr std::uint64_t derive_seed(std::uint64_t seed, std::string_view stream, Counters... counters) noexcept {
  auto h = mix64(seed);
  for (char c : stream) h = mix64(h ^ static_cast<unsigned char>(c));
  ((h = mix64(h ^ static_cast<std::uint64_t>(counters))), ...);
  return h;
}

/// Uniform in [0, 1), 53 bits, from one mixed 64-bit value.
constexpr double to_unit(std::uint64_t bits) noexcept { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

/// A sequential stream with the interface of a standard uniform random bit generator.
class random_stream {
 public:
  using result_type = std::uint64_t;
  explicit constexpr random_stream(std::uint64_t seed) noexcept : state_(seed) {}
  static constexpr result_type min() noexcept { return 0; }
  static constexpr result_type max() noexcept { return ~result_type{0}; }
  constexpr result_type operator()() noexcept { return mix64(state_++ * 0xD1342543DE82EF95ULL + 1); }
  /// Uniform in [0, n), n > 0; the bias is below n / 2^64.
  constexpr std::uint64_t below(std::uint64_t n) noexcept {
    __extension__ using wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<wide>((*this)()) * n) >> 64);
  }
  constexpr double uniform() noexcept { return to_unit((*this)()); }

 private:
  std::uint64_t state_;
};

}  // namespace weir

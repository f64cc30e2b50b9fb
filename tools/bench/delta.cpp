// The lossless delta of bf16 weights: its size against the entropy of the change, its time against memcpy of both
// versions. Changes of three kinds: a step of AdamW in fp32 that is rounded to bf16 before and after, and 1 % and 0.5 %
// of the words moved by one unit in the last place.
#include "weir/weights/delta.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <numbers>

#include "bench.hpp"
#include "weir/runtime/random.hpp"

namespace {

using weights = std::vector<std::uint16_t>;
constexpr std::uint32_t chunk = 2U << 20;

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
}

std::vector<float> normal(weir::random_stream& random, std::size_t count) {
  std::vector<float> values(count);
  for (auto& v : values)
    v = static_cast<float>(std::sqrt(-2 * std::log(1 - random.uniform())) *
                           std::cos(2 * std::numbers::pi * random.uniform()));
  return values;
}

/// What AdamW (betas 0.9, 0.95) multiplies the learning rate with, after 20 steps of normal gradients.
std::vector<float> adam_directions(weir::random_stream& random, std::size_t count) {
  std::vector<float> m(count), v(count);
  for (int step = 0; step < 20; ++step) {
    const auto gradient = normal(random, count);
    for (std::size_t i = 0; i < count; ++i) {
      m[i] = 0.9F * m[i] + 0.1F * gradient[i];
      v[i] = 0.95F * v[i] + 0.05F * gradient[i] * gradient[i];
    }
  }
  const float m_scale = 1 / (1 - std::pow(0.9F, 20)), v_scale = 1 / (1 - std::pow(0.95F, 20));
  for (std::size_t i = 0; i < count; ++i) m[i] = m[i] * m_scale / (std::sqrt(v[i] * v_scale) + 1e-8F);
  return m;
}

/// The bits that any code needs which knows how often a word changes, and how often by how much, and no more.
double entropy_bytes(const weights& base, const weights& next, double& changed) {
  std::map<std::uint16_t, std::size_t> differences;
  std::size_t count = 0;
  for (std::size_t i = 0; i < base.size(); ++i)
    if (base[i] != next[i]) ++differences[static_cast<std::uint16_t>(next[i] - base[i])], ++count;
  const auto n = static_cast<double>(base.size()), c = static_cast<double>(count);
  changed = c / n;
  double bits = -c * std::log2(changed) - (n - c) * std::log2(1 - changed);
  for (const auto& [difference, times] : differences)
    bits -= static_cast<double>(times) * std::log2(static_cast<double>(times) / c);
  return bits / 8;
}

void measure(weir::bench::report& report, const std::string& name, const weights& base, const weights& next,
             std::optional<double> target) {
  const auto was = std::as_bytes(std::span(base)), is = std::as_bytes(std::span(next));
  double changed = 0;
  const auto bound = entropy_bytes(base, next, changed);
  std::vector<weir::delta_range> ranges;
  weir::divide_for_delta(0, is.size(), 2, chunk, ranges);
  weir::delta_encoder encoder;
  std::vector<std::byte> records;
  weights copy(base.size());
  const auto into = std::as_writable_bytes(std::span(copy));
  const auto memcpy_time = weir::bench::best_seconds(5, [&] {
    std::memcpy(into.data(), was.data(), was.size());
    std::memcpy(into.data(), is.data(), is.size());
  });
  const auto encoding = weir::bench::best_seconds(5, [&] {
    records.clear();
    for (const auto& range : ranges) encoder.encode(was, is, range, records);
  });
  bool exact = true;
  const auto applying = weir::bench::best_seconds(5, [&] {
    for (std::span<const std::byte> left = records; !left.empty() && exact;) {
      const auto length = weir::apply_delta(left, was, into);
      exact = length.has_value();
      if (exact) left = left.subspan(*length);
    }
  });
  exact = exact && copy == next;
  const auto size = static_cast<double>(records.size());
  report.add(name + ": words changed", changed * 100, "%");
  report.add(name + ": bytes of a version / delta", static_cast<double>(is.size()) / size, "x", target);
  report.add(name + ": entropy / delta", bound / size, "x", 1 / 1.1);
  report.add(name + ": memcpy of both / encode", memcpy_time / encoding, "x", 0.4);
  report.add(name + ": memcpy of both / apply into the other", memcpy_time / applying, "x", 0.6);
  report.add(name + ": the same bits", exact ? 1 : 0, "", 1);
}

}  // namespace

int main(int argc, char** argv) {
  weir::bench::report report("delta", argc, argv);
  const std::size_t count = report.quick() ? 20'000'000 : 100'000'000;
  weir::random_stream random(1);
  // Pools whose lengths share no factor: every weight meets another direction each time round.
  const auto values = normal(random, 1'000'003), directions = adam_directions(random, 299'993);
  weights base(count), next(count);
  for (std::size_t i = 0; i < count; ++i) {
    const float master = 0.02F * values[i % values.size()] * (1 + static_cast<float>(i) * 1e-9F);
    base[i] = to_bf16(master);
    next[i] = to_bf16(master - 1e-6F * directions[i % directions.size()] - 1e-6F * 0.01F * master);
  }
  measure(report, "AdamW, lr 1e-6", base, next, {});
  for (const auto& [fraction, target] : {std::pair{0.01, 150.0}, {0.005, 250.0}}) {
    next = base;
    for (auto& w : next)
      if (random.uniform() < fraction) w = static_cast<std::uint16_t>(random.below(2) == 0 ? w + 1 : w - 1);
    measure(report, fraction == 0.01 ? "1 %" : "0.5 %", base, next, target);
  }
  return report.finish();
}

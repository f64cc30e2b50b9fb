#include "weir/trainer/advantages.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace weir {

std::vector<double> group_advantages(std::span<const double> rewards, advantage_kind kind, double eps) {
  const auto n = static_cast<double>(rewards.size());
  std::vector<double> out(rewards.size(), 0.0);
  if (rewards.size() < 2 || std::all_of(rewards.begin(), rewards.end(), [&](double r) { return r == rewards[0]; }))
    return out;
  const double sum = std::accumulate(rewards.begin(), rewards.end(), 0.0);
  const double mean = sum / n;
  double squares = 0;
  for (double r : rewards) squares += (r - mean) * (r - mean);
  for (std::size_t i = 0; i < rewards.size(); ++i) switch (kind) {
      case advantage_kind::grpo:
        out[i] = (rewards[i] - mean) / (std::sqrt(squares / (n - 1)) + eps);
        break;
      case advantage_kind::grpo_population:
        out[i] = (rewards[i] - mean) / (std::sqrt(squares / n) + eps);
        break;
      case advantage_kind::dr_grpo:
        out[i] = rewards[i] - mean;
        break;
      case advantage_kind::rloo:
        out[i] = rewards[i] - (sum - rewards[i]) / (n - 1);
        break;
    }
  return out;
}

}  // namespace weir

#pragma once
#include <span>
#include <string>
#include <vector>

namespace weir {

/// How a group's rewards become advantages.
enum class advantage_kind {
  grpo,             ///< (r - mean) / (std + eps), std with n - 1 (Shao et al. 2024, as its implementations compute it)
  grpo_population,  ///< the same with n
  dr_grpo,          ///< r - mean (Liu et al. 2025)
  rloo,             ///< r - mean of the others (Ahmadian et al. 2024)
};

/// One advantage a reward. Equal rewards give exactly 0, as does a group of one.
std::vector<double> group_advantages(std::span<const double> rewards, advantage_kind kind, double eps);

}  // namespace weir

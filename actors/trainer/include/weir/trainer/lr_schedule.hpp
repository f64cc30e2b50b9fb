#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace weir {

enum class lr_decay { constant, linear, cosine };

/// The learning rate of each step: a linear rise over `warmup_steps`, then from `lr` towards 0 at `total_steps` or not.
struct lr_schedule {
  double lr = 1e-4;
  std::uint64_t warmup_steps = 0;
  std::uint64_t total_steps = 1;
  lr_decay decay = lr_decay::constant;

  /// Of the step that is taken after `done` steps.
  double at(std::uint64_t done) const noexcept {
    if (done < warmup_steps) return lr * static_cast<double>(done + 1) / static_cast<double>(warmup_steps);
    if (decay == lr_decay::constant || total_steps <= warmup_steps) return lr;
    const auto share =
        std::min(1.0, static_cast<double>(done - warmup_steps) / static_cast<double>(total_steps - warmup_steps));
    return decay == lr_decay::linear ? lr * (1 - share) : lr * 0.5 * (1 + std::cos(std::numbers::pi * share));
  }
};

}  // namespace weir

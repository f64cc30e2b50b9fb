#pragma once
// From trajectories to packed tensors.

#include <span>
#include <vector>

#include "weir/actors/types.hpp"
#include "weir/policy/causal_lm.hpp"
#include "weir/policy/torch.hpp"

namespace weir {

/// One trajectory in a training batch.
struct sample {
  const trajectory* record = nullptr;
  double advantage = 0;
  std::int64_t produced = 0;    ///< tokens with mask 1
  std::vector<float> proximal;  ///< their log-probabilities before the step, once known
};

/// Checks lengths and values; the error names the group. Returns the number of produced tokens.
result<std::int64_t> check_trajectory(const trajectory& t, std::int64_t vocab);

/// Several samples as the model takes them, and where each produced token lies in the padded [B, T] matrices.
struct micro_batch {
  packed_sequences packed;
  std::vector<std::int64_t> targets;  ///< indices of produced tokens into packed.tokens
  at::Tensor places;                  ///< int64 [targets]: row * T + column
  std::int64_t rows = 0;              ///< B
  std::int64_t columns = 0;           ///< T
  std::span<sample> samples;

  /// A [B, T] fp32 matrix whose own places are filled by value(sample, position in the trajectory, index among
  /// produced).
  template <class Value>
  at::Tensor matrix(Value value) const {
    auto out = at::zeros({rows, columns});
    auto* to = out.data_ptr<float>();
    for (std::size_t b = 0; b < samples.size(); ++b) {
      std::int64_t n = 0;
      const auto& mask = samples[b].record->mask;
      for (std::size_t i = 0; i < mask.size(); ++i)
        if (mask[i] != 0) {
          to[static_cast<std::int64_t>(b) * columns + n] = static_cast<float>(value(samples[b], i, n));
          ++n;
        }
    }
    return out;
  }
  /// Flat values [targets] into [B, T]; differentiable.
  at::Tensor spread(const at::Tensor& flat) const;
};

/// Cuts samples into micro-batches of at most `tokens` tokens each, at least one sample.
std::vector<micro_batch> make_micro_batches(std::span<sample> samples, std::int64_t tokens, const at::Device& device);

}  // namespace weir

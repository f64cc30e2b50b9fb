#pragma once
// Choosing a token from logits. No actor, no tensor.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "weir/actors/types.hpp"
#include "weir/transport/result.hpp"

namespace weir {

struct drawn_token {
  token id = 0;
  float logprob = 0;  ///< of the distribution it was drawn from; see sampling_params
};

/// Says which parameter is out of range, if one is. `vocab_size` bounds the stop tokens.
result<void> check_sampling(const sampling_params& params, std::int64_t vocab_size);

/// Holds scratch memory, so that drawing allocates nothing once it is warm. One thread at a time.
class sampler {
 public:
  /// Draws from `logits` (at least one, fp32) by the inverse of the distribution function at `uniform` in [0, 1): a
  /// pure function of its arguments. Among equal logits the smaller id counts as the larger one. `numeric` if a logit
  /// is NaN or none is finite; minus infinity means that a token cannot be drawn.
  result<drawn_token> draw(std::span<const float> logits, const sampling_params& params, double uniform);

 private:
  struct candidate {
    float logit = 0;
    token id = 0;
  };
  drawn_token draw_filtered(std::span<const float> logits, const sampling_params& params, double uniform,
                            float largest);

  std::vector<double> weights_;
  std::vector<candidate> candidates_;
};

}  // namespace weir

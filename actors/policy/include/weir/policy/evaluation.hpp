#pragma once
#include "weir/policy/causal_lm.hpp"
#include "weir/policy/torch.hpp"

namespace weir {

struct lm_evaluation {
  at::Tensor logprobs;  ///< [targets], fp32
  at::Tensor entropy;   ///< [targets], fp32, nats
};

}  // namespace weir

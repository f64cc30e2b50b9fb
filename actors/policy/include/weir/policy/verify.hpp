#pragma once
#include <filesystem>

#include "weir/actors/verification.hpp"
#include "weir/transport/result.hpp"

namespace weir {

/// Holds a model directory against reference values in it: golden.safetensors with input_ids and attention_mask (right
/// padded), and any of logits, token_logprobs, greedy_32; golden.json with any of losses (three AdamW steps, lr 1e-3,
/// betas 0.9/0.95, eps 1e-8, weight decay 0.01), grad_norms, param_sums_after_3_steps. What is missing is noted.
/// Tolerances: 1e-4 absolute for logits and log-probabilities, 1e-4 relative for losses and gradient norms, equality
/// for greedy tokens. An error means that the files could not be read.
result<verification> verify_policy(const std::filesystem::path& directory);

}  // namespace weir

#pragma once
// Off-policy objectives, one function each, on padded [B, T] tensors. An objective of one's own is a function of the
// same type.

#include <functional>
#include <string>
#include <vector>

#include "weir/policy/torch.hpp"
#include "weir/trainer/advantages.hpp"

namespace weir {

/// How per-token losses become one number. Every way is a weighted sum, with weights from the mask of the whole batch,
/// so that micro-batches add up to exactly the batch's loss.
enum class aggregation {
  token_mean,                               ///< over all tokens of the batch (DAPO)
  sequence_mean_token_mean,                 ///< over each sequence's tokens, then over sequences (GRPO)
  sequence_mean_token_sum,                  ///< sums over tokens, mean over sequences
  sequence_mean_token_sum_over_max_length,  ///< the same divided by max_length (Dr. GRPO)
};

/// Knobs of all objectives; each uses its own.
struct objective_settings {
  double eps_low = 0.2;
  double eps_high = 0.28;
  double dual_clip = 3.0;
  double is_cap = 2.0;
  double is_low = 0.5;
  double is_high = 2.0;
};

/// All [B, T], of one floating type. Only `logp` carries a gradient.
struct objective_inputs {
  at::Tensor logp;
  at::Tensor logp_behaviour;
  at::Tensor logp_proximal;  ///< of the policy before the step; equal to logp at its first minibatch
  at::Tensor advantages;
  at::Tensor mask;  ///< 1 on a sequence's own tokens, 0 on padding
};

struct objective_terms {
  at::Tensor loss;     ///< [B, T], per token
  at::Tensor clipped;  ///< [B, T], 1 where the ratio was clipped so that the token gives no gradient
};

using objective = std::function<objective_terms(const objective_inputs&, const objective_settings&)>;

/// PPO's clipped surrogate against the behaviour policy (Schulman et al. 2017), bounds apart (DAPO 2025).
objective_terms ppo_clip(const objective_inputs& in, const objective_settings& s);
/// The same with the loss of negative advantages bounded (Ye et al. 2020).
objective_terms ppo_dual_clip(const objective_inputs& in, const objective_settings& s);
/// Clips against the proximal policy and weights by proximal / behaviour (Hilton et al. 2022; AReaL, arXiv 2505.24298).
objective_terms decoupled_ppo(const objective_inputs& in, const objective_settings& s);
/// decoupled_ppo with the weight capped at is_cap.
objective_terms truncated_is(const objective_inputs& in, const objective_settings& s);
/// decoupled_ppo without the tokens whose weight lies outside [is_low, is_high].
objective_terms masked_is(const objective_inputs& in, const objective_settings& s);
/// Clips the sequence's mean ratio (Zheng et al. 2025); aggregate with sequence_mean_token_mean.
objective_terms gspo(const objective_inputs& in, const objective_settings& s);
/// REINFORCE weighted by the clipped ratio, which carries no gradient (MiniMax-M1, 2025).
objective_terms cispo(const objective_inputs& in, const objective_settings& s);
/// -A log p (Williams 1992).
objective_terms reinforce(const objective_inputs& in, const objective_settings& s);

/// By the names above; null if there is none.
objective find_objective(const std::string& name);
std::vector<std::string> objective_names();

/// Weights [B, T] for `mask` [B, T]: sum(weights * loss) is the aggregate. `max_length` is for the last kind.
at::Tensor aggregation_weights(const at::Tensor& mask, aggregation how, double max_length);

/// What a step looks at besides its loss, over the tokens of `mask`.
struct divergence {
  double clip_fraction = 0;
  double kl_behaviour = 0;            ///< mean of log behaviour - log policy (k1)
  double importance_weight_mean = 0;  ///< mean of proximal / behaviour
  double effective_sample_size = 0;   ///< (sum w)^2 / (n sum w^2) of the same weights, in (0, 1]
};

/// Sums that add over micro-batches.
class divergence_sums {
 public:
  void add(const objective_inputs& in, const at::Tensor& clipped);
  divergence mean() const;

 private:
  double tokens_ = 0, clipped_ = 0, kl_ = 0, weight_ = 0, weight_squared_ = 0;
};

}  // namespace weir

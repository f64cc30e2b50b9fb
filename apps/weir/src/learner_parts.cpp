#include "learner_parts.hpp"

#include <map>
#include <utility>

namespace weir::app {

namespace {

const std::map<std::string, advantage_kind> advantage_kinds{{"grpo", advantage_kind::grpo},
                                                            {"grpo_population", advantage_kind::grpo_population},
                                                            {"dr_grpo", advantage_kind::dr_grpo},
                                                            {"rloo", advantage_kind::rloo}};
const std::map<std::string, aggregation> aggregations{
    {"token_mean", aggregation::token_mean},
    {"sequence_mean_token_mean", aggregation::sequence_mean_token_mean},
    {"sequence_mean_token_sum", aggregation::sequence_mean_token_sum},
    {"sequence_mean_token_sum_over_max_length", aggregation::sequence_mean_token_sum_over_max_length}};

}  // namespace

learner make_learner(const app_config& config, causal_lm model) {
  const auto& c = config.trainer;
  learner_settings s;
  s.loss = find_objective(c.objective);
  s.loss_settings = {c.clip_low, c.clip_high, c.dual_clip, c.is_cap, c.is_low, c.is_high};
  s.needs_proximal = c.objective == "decoupled_ppo" || c.objective == "truncated_is" || c.objective == "masked_is";
  s.aggregate = aggregations.at(c.aggregation);
  s.advantages = advantage_kinds.at(c.advantages);
  s.advantage_eps = c.advantage_eps;
  s.max_length = static_cast<double>(config.rollout.max_tokens) * config.environment.max_turns;
  s.temperature = config.rollout.temperature;
  s.entropy_bonus = c.entropy_bonus;
  s.passes = c.passes;
  s.minibatches = c.minibatches;
  s.micro_batch_tokens = c.micro_batch_tokens;
  s.skip_zero_advantage = c.skip_zero_advantage;
  s.optimizer = {c.lr, c.beta1, c.beta2, c.eps, c.weight_decay};
  s.clip_norm = c.clip_norm;
  s.trained = c.tensors;
  return learner(std::move(model), s);
}

}  // namespace weir::app

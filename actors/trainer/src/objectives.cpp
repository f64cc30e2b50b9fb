#include "weir/trainer/objectives.hpp"

#include <array>
#include <utility>

namespace weir {

namespace {

/// -min(r A, clip(r) A), and where the clipped side was the smaller one.
objective_terms clipped_surrogate(const at::Tensor& ratio, const at::Tensor& advantages, const objective_settings& s) {
  const auto bounded = ratio.clamp(1 - s.eps_low, 1 + s.eps_high);
  const auto plain = ratio * advantages, held = bounded * advantages;
  return {-at::minimum(plain, held), (held < plain).to(ratio.scalar_type())};
}

at::Tensor importance(const objective_inputs& in) { return (in.logp_proximal - in.logp_behaviour).exp().detach(); }

objective_terms decoupled(const objective_inputs& in, const objective_settings& s, const at::Tensor& weight) {
  auto terms = clipped_surrogate((in.logp - in.logp_proximal).exp(), in.advantages, s);
  return {terms.loss * weight, terms.clipped};
}

}  // namespace

objective_terms ppo_clip(const objective_inputs& in, const objective_settings& s) {
  return clipped_surrogate((in.logp - in.logp_behaviour).exp(), in.advantages, s);
}

objective_terms ppo_dual_clip(const objective_inputs& in, const objective_settings& s) {
  auto terms = ppo_clip(in, s);
  const auto bound = -s.dual_clip * in.advantages;
  const auto bounded = at::logical_and(in.advantages<0, terms.loss> bound);
  return {at::where(bounded, bound, terms.loss), at::maximum(terms.clipped, bounded.to(terms.clipped.scalar_type()))};
}

objective_terms decoupled_ppo(const objective_inputs& in, const objective_settings& s) {
  return decoupled(in, s, importance(in));
}

objective_terms truncated_is(const objective_inputs& in, const objective_settings& s) {
  return decoupled(in, s, importance(in).clamp_max(s.is_cap));
}

objective_terms masked_is(const objective_inputs& in, const objective_settings& s) {
  const auto weight = importance(in);
  const auto kept = at::logical_and(weight >= s.is_low, weight <= s.is_high);
  return decoupled(in, s, at::where(kept, weight, at::zeros_like(weight)));  // also a weight of infinity
}

objective_terms gspo(const objective_inputs& in, const objective_settings& s) {
  const auto length = in.mask.sum(1, true).clamp_min(1);
  const auto ratio = (((in.logp - in.logp_behaviour) * in.mask).sum(1, true) / length).exp();
  auto terms = clipped_surrogate(ratio.expand_as(in.logp), in.advantages, s);
  return terms;
}

objective_terms cispo(const objective_inputs& in, const objective_settings& s) {
  const auto ratio = (in.logp - in.logp_behaviour).exp().detach();
  const auto bounded = ratio.clamp(1 - s.eps_low, 1 + s.eps_high);
  return {-bounded * in.advantages * in.logp, (ratio != bounded).to(in.logp.scalar_type())};
}

objective_terms reinforce(const objective_inputs& in, const objective_settings&) {
  return {-in.advantages * in.logp, at::zeros_like(in.mask)};
}

namespace {
using entry = std::pair<const char*, objective_terms (*)(const objective_inputs&, const objective_settings&)>;
constexpr std::array<entry, 8> known{{{"ppo_clip", ppo_clip},
                                      {"ppo_dual_clip", ppo_dual_clip},
                                      {"decoupled_ppo", decoupled_ppo},
                                      {"truncated_is", truncated_is},
                                      {"masked_is", masked_is},
                                      {"gspo", gspo},
                                      {"cispo", cispo},
                                      {"reinforce", reinforce}}};
}  // namespace

objective find_objective(const std::string& name) {
  for (const auto& [n, f] : known)
    if (name == n) return f;
  return {};
}

std::vector<std::string> objective_names() {
  std::vector<std::string> names;
  for (const auto& [n, f] : known) names.emplace_back(n);
  return names;
}

at::Tensor aggregation_weights(const at::Tensor& mask, aggregation how, double max_length) {
  const auto sequences = static_cast<double>(mask.size(0));
  switch (how) {
    case aggregation::token_mean:
      return mask / mask.sum().clamp_min(1);
    case aggregation::sequence_mean_token_mean:
      return mask / mask.sum(1, true).clamp_min(1) / sequences;
    case aggregation::sequence_mean_token_sum:
      return mask / sequences;
    case aggregation::sequence_mean_token_sum_over_max_length:
      return mask / (sequences * max_length);
  }
  return mask;
}

void divergence_sums::add(const objective_inputs& in, const at::Tensor& clipped) {
  at::NoGradGuard none;
  const auto mask = in.mask.to(at::kDouble);
  const auto difference = (in.logp - in.logp_behaviour).to(at::kDouble) * mask;
  const auto weight = (in.logp_proximal - in.logp_behaviour).to(at::kDouble).exp() * mask;
  const auto sums = at::stack({mask.sum(), (clipped.to(at::kDouble) * mask).sum(), -difference.sum(), weight.sum(),
                               weight.square().sum()})
                        .to(at::kCPU);
  const auto* v = sums.data_ptr<double>();
  tokens_ += v[0];
  clipped_ += v[1];
  kl_ += v[2];
  weight_ += v[3];
  weight_squared_ += v[4];
}

divergence divergence_sums::mean() const {
  if (tokens_ == 0) return {0, 0, 1, 1};
  return {clipped_ / tokens_, kl_ / tokens_, weight_ / tokens_, weight_ * weight_ / (tokens_ * weight_squared_)};
}

}  // namespace weir

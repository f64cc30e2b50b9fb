#include "weir/rollout/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace weir {

result<void> check_sampling(const sampling_params& p, std::int64_t vocab_size) {
  auto refuse = [](const char* what, auto found) {
    return fail(errc::invalid_argument, std::string("sampling: ") + what + ", found " + std::to_string(found));
  };
  if (!(p.temperature >= 0) || !std::isfinite(p.temperature))
    return refuse("temperature is 0 (greedy) or more", p.temperature);
  if (!(p.top_p > 0 && p.top_p <= 1)) return refuse("top_p is above 0 and at most 1", p.top_p);
  if (p.top_k < 0) return refuse("top_k is 0 (no limit) or more", p.top_k);
  if (p.max_tokens < 1) return refuse("max_tokens is 1 or more", p.max_tokens);
  for (auto t : p.stop_tokens)
    if (t < 0 || t >= vocab_size) return refuse("a stop token is in the vocabulary", t);
  return {};
}

namespace {

/// The first place whose running sum exceeds uniform * total; of what has weight, so that rounding at the end of the
/// sum cannot choose a token of weight 0.
std::size_t invert(std::span<const double> weights, double total, double uniform) {
  const auto wanted = uniform * total;
  double sum = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    sum += weights[i];
    last = i;
    if (sum > wanted) return i;
  }
  return last;
}

}  // namespace

result<drawn_token> sampler::draw(std::span<const float> logits, const sampling_params& params, double uniform) {
  auto largest = -std::numeric_limits<float>::infinity();
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return fail(errc::numeric, "the logit of token " + std::to_string(i) + " is NaN");
    if (logits[i] > largest) {
      largest = logits[i];
      best = i;
    }
  }
  if (!std::isfinite(largest)) return fail(errc::numeric, "no logit is finite");
  const bool greedy = params.temperature == 0;
  if (!greedy && (params.top_p < 1 || (params.top_k > 0 && params.top_k < static_cast<std::int64_t>(logits.size()))))
    return draw_filtered(logits, params, uniform, largest);

  const double scale = greedy ? 1.0 : 1.0 / static_cast<double>(params.temperature);
  weights_.resize(logits.size());
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) total += weights_[i] = std::exp((logits[i] - largest) * scale);
  const auto chosen = greedy ? best : invert(weights_, total, uniform);
  return drawn_token{static_cast<token>(chosen),
                     static_cast<float>((logits[chosen] - largest) * scale - std::log(total))};
}

drawn_token sampler::draw_filtered(std::span<const float> logits, const sampling_params& params, double uniform,
                                   float largest) {
  const double scale = 1.0 / static_cast<double>(params.temperature);
  candidates_.clear();
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) candidates_.push_back({logits[i], static_cast<token>(i)});
  auto before = [](const candidate& a, const candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  auto kept = candidates_.size();
  if (params.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(params.top_k));
  if (kept < candidates_.size())
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(kept), candidates_.end(),
                     before);
  std::sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(kept), before);

  weights_.resize(kept);
  for (std::size_t i = 0; i < kept; ++i) total += weights_[i] = std::exp((candidates_[i].logit - largest) * scale);
  // The smallest set of the likeliest tokens whose probability reaches top_p; never empty.
  if (params.top_p < 1) {
    double sum = 0;
    std::size_t n = 0;
    while (n < kept && sum < params.top_p * total) sum += weights_[n++];
    kept = std::max<std::size_t>(n, 1);
    total = 0;
    for (std::size_t i = 0; i < kept; ++i) total += weights_[i];
  }
  const auto chosen = invert(std::span(weights_).first(kept), total, uniform);
  const auto& c = candidates_[chosen];
  return {c.id, static_cast<float>((c.logit - largest) * scale - std::log(total))};
}

}  // namespace weir

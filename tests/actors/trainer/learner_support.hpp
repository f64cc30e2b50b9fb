#pragma once
// Batches for the learner's tests.

#include <functional>

#include "policy_support.hpp"
#include "weir/policy/evaluation.hpp"
#include "weir/trainer/learner.hpp"

namespace weir::testing {

inline causal_lm small_model() { return causal_lm::random(small_config(), 41); }

/// Gradients as they are, not clipped.
inline learner_settings plain_settings() {
  learner_settings s;
  s.clip_norm = 0;
  return s;
}

/// Sets the log-probabilities of what was produced to the model's own at `temperature`, moved by up to `off`.
inline void set_behaviour(trajectory& t, causal_lm& model, double off, double temperature = 1) {
  at::NoGradGuard none;
  const auto batch = packed({t.tokens});
  const auto own = model.evaluate(batch, all_targets(batch), static_cast<float>(temperature)).logprobs;
  random_stream random(derive_seed(17, "behaviour", t.group, t.sample));
  for (std::size_t i = 1; i < t.tokens.size(); ++i)
    if (t.mask[i] != 0)
      t.logprobs[i] =
          own[static_cast<std::int64_t>(i) - 1].item<float>() + static_cast<float>(off * (2 * random.uniform() - 1));
}

/// A prompt, an answer, and half of the time another turn; 4 to 24 tokens.
inline trajectory random_trajectory(std::uint64_t group, std::uint32_t sample, causal_lm& model, double off,
                                    double temperature = 1) {
  random_stream random(derive_seed(19, "trajectory", group, sample));
  trajectory t;
  t.group = group;
  t.sample = sample;
  auto turn = [&](std::uint8_t mask, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      t.tokens.push_back(static_cast<token>(random.below(37)));
      t.mask.push_back(mask);
    }
  };
  turn(0, 1 + random.below(6));
  turn(1, 3 + random.below(6));
  if (random.below(2) == 0) {
    turn(0, 1 + random.below(4));
    turn(1, 1 + random.below(6));
    turn(0, random.below(3));
  }
  t.logprobs.assign(t.tokens.size(), 0.0F);
  t.versions.assign(t.tokens.size(), 0);
  t.reward = random.uniform();
  t.success = t.reward > 0.5;
  set_behaviour(t, model, off, temperature);
  return t;
}

/// Groups numbered from `first` on.
inline std::vector<trajectory_group> random_batch(std::size_t groups, std::uint32_t samples, double off = 0.4,
                                                  std::uint64_t first = 3, double temperature = 1) {
  auto model = small_model();
  std::vector<trajectory_group> out;
  for (std::uint64_t g = first; g < first + groups; ++g) {
    out.push_back({g, 0, {}});
    for (std::uint32_t s = 0; s < samples; ++s)
      out.back().trajectories.push_back(random_trajectory(g, s, model, off, temperature));
  }
  return out;
}

/// A digest of everything that a learner's future depends on.
inline std::size_t state_of(const learner& l) {
  temporary_folder folder;
  if (auto saved = l.save_state(folder.path() / "state"); !saved) throw std::runtime_error(saved.error().message);
  return std::hash<std::string>{}(slurp(folder.path() / "state"));
}

}  // namespace weir::testing

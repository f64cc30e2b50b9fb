#pragma once
// The mathematics of a training step: from groups of trajectories to new parameters. No actor; the trainer actor owns
// one. All or nothing: a step that fails leaves parameters and optimizer as they were, bit for bit.

#include <filesystem>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "weir/actors/types.hpp"
#include "weir/policy/adamw.hpp"
#include "weir/policy/causal_lm.hpp"
#include "weir/trainer/objectives.hpp"

namespace weir {

struct learner_settings {
  objective loss = decoupled_ppo;
  objective_settings loss_settings;
  bool needs_proximal = true;  ///< the loss reads logp_proximal
  aggregation aggregate = aggregation::token_mean;
  advantage_kind advantages = advantage_kind::grpo;
  double advantage_eps = 1e-4;
  double max_length = 1;                    ///< for sequence_mean_token_sum_over_max_length
  double temperature = 1;                   ///< what the behaviour was sampled at
  double entropy_bonus = 0;                 ///< times the mean entropy, subtracted from the loss
  std::uint32_t passes = 1;                 ///< over each batch
  std::uint32_t minibatches = 1;            ///< optimizer steps a pass
  std::int64_t micro_batch_tokens = 16384;  ///< tokens (prompts included) whose activations are held at once
  /// Leaves out sequences whose advantage is 0 while computing: with no entropy bonus they have no gradient, so that
  /// nothing changes but the time. Divergences and entropy are then of the others.
  bool skip_zero_advantage = true;
  adamw_settings optimizer{2e-4, 0.9, 0.95, 1e-8, 0.01};
  double clip_norm = 1;  ///< of the whole gradient; 0: off
  /// Tensors that learn, by name; a * stands for any characters. The others stay as they are. None: all.
  std::vector<std::string> trained;
};

/// What one step did. Means are over the tokens trained on, at the first pass.
struct step_report {
  double loss = 0;           ///< mean over the minibatches
  double gradient_norm = 0;  ///< before clipping, mean over optimizer steps
  divergence off_policy;
  double entropy = 0;                  ///< nats, of the policy at the sampling temperature
  double reward = 0;                   ///< mean over the batch's trajectories
  double success = 0;                  ///< fraction of them
  std::int64_t groups_trained = 0;     ///< with rewards that differ; the others have no advantage, and no gradient
  std::int64_t sequences = 0;          ///< in the batch
  std::int64_t sequences_trained = 0;  ///< not left out
  std::int64_t tokens_trained = 0;
  double seconds = 0;
};

class learner {
 public:
  /// Takes the model. Call from the thread that will train, or hand it over before the first step. Throws
  /// std::invalid_argument if a pattern of `trained` has no tensor.
  learner(causal_lm model, learner_settings settings);
  ~learner();
  learner(learner&&) noexcept;
  learner& operator=(learner&&) noexcept;

  /// One step on a batch, at learning rate `lr`. A minibatch without gradient, as when all advantages are 0, makes no
  /// optimizer step. Errors: numeric (NaN or infinity in a trajectory or the loss: names version and group; in the
  /// gradient: names version and tensor), invalid_argument (a malformed trajectory or rate), unavailable (stopped).
  /// Exceptions of libtorch and of the objective leave the step undone, too.
  result<step_report> step(std::span<const trajectory_group> batch, weight_version version, double lr,
                           const std::stop_token& stop = {});

  /// One step of supervised learning: mean cross-entropy of the tokens with mask 1. Returns the loss. Errors as of
  /// `step`; `stop` is looked at before each micro-batch.
  result<double> supervised_step(std::span<const trajectory> batch, double lr, const std::stop_token& stop = {});

  /// Forgets moments and step count, as between warm start and reinforcement learning.
  void reset_optimizer();

  causal_lm& model() noexcept;
  const causal_lm& model() const noexcept;

  /// The optimizer's state (safetensors: exp_avg, exp_avg_sq; step count in the metadata). Together with the model's
  /// fp32 parameters, which are in it too, training goes on bit for bit as if it had not stopped.
  result<void> save_state(const std::filesystem::path& file) const;
  result<void> load_state(const std::filesystem::path& file);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace weir

#pragma once
// The actor that trains: asks for batches, makes steps, writes each version where engines read it, and has checkpoints
// made. What it computes is the learner's.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "weir/actors/data_position.hpp"
#include "weir/actors/interfaces.hpp"
#include "weir/trainer/learner.hpp"
#include "weir/trainer/lr_schedule.hpp"
#include "weir/trainer/published.hpp"
#include "weir/weights/snapshots.hpp"

namespace weir {

struct trainer_settings {
  std::uint64_t steps = 1;             ///< trains until this version
  std::uint64_t checkpoint_every = 0;  ///< steps; 0: only at the end
  lr_schedule lr;
  std::uint32_t most_failed_steps = 10;  ///< in a row; then training ends with the last one's error
  int threads = 1;                       ///< intra-op threads
};

/// Where a step's time went, in seconds. They follow one another: their sum is the step's.
struct stage_seconds {
  double wait_batch = 0;
  double train = 0;
  double publish = 0;     ///< the copy, and the wait for a free region
  double checkpoint = 0;  ///< that was kept since the step before
  double total() const noexcept { return wait_batch + train + publish + checkpoint; }
};

struct training_step {
  weight_version version = 0;  ///< after the step
  step_report learned;
  std::string failure;             ///< why the step was undone; empty if it was not. Its version has the same weights.
  std::uint64_t failed_steps = 0;  ///< so far
  double lr = 0;
  double staleness_mean = 0;  ///< over trajectories: the version trained minus the oldest of the trajectory's tokens
  std::uint64_t staleness_max = 0;
  std::int64_t tokens = 0;    ///< produced by the model, in the batch
  std::uint64_t waiting = 0;  ///< complete groups left in the buffer
  std::uint64_t dropped = 0;  ///< groups given up since the last step
  stage_seconds seconds;
};

/// Called on the trainer's thread.
struct trainer_hooks {
  std::function<void(const training_step&)> on_step;
  /// Keeps a checkpoint. A failure is reported by the hook itself, and training goes on; if it is the last one's, it is
  /// the run's result.
  std::function<result<void>(const learner&, weight_version, const data_position&)> checkpoint;
  /// Training has ended: at its last step, drained, or by an error. Called once.
  std::function<void(const result<weight_version>&)> on_end;
};

/// Where training begins: 0 and nothing done, or a checkpoint.
struct training_position {
  weight_version version = 0;
  data_position data;
};

/// Spawn with a thread of its own. A drain ends the step under way (or the step ends by `stop`, undone), keeps a
/// checkpoint, and is then answered.
class trainer : public node<trainer_actor> {
 public:
  /// Where batches come from: the trajectory buffer.
  static constexpr port<trainer, batch_source> batches{"batches"};
  /// Who is told of new versions: the weight store.
  static constexpr port<trainer, weight_sink> versions{"versions"};

  /// Versions are written in the layout of the shelf of `snapshots`. Throws std::invalid_argument if the model cannot
  /// be written so. `stop` makes a step under way end soon, undone.
  trainer(caf::actor_config& config, learner what, trainer_settings settings, snapshot_writer snapshots,
          training_position start, trainer_hooks hooks, std::stop_token stop = {});
  ~trainer() override;

  trainer_actor::behavior_type make_behavior() override;

 private:
  using clock = std::chrono::steady_clock;
  void advance();
  bool publish();
  void request_batch();
  void refused(const error& why);
  void train(const training_batch& batch);
  void report_failure(training_step& step, const error& why);
  result<void> keep_checkpoint();
  void finish(result<weight_version> outcome);

  learner learner_;
  trainer_settings settings_;
  snapshot_writer snapshots_;
  published_form form_;
  trainer_hooks hooks_;
  std::stop_token stop_;
  weight_version version_;
  data_position position_;
  std::optional<weight_version> published_, kept_;
  std::optional<training_step> unreported_;
  double checkpoint_seconds_ = 0;
  std::uint64_t failed_ = 0;
  std::uint32_t failed_in_a_row_ = 0;
  clock::time_point stage_began_{};
  bool started_ = false, waiting_ = false, ended_ = false;
  edge<batch_source> batches_{*this, batches};
  edge<weight_sink> versions_{*this, versions};
};

}  // namespace weir

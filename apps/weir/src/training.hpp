#pragma once
// The asynchronous run itself: trainer, rollout engines, sandboxes, assembly, buffer and weight store as one graph.

#include <functional>

#include "checkpoint.hpp"
#include "run_files.hpp"
#include "weir/runtime/graph.hpp"
#include "weir/runtime/interrupt.hpp"

namespace weir::app {

/// What training ended with.
struct training_outcome {
  weight_version version = 0;
  bool interrupted = false;
  double seconds = 0;
  std::uint64_t samples = 0;
};

/// Trains from `start` until trainer.steps, or until interrupted; either way a checkpoint is left. The model comes back
/// with the last checkpoint only: `trained` is given away.
result<training_outcome> run_training(caf::actor_system& system, const run_parts& parts, learner trained,
                                      const run_state& start, run_files& files, const interrupt& stop);

}  // namespace weir::app

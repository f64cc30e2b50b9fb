#pragma once
// A checkpoint: an HF directory that any program can load, and beside it what a run needs to go on bit for bit.

#include <cstdint>
#include <filesystem>

#include "setup.hpp"
#include "weir/actors/data_position.hpp"
#include "weir/runtime/run_directory.hpp"
#include "weir/trainer/learner.hpp"

namespace weir::app {

/// How far a run has come. During the warm start `version` is 0.
struct run_state {
  bool warm_start_done = false;
  std::uint64_t warm_start_steps = 0;
  weight_version version = 0;
  data_position data;
};

/// Writes model, tokenizer files, optimizer and state as the run's checkpoint of `state.version`.
result<checkpoint> save_checkpoint(run_directory& run, const run_parts& parts, const learner& trained,
                                   const run_state& state);

/// Takes up what `save_checkpoint` wrote; `trained` has the same model architecture.
result<run_state> load_checkpoint(const std::filesystem::path& folder, learner& trained);

}  // namespace weir::app

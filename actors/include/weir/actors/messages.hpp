#pragma once
// Every message between Weir's actors. Each says who sends it, who answers, and what an error means. All of them can
// cross the network; weights don't travel in messages, only where to read them does.

#include <cstdint>
#include <string>
#include <vector>

#include "weir/actors/manifest.hpp"
#include "weir/actors/types.hpp"
#include "weir/runtime/caf.hpp"
#include "weir/runtime/node.hpp"

namespace weir {

// ---- generation -----------------------------------------------------------------------------------------------------

/// Sandbox -> rollout engine: continue `context` (at least one token). Answered by `generation`. An error means that
/// this request failed and no other: invalid_argument (context too long, no room for a token), numeric, unavailable.
struct generate_request {
  std::vector<token> context;
  sampling_params sampling;
  std::uint64_t seed = 0;  ///< the drawn tokens are a function of context, weights, sampling and seed alone
};

/// Rollout engine -> sandbox: what was produced. Vectors have the same length, at least 1.
struct generation {
  std::vector<token> tokens;
  std::vector<float> logprobs;
  std::vector<weight_version> versions;
  finish_reason reason = finish_reason::stop;
};

// ---- episodes -------------------------------------------------------------------------------------------------------

/// Trajectory buffer -> sandbox pool: `groups` more groups may start. Every engine holds `live` or a newer version.
struct grant_admission {
  std::uint64_t groups = 0;
  weight_version live = 0;
};

/// Sandbox -> group assembly: an episode's record. `sandbox pool` hears `episode_ended` for the same episode.
struct episode_record {
  episode_spec spec;
  trajectory record;
};

/// Sandbox -> sandbox pool: the sandbox is free again. `failure` is empty if a record was sent; otherwise it says why
/// there is none, and the pool decides whether to try again.
struct episode_ended {
  std::uint64_t group = 0;
  std::uint32_t sample = 0;
  std::uint32_t attempt = 0;
  std::string failure;
};

/// Sandbox pool -> group assembly -> trajectory buffer: this group will never be complete. Its credit is granted anew.
struct group_dropped {
  std::uint64_t group = 0;
  weight_version admitted = 0;
  std::string reason;
};

// ---- training -------------------------------------------------------------------------------------------------------

/// Trainer -> trajectory buffer: one batch credit, for the step that starts from `version`. Answered by
/// `training_batch` when there is one; an error means that the buffer is stopping.
struct next_batch {
  weight_version version = 0;
};

/// Trajectory buffer -> trainer: the groups of one step, by ascending group number.
struct training_batch {
  weight_version version = 0;
  std::vector<trajectory_group> groups;
  std::vector<std::uint64_t> dropped;  ///< groups given up since the last batch: they count as done
  std::uint64_t waiting = 0;           ///< complete groups left in the buffer
};

/// Anyone -> trainer: begin.
struct start_training {};

// ---- weights --------------------------------------------------------------------------------------------------------

/// Trainer, or weight downlink -> weight store: version `version` lies ready on the process's weight shelf. Answered by
/// `weights_released` once no reader needs its memory any more.
struct publish_weights {
  weight_version version = 0;
};
struct weights_released {
  weight_version version = 0;
  bool spoiled = false;  ///< a process that was lost had mapped the memory: it must not be written again
};

/// Weight store -> rollout engine, or weight uplink: take this version, between two decode steps. Answered by
/// `weights_adopted`; from then on the reader needs no older one. An error means that it keeps what it has:
/// invalid_data (it is of another size), unavailable (it is not on the shelf).
struct adopt_weights {
  weight_version version = 0;
};
struct weights_adopted {
  weight_version version = 0;
  std::vector<weight_version> spoiled = {};  ///< older ones whose memory must not be written again
};

/// Weight store -> trajectory buffer, or weight downlink: every engine now holds `version` or a newer one.
struct weights_live {
  weight_version version = 0;
};

/// Weight uplink or downlink -> itself, from the thread that moves the bytes: what became of versions.
struct weights_moved {
  std::uint8_t what = 0;  ///< of the link's own kinds
  weight_version version = 0;
  bool spoiled = false;
};

// ---- within one actor -----------------------------------------------------------------------------------------------

/// An actor -> itself: go on. Between two of them it answers what came meanwhile.
struct tick {};

/// A rollout engine -> itself: the version that it takes is laid out.
struct weights_prepared {};

// ---- inspection -----------------------------------------------------------------------------------------------------

template <class Inspector>
auto inspect(Inspector& f, sampling_params& x) {
  return inspect_fields(f, "sampling_params", x.temperature, x.top_p, x.top_k, x.max_tokens, x.stop_tokens);
}
template <class Inspector>
auto inspect(Inspector& f, episode_spec& x) {
  return inspect_fields(f, "episode_spec", x.group, x.sample, x.attempt, x.seed, x.admitted, x.task);
}
template <class Inspector>
auto inspect(Inspector& f, trajectory& x) {
  return inspect_fields(f, "trajectory", x.group, x.sample, x.tokens, x.mask, x.logprobs, x.versions, x.reward,
                        x.success, x.terminated, x.truncated, x.turns);
}
template <class Inspector>
auto inspect(Inspector& f, trajectory_group& x) {
  return inspect_fields(f, "trajectory_group", x.group, x.admitted, x.trajectories);
}
template <class Inspector>
auto inspect(Inspector& f, generate_request& x) {
  return inspect_fields(f, "generate_request", x.context, x.sampling, x.seed);
}
template <class Inspector>
auto inspect(Inspector& f, generation& x) {
  return inspect_fields(f, "generation", x.tokens, x.logprobs, x.versions, x.reason);
}
template <class Inspector>
auto inspect(Inspector& f, grant_admission& x) {
  return inspect_fields(f, "grant_admission", x.groups, x.live);
}
template <class Inspector>
auto inspect(Inspector& f, episode_record& x) {
  return inspect_fields(f, "episode_record", x.spec, x.record);
}
template <class Inspector>
auto inspect(Inspector& f, episode_ended& x) {
  return inspect_fields(f, "episode_ended", x.group, x.sample, x.attempt, x.failure);
}
template <class Inspector>
auto inspect(Inspector& f, group_dropped& x) {
  return inspect_fields(f, "group_dropped", x.group, x.admitted, x.reason);
}
template <class Inspector>
auto inspect(Inspector& f, next_batch& x) {
  return inspect_fields(f, "next_batch", x.version);
}
template <class Inspector>
auto inspect(Inspector& f, training_batch& x) {
  return inspect_fields(f, "training_batch", x.version, x.groups, x.dropped, x.waiting);
}
template <class Inspector>
auto inspect(Inspector& f, start_training&) {
  return inspect_fields(f, "start_training");
}
template <class Inspector>
auto inspect(Inspector& f, publish_weights& x) {
  return inspect_fields(f, "publish_weights", x.version);
}
template <class Inspector>
auto inspect(Inspector& f, weights_released& x) {
  return inspect_fields(f, "weights_released", x.version, x.spoiled);
}
template <class Inspector>
auto inspect(Inspector& f, adopt_weights& x) {
  return inspect_fields(f, "adopt_weights", x.version);
}
template <class Inspector>
auto inspect(Inspector& f, weights_adopted& x) {
  return inspect_fields(f, "weights_adopted", x.version, x.spoiled);
}
template <class Inspector>
auto inspect(Inspector& f, tick&) {
  return inspect_fields(f, "tick");
}
template <class Inspector>
auto inspect(Inspector& f, weights_prepared&) {
  return inspect_fields(f, "weights_prepared");
}
template <class Inspector>
auto inspect(Inspector& f, weights_moved& x) {
  return inspect_fields(f, "weights_moved", x.what, x.version, x.spoiled);
}
template <class Inspector>
auto inspect(Inspector& f, weights_live& x) {
  return inspect_fields(f, "weights_live", x.version);
}

}  // namespace weir

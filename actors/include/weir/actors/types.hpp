#pragma once
// The words that every actor shares: tokens, versions, episodes, trajectories. No actor, no tensor.

#include <cstdint>
#include <string>
#include <vector>

namespace weir {

using token = std::int32_t;
/// Version v is what the trainer held after v steps; 0 is the model that a run starts from.
using weight_version = std::uint64_t;

/// How to choose tokens. `temperature` 0 is greedy. The log-probability returned for a token is that of the
/// distribution it was drawn from: after temperature, then top-k, then top-p, renormalised; greedy returns the
/// log-probability at temperature 1.
struct sampling_params {
  float temperature = 1.0F;
  float top_p = 1.0F;
  std::int32_t top_k = 0;  ///< 0: no limit
  std::int32_t max_tokens = 16;
  std::vector<token> stop_tokens;  ///< drawing one ends the generation; it is part of the output
};

enum class finish_reason : std::uint8_t {
  stop,    ///< a stop token was drawn
  length,  ///< max_tokens or the model's context length was reached
};

/// One run of one environment on one task. A group is the episodes that share a task and a `group` number.
struct episode_spec {
  std::uint64_t group = 0;      ///< position of the task in the run's task stream, from 0
  std::uint32_t sample = 0;     ///< which of the group's episodes, from 0
  std::uint32_t attempt = 0;    ///< 0, then counts retries after failures
  std::uint64_t seed = 0;       ///< all randomness of the episode derives from it
  weight_version admitted = 0;  ///< every engine held this version or a newer one when the group was admitted
  std::string task;             ///< one JSON value, as the task file has it
  bool operator==(const episode_spec&) const = default;
};

/// The record of an episode. All vectors have length T, the number of tokens of the prompt and every turn.
struct trajectory {
  std::uint64_t group = 0;
  std::uint32_t sample = 0;
  std::vector<token> tokens;
  std::vector<std::uint8_t> mask;        ///< 1 on what the model produced, 0 on what it was given
  std::vector<float> logprobs;           ///< behaviour log-probability where mask is 1, else 0
  std::vector<weight_version> versions;  ///< the version that drew the token where mask is 1, else 0
  double reward = 0;                     ///< sum over the steps
  bool success = false;                  ///< the environment says that the task is solved
  bool terminated = false;               ///< Gymnasium's meaning: the episode reached an end of its own
  bool truncated = false;                ///< it was cut off: step limit, context length, token limit
  std::uint32_t turns = 0;
  bool operator==(const trajectory&) const = default;
};

/// The oldest version among a trajectory's produced tokens; `fallback` if it has none.
inline weight_version oldest_version(const trajectory& t, weight_version fallback) noexcept {
  auto oldest = fallback;
  auto found = false;
  for (std::size_t i = 0; i < t.mask.size(); ++i)
    if (t.mask[i] != 0 && (!found || t.versions[i] < oldest)) {
      oldest = t.versions[i];
      found = true;
    }
  return oldest;
}

/// A complete group, samples in order.
struct trajectory_group {
  std::uint64_t group = 0;
  weight_version admitted = 0;
  std::vector<trajectory> trajectories;
  bool operator==(const trajectory_group&) const = default;
};

}  // namespace weir

#include "weir/sandbox/episode_recorder.hpp"

#include <utility>

namespace weir {

void episode_recorder::start(const episode_spec& spec) {
  record_ = {};
  record_.group = spec.group;
  record_.sample = spec.sample;
}

void episode_recorder::given(std::span<const token> tokens) {
  record_.tokens.insert(record_.tokens.end(), tokens.begin(), tokens.end());
  record_.mask.resize(record_.tokens.size(), 0);
  record_.logprobs.resize(record_.tokens.size(), 0.0F);
  record_.versions.resize(record_.tokens.size(), 0);
}

void episode_recorder::produced(const generation& turn) {
  record_.tokens.insert(record_.tokens.end(), turn.tokens.begin(), turn.tokens.end());
  record_.mask.resize(record_.tokens.size(), 1);
  record_.logprobs.insert(record_.logprobs.end(), turn.logprobs.begin(), turn.logprobs.end());
  record_.versions.insert(record_.versions.end(), turn.versions.begin(), turn.versions.end());
  ++record_.turns;
}

trajectory episode_recorder::finish(bool terminated, bool truncated, bool success) {
  record_.terminated = terminated;
  record_.truncated = truncated;
  record_.success = success;
  return std::exchange(record_, {});
}

}  // namespace weir

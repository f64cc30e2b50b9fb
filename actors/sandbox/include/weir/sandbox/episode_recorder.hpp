#pragma once
// Builds a trajectory turn by turn. Shared by every kind of sandbox, so that what is masked is decided in one place.

#include <span>
#include <vector>

#include "weir/actors/messages.hpp"
#include "weir/actors/types.hpp"

namespace weir {

class episode_recorder {
 public:
  void start(const episode_spec& spec);

  /// What the model was given: its prompt, or an environment's answer. Not trained on.
  void given(std::span<const token> tokens);

  /// What the model produced in one turn: trained on, with behaviour log-probabilities and versions.
  void produced(const generation& turn);

  void rewarded(double reward) { record_.reward += reward; }

  const std::vector<token>& context() const noexcept { return record_.tokens; }
  std::uint32_t turns() const noexcept { return record_.turns; }

  /// Hands the record out; `start` begins the next.
  trajectory finish(bool terminated, bool truncated, bool success);

 private:
  trajectory record_;
};

}  // namespace weir

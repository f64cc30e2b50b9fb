#pragma once
// How good a model is at held-back tasks: a graph of its own, of a pool, an engine and a collector.

#include <cstdint>
#include <functional>
#include <string>

#include "setup.hpp"
#include "weir/runtime/graph.hpp"
#include "weir/runtime/interrupt.hpp"

namespace weir::app {

struct evaluation_result {
  std::uint64_t tasks = 0;
  std::uint64_t solved = 0;
  std::uint64_t failed = 0;  ///< episodes that ended without a record; they count as not solved
  std::string first_failure;
  double reward = 0;  ///< mean over tasks
  double tokens = 0;  ///< mean produced, over those with a record
  double seconds = 0;
  double accuracy() const noexcept { return tasks == 0 ? 0 : static_cast<double>(solved) / static_cast<double>(tasks); }
};

/// Greedy, one episode a task. Errors: unavailable (interrupted), or why an actor ended.
result<evaluation_result> evaluate(caf::actor_system& system, const run_parts& parts, const causal_lm& model,
                                   const interrupt& stop, const std::function<void(std::uint64_t done)>& progress = {});

/// One line for people.
std::string summary(const evaluation_result& r);

}  // namespace weir::app

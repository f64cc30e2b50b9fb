#pragma once
// What an environment can show of its own tasks, as trajectories: what a supervised warm start trains on.

#include <cstdint>
#include <memory>
#include <stop_token>
#include <vector>

#include "weir/environment/environment.hpp"
#include "weir/sandbox/task_stream.hpp"
#include "weir/tokenizer/tokenizer.hpp"

namespace weir {

/// Demonstration i is a function of the seed and i alone, so that a warm start can go on where it stopped. One thread.
class demonstration_source {
 public:
  demonstration_source(std::unique_ptr<environment> place, std::shared_ptr<const tokenizer> text, std::shared_ptr<task_stream> tasks,
                       std::uint64_t seed);

  /// Demonstrations `first` to `first + count - 1`, their answers masked as produced; behaviour log-probabilities and
  /// versions are 0. An error if the environment refuses a task, or has no answer to show; unavailable if stopped.
  result<std::vector<trajectory>> take(std::uint64_t first, std::size_t count, const std::stop_token& stop = {});

 private:
  result<trajectory> make(std::uint64_t number);

  std::unique_ptr<environment> environment_;
  std::shared_ptr<const tokenizer> text_;
  std::shared_ptr<task_stream> tasks_;
  std::uint64_t seed_;
};

}  // namespace weir

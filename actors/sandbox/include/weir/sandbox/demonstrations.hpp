#pragma once
// What an environment can show of its own tasks, as trajectories: what a supervised warm start trains on.

#include <cstdint>
#include <limits>
#include <memory>
#include <stop_token>
#include <vector>

#include "weir/environment/environment.hpp"
#include "weir/sandbox/task_stream.hpp"
#include "weir/tokenizer/lost_text.hpp"
#include "weir/tokenizer/tokenizer.hpp"

namespace weir {

/// Demonstration i is a function of the seed and i alone, so that a warm start can go on where it stopped. One thread.
class demonstration_source {
 public:
  /// A demonstration has at most `most_tokens`, its prompt included: what the model can hold. `lost` hears of text that
  /// has no token.
  demonstration_source(std::unique_ptr<environment> place, std::shared_ptr<const tokenizer> text,
                       std::shared_ptr<task_stream> tasks, std::uint64_t seed,
                       std::int64_t most_tokens = std::numeric_limits<std::int64_t>::max(),
                       std::shared_ptr<lost_text> lost = nullptr);

  /// Demonstrations `first` to `first + count - 1`, their answers masked as produced; behaviour log-probabilities and
  /// versions are 0. An error, which names the task, if the environment refuses it or has no answer to show, or if both
  /// together are too long; unavailable if stopped.
  result<std::vector<trajectory>> take(std::uint64_t first, std::size_t count, const std::stop_token& stop = {});

 private:
  result<trajectory> make(std::uint64_t number);

  std::unique_ptr<environment> environment_;
  std::shared_ptr<const tokenizer> text_;
  std::shared_ptr<task_stream> tasks_;
  std::uint64_t seed_;
  std::int64_t most_tokens_;
  std::shared_ptr<lost_text> lost_;
};

}  // namespace weir

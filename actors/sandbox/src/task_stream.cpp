#include "weir/sandbox/task_stream.hpp"

#include <numeric>
#include <stdexcept>
#include <utility>

#include "weir/runtime/random.hpp"

namespace weir {

task_stream::task_stream(std::vector<std::string> tasks, std::uint64_t seed, bool shuffle)
    : tasks_(std::move(tasks)), seed_(seed), shuffle_(shuffle), order_(tasks_.size()) {
  if (tasks_.empty()) throw std::invalid_argument("a task stream has at least one task");
  order(0);
}

void task_stream::order(std::uint64_t epoch) {
  epoch_ = epoch;
  std::iota(order_.begin(), order_.end(), 0U);
  if (!shuffle_) return;
  random_stream random(derive_seed(seed_, "tasks", epoch));
  for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
}

const std::string& task_stream::task(std::uint64_t group) {
  const auto epoch = group / tasks_.size();
  if (epoch != epoch_) order(epoch);
  return tasks_[order_[group % tasks_.size()]];
}

}  // namespace weir

#pragma once
// The order in which tasks are used: group number -> task, a pure function of the seed, so that a resumed run needs no
// more than the numbers of the groups that are done.

#include <cstdint>
#include <string>
#include <vector>

#include "weir/actors/data_position.hpp"

namespace weir {

/// Tasks in epochs, each in an order of its own. Not thread-safe.
class task_stream {
 public:
  /// `tasks`: at least one, each a JSON value. Without `shuffle` every epoch has the given order.
  task_stream(std::vector<std::string> tasks, std::uint64_t seed, bool shuffle = true);

  const std::string& task(std::uint64_t group);

  std::size_t size() const noexcept { return tasks_.size(); }

 private:
  void order(std::uint64_t epoch);

  std::vector<std::string> tasks_;
  std::uint64_t seed_;
  bool shuffle_;
  std::uint64_t epoch_ = 0;
  std::vector<std::uint32_t> order_;
};

}  // namespace weir

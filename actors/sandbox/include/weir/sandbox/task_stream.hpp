#pragma once
// The order in which tasks are used: group number -> task, a pure function of the seed, so that a resumed run needs no
// more than the numbers of the groups that are done.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

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

/// Which groups of a task stream are done: all below a mark and some above it. What a checkpoint keeps as the data
/// position; groups under way when a run stops are run again.
class data_position {
 public:
  void done(std::uint64_t group);
  bool is_done(std::uint64_t group) const { return group < below_ || above_.contains(group); }
  std::uint64_t below() const noexcept { return below_; }
  const std::set<std::uint64_t>& above() const noexcept { return above_; }
  static data_position from(std::uint64_t below, const std::vector<std::uint64_t>& above);
  bool operator==(const data_position&) const = default;

 private:
  std::uint64_t below_ = 0;
  std::set<std::uint64_t> above_;
};

}  // namespace weir

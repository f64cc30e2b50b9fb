#pragma once
// How far a run has come through its tasks.

#include <cstdint>
#include <set>
#include <vector>

namespace weir {

/// Which groups of a task stream are done: all below a mark and some above it. What a checkpoint keeps as the data
/// position; groups under way when a run stops are run again.
class data_position {
 public:
  void done(std::uint64_t group) {
    if (group < below_) return;
    above_.insert(group);
    while (!above_.empty() && *above_.begin() == below_) {
      above_.erase(above_.begin());
      ++below_;
    }
  }
  bool is_done(std::uint64_t group) const { return group < below_ || above_.contains(group); }
  std::uint64_t below() const noexcept { return below_; }
  const std::set<std::uint64_t>& above() const noexcept { return above_; }
  static data_position from(std::uint64_t below, const std::vector<std::uint64_t>& above) {
    data_position position;
    position.below_ = below;
    for (auto group : above) position.done(group);
    return position;
  }
  bool operator==(const data_position&) const = default;

 private:
  std::uint64_t below_ = 0;
  std::set<std::uint64_t> above_;
};

}  // namespace weir

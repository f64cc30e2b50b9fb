#pragma once
// Runs a given number of groups and hands their records out: what an evaluation, or a graph without a trainer, ends in.

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "weir/actors/interfaces.hpp"

namespace weir {

/// What was collected, by ascending (group, sample).
struct collected_episodes {
  std::vector<trajectory> records;
  std::vector<group_dropped> dropped;  ///< groups that could not be completed; none of their records is in `records`
};

/// Stands where assembly and buffer stand in a training graph: connect a pool's records to it, and its admission to the
/// pool. Begins when it is connected.
class episode_collector : public node<group_assembly_actor> {
 public:
  static constexpr port<episode_collector, admission_sink> admission{"admission"};

  /// `on_done` is called once, on the actor's thread, when every group is complete or dropped. `on_progress`, if given,
  /// hears how many are.
  episode_collector(caf::actor_config& config, std::uint64_t groups, std::uint32_t group_size,
                    std::function<void(collected_episodes)> on_done,
                    std::function<void(std::uint64_t)> on_progress = {});

  group_assembly_actor::behavior_type make_behavior() override;

 protected:
  void connected(const std::string& port) override;

 private:
  void settle();

  std::uint64_t groups_;
  std::uint32_t group_size_;
  std::function<void(collected_episodes)> done_;
  std::function<void(std::uint64_t)> progress_;
  std::map<std::uint64_t, std::map<std::uint32_t, trajectory>> records_;
  std::vector<group_dropped> dropped_;
  std::uint64_t settled_ = 0;
  bool begun_ = false;
  edge<admission_sink> admission_{*this, admission};
};

}  // namespace weir

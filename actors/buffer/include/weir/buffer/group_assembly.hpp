#pragma once
// Puts the episodes of one task together. A group leaves when it is complete; until then it waits here, so what waits
// is bounded by the groups that were admitted.

#include <deque>
#include <unordered_map>
#include <unordered_set>

#include "weir/actors/interfaces.hpp"

namespace weir {

class group_assembly : public node<group_assembly_actor> {
 public:
  /// Where complete groups and the news of dropped ones go: the trajectory buffer, or an actor of one's own before it.
  static constexpr port<group_assembly, group_sink> groups{"groups"};

  /// `group_size`: episodes a group, at least 1.
  group_assembly(caf::actor_config& config, std::uint32_t group_size);

  group_assembly_actor::behavior_type make_behavior() override;

 private:
  struct partial {
    trajectory_group group;
    std::uint32_t have = 0;
  };
  void add(const episode_record& message);
  void end(std::uint64_t group);

  std::uint32_t group_size_;
  std::unordered_map<std::uint64_t, partial> partial_;
  // Groups that ended lately: an episode that was given up at its deadline may send its record after that.
  std::unordered_set<std::uint64_t> ended_;
  std::deque<std::uint64_t> ended_order_;
  edge<group_sink> groups_{*this, groups};
};

}  // namespace weir

#include "weir/buffer/group_assembly.hpp"

#include <stdexcept>
#include <utility>

namespace weir {

namespace {
constexpr std::size_t remembered_groups = 1 << 16;
}

group_assembly::group_assembly(caf::actor_config& config, std::uint32_t group_size)
    : node(config), group_size_(group_size) {
  if (group_size == 0) throw std::invalid_argument("a group has at least one episode");
}

group_assembly_actor::behavior_type group_assembly::make_behavior() {
  return behave([] { return drained{}; }, [this](const episode_record& message) { add(message); },
                [this](const group_dropped& gone) {
                  end(gone.group);
                  send(*groups_, gone);
                });
}

void group_assembly::add(const episode_record& message) {
  if (message.spec.sample >= group_size_) throw std::logic_error("an episode's sample number is beyond its group");
  if (ended_.contains(message.spec.group)) return;
  auto& entry = partial_[message.spec.group];
  if (entry.have == 0) {
    entry.group.group = message.spec.group;
    entry.group.admitted = message.spec.admitted;
    entry.group.trajectories.resize(group_size_);
  }
  auto& place = entry.group.trajectories[message.spec.sample];
  if (!place.tokens.empty()) return;  // a retried episode whose first attempt came through after all
  place = message.record;
  if (++entry.have < group_size_) return;
  auto complete = std::move(entry.group);
  end(message.spec.group);
  send(*groups_, std::move(complete));
}

void group_assembly::end(std::uint64_t group) {
  partial_.erase(group);
  if (!ended_.insert(group).second) return;
  ended_order_.push_back(group);
  if (ended_order_.size() <= remembered_groups) return;
  ended_.erase(ended_order_.front());
  ended_order_.pop_front();
}

}  // namespace weir

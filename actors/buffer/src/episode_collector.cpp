#include "weir/buffer/episode_collector.hpp"

#include <stdexcept>
#include <utility>

namespace weir {

episode_collector::episode_collector(caf::actor_config& config, std::uint64_t groups, std::uint32_t group_size,
                                     std::function<void(collected_episodes)> on_done,
                                     std::function<void(std::uint64_t)> on_progress)
    : node(config),
      groups_(groups),
      group_size_(group_size),
      done_(std::move(on_done)),
      progress_(std::move(on_progress)) {
  if (groups == 0 || group_size == 0)
    throw std::invalid_argument("a collector has at least one group of at least one episode");
}

group_assembly_actor::behavior_type episode_collector::make_behavior() {
  return behave([] { return drained{}; },
                [this](const episode_record& message) {
                  auto& group = records_[message.spec.group];
                  if (!group.emplace(message.spec.sample, message.record).second || group.size() < group_size_) return;
                  settle();
                },
                [this](const group_dropped& gone) {
                  records_.erase(gone.group);
                  dropped_.push_back(gone);
                  settle();
                });
}

void episode_collector::connected(const std::string&) {
  if (!std::exchange(begun_, true)) send(*admission_, grant_admission{groups_, 0});
}

void episode_collector::settle() {
  ++settled_;
  if (progress_) progress_(settled_);
  if (settled_ != groups_) return;
  collected_episodes out;
  for (auto& [number, group] : records_)
    for (auto& [sample, record] : group) out.records.push_back(std::move(record));
  out.dropped = std::move(dropped_);
  done_(std::move(out));
}

}  // namespace weir

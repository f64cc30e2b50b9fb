#include "weir/buffer/staleness_ledger.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace weir {

namespace {

weight_version oldest_in(const trajectory_group& group) {
  auto oldest = ~weight_version{0};
  for (const auto& t : group.trajectories) oldest = std::min(oldest, oldest_version(t, oldest));
  return group.trajectories.empty() || oldest == ~weight_version{0} ? group.admitted : oldest;
}

bool admitted_earlier(const trajectory_group& a, const trajectory_group& b) {
  return std::pair(a.admitted, a.group) < std::pair(b.admitted, b.group);
}

}  // namespace

staleness_ledger::staleness_ledger(staleness_settings settings) : settings_(settings) {
  if (settings_.batch_groups == 0) throw std::invalid_argument("a batch has at least one group");
}

std::uint64_t staleness_ledger::grant() {
  if (!start_) return 0;
  const auto steps_left = settings_.last_version > *start_ ? settings_.last_version - *start_ : 0;
  const auto steps = std::min(live_ - *start_ + settings_.max_staleness + 1, steps_left);
  const auto allowed = steps * settings_.batch_groups;
  if (allowed <= issued_) return 0;
  const auto more = allowed - issued_;
  issued_ = allowed;
  under_way_[live_] += more;
  under_way_total_ += more;
  return more;
}

std::uint64_t staleness_ledger::weights_live(weight_version live) {
  if (!start_) start_ = live_ = live;
  live_ = std::max(live_, live);
  return grant();
}

void staleness_ledger::forget(weight_version admitted) {
  auto found = under_way_.find(admitted);
  if (found == under_way_.end()) throw std::logic_error("a group arrived that was never admitted");
  if (--found->second == 0) under_way_.erase(found);
  --under_way_total_;
}

void staleness_ledger::arrived(trajectory_group group) {
  forget(group.admitted);
  auto place = std::upper_bound(arrived_.begin(), arrived_.end(), group, admitted_earlier);
  arrived_.insert(place, std::move(group));
}

std::uint64_t staleness_ledger::dropped(weight_version admitted) {
  forget(admitted);
  --issued_;
  return grant();
}

bool staleness_ledger::ready(weight_version version) const {
  return arrived_.size() >= settings_.batch_groups && leaves_enough_time(version);
}

bool staleness_ledger::leaves_enough_time(weight_version version) const {
  // Walks the versions at which something is under way or would be left of the arrived, oldest first, with the sum so
  // far; `steps` batches are to come in which a group admitted at w can still be used.
  auto left = arrived_.begin() + static_cast<std::ptrdiff_t>(settings_.batch_groups);
  auto slow = under_way_.begin();
  std::uint64_t sum = 0;
  while (left != arrived_.end() || slow != under_way_.end()) {
    const bool take_left = slow == under_way_.end() || (left != arrived_.end() && left->admitted <= slow->first);
    const auto w = take_left ? left->admitted : slow->first;
    for (; left != arrived_.end() && left->admitted == w; ++left) ++sum;
    if (slow != under_way_.end() && slow->first == w) sum += (slow++)->second;
    const auto last = w + settings_.max_staleness;
    const auto steps = last > version ? last - version : 0;
    if (sum > steps * settings_.batch_groups) return false;
  }
  return true;
}

staleness_ledger::batch staleness_ledger::take(weight_version version) {
  batch out;
  std::erase_if(arrived_, [&](const trajectory_group& group) {
    const auto oldest = oldest_in(group);
    if (oldest + settings_.max_staleness >= version) return false;
    out.stale.push_back({group.group, oldest});
    return true;
  });
  if (!out.stale.empty()) {
    issued_ -= out.stale.size();
    out.grants = grant();
    return out;
  }
  const auto count = std::min<std::size_t>(arrived_.size(), settings_.batch_groups);
  const auto end = arrived_.begin() + static_cast<std::ptrdiff_t>(count);
  out.groups.assign(std::make_move_iterator(arrived_.begin()), std::make_move_iterator(end));
  arrived_.erase(arrived_.begin(), end);
  std::sort(out.groups.begin(), out.groups.end(),
            [](const trajectory_group& a, const trajectory_group& b) { return a.group < b.group; });
  return out;
}

}  // namespace weir

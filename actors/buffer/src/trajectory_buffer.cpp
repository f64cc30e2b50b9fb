#include "weir/buffer/trajectory_buffer.hpp"

#include <utility>

namespace weir {

trajectory_buffer::trajectory_buffer(caf::actor_config& config, staleness_settings settings,
                                     std::function<void(const buffer_fill&)> observer)
    : node(config), ledger_(settings), observer_(std::move(observer)) {}

trajectory_buffer_actor::behavior_type trajectory_buffer::make_behavior() {
  return behave(
      [this] {
        draining_ = true;
        stop_serving();
        return drained{};
      },
      [this](const trajectory_group& group) {
        ledger_.arrived(group);
        serve();
      },
      [this](const group_dropped& gone) {
        dropped_.push_back(gone.group);
        grant(ledger_.dropped(gone.admitted));
        serve();
      },
      [this](const next_batch& request) -> promise<training_batch> {
        auto answer = make_response_promise<training_batch>();
        if (draining_) {
          answer.deliver(to_caf(error{errc::unavailable, "the trajectory buffer is stopping"}));
        } else if (asked_) {
          answer.deliver(to_caf(error{errc::invalid_argument, "a batch credit is outstanding already"}));
        } else {
          asked_ = request.version;
          answer_ = answer;
          serve();
        }
        return answer;
      },
      [this](const weights_live& notice) {
        live_ = std::max(live_, notice.version);
        grant(ledger_.weights_live(notice.version));
        observe();
      });
}

void trajectory_buffer::on_exit() {
  stop_serving();
  node::on_exit();
}

void trajectory_buffer::stop_serving() {
  if (asked_) answer_.deliver(to_caf(error{errc::unavailable, "the trajectory buffer is stopping"}));
  asked_.reset();
  answer_ = {};
}

void trajectory_buffer::connected(const std::string&) { grant(std::exchange(ungranted_, 0)); }

void trajectory_buffer::grant(std::uint64_t groups) {
  if (groups == 0 || draining_) return;
  if (!admission_) {
    ungranted_ += groups;
    return;
  }
  send(*admission_, grant_admission{groups, live_});
}

void trajectory_buffer::serve() {
  while (asked_ && ledger_.ready(*asked_)) {
    auto taken = ledger_.take(*asked_);
    stale_ += taken.stale.size();
    for (const auto& s : taken.stale) dropped_.push_back(s.group);
    grant(taken.grants);
    if (taken.groups.empty()) continue;
    answer_.deliver(training_batch{*asked_, std::move(taken.groups), std::exchange(dropped_, {}), ledger_.waiting()});
    asked_.reset();
  }
  observe();
}

void trajectory_buffer::observe() {
  if (!observer_) return;
  const auto& s = ledger_.settings();
  observer_({ledger_.waiting(), ledger_.under_way(), (s.max_staleness + 1) * s.batch_groups, stale_});
}

}  // namespace weir

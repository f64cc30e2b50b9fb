#include "weir/weights/weight_store.hpp"

#include <algorithm>
#include <utility>

namespace weir {

weight_store::weight_store(caf::actor_config& config, weight_store_settings settings,
                           std::function<void(const weight_store_state&)> observer)
    : node(config), settings_(settings), observer_(std::move(observer)) {}

weight_store_actor::behavior_type weight_store::make_behavior() {
  this->set_down_handler([this](const caf::down_msg& down) {
    // What it held, nobody reads any more.
    readers_.erase(down.source.id());
    settle();
  });
  return behave([] { return drained{}; },
                [this](const publish_weights& news) -> promise<weights_released> {
                  auto answer = make_response_promise<weights_released>();
                  if (!versions_.empty() && news.version <= versions_.rbegin()->first) {
                    answer.deliver(to_caf(error{errc::invalid_argument,
                                                "version " + std::to_string(news.version) + " was published after " +
                                                    std::to_string(versions_.rbegin()->first)}));
                    return answer;
                  }
                  versions_[news.version] = {answer, false, std::chrono::steady_clock::now()};
                  state_.published = news.version;
                  for (auto& [id, r] : readers_) offer(id);
                  settle();
                  return answer;
                },
                [this](const tick&) {
                  for (auto& [id, r] : readers_) offer(id);
                });
}

void weight_store::on_exit() {
  // CAF drops a promise that nobody keeps in silence.
  for (auto& [version, v] : versions_) v.answer.deliver(to_caf(error{errc::unavailable, "the weight store stopped"}));
  versions_.clear();
  readers_.clear();
  node::on_exit();
}

void weight_store::connected(const std::string& port) {
  if (port == engines.name) {
    const auto& added = engines_.all().back();
    if (!readers_.contains(added->id())) {
      monitor(added);
      readers_.emplace(added->id(), reader{added, std::nullopt, std::nullopt, 0});
    }
    offer(added->id());
  } else if (live_known_) {
    send(listeners_.all().back(), weights_live{state_.live});
  }
}

void weight_store::offer(caf::actor_id id) {
  auto found = readers_.find(id);
  if (found == readers_.end() || versions_.empty()) return;
  auto& r = found->second;
  const auto newest = versions_.rbegin()->first;
  if (r.taking || (r.holds && *r.holds >= newest)) return;
  r.taking = newest;
  // No timeout: an engine that is alive answers between two decode steps, and one that is not is known by its end.
  request(r.handle, caf::infinite, adopt_weights{newest})
      .then([this, id](const weights_adopted& answer) { adopted(id, answer); },
            [this, id, newest](const caf::error& e) { refused(id, newest, from_caf(e)); });
}

void weight_store::adopted(caf::actor_id id, const weights_adopted& news) {
  for (auto version : news.spoiled)
    if (auto v = versions_.find(version); v != versions_.end()) v->second.spoiled = true;
  auto found = readers_.find(id);
  if (found == readers_.end()) return;
  found->second.holds = news.version;
  found->second.taking.reset();
  found->second.failures = 0;
  offer(id);
  settle();
}

void weight_store::refused(caf::actor_id id, weight_version version, const error& why) {
  auto found = readers_.find(id);
  if (found == readers_.end()) return;
  auto& r = found->second;
  r.taking.reset();
  ++state_.failures;
  state_.last_failure = "engine " + std::to_string(id) + ", version " + std::to_string(version) + ": " + why.message;
  if (++r.failures >= settings_.attempts) {
    send_exit(r.handle, to_caf(error{why.code, "it could not take new weights in " + std::to_string(r.failures) +
                                                   " attempts; " + why.message}));
    readers_.erase(found);
  } else {
    delayed_send(this, settings_.first_retry * (1U << (r.failures - 1)), tick{});
  }
  settle();
}

/// Tells the listeners what is live, and the publisher which regions are free.
void weight_store::settle() {
  if (!readers_.empty() &&
      std::all_of(readers_.begin(), readers_.end(), [](const auto& r) { return r.second.holds.has_value(); })) {
    auto live = state_.published;
    for (const auto& [id, r] : readers_) live = std::min(live, *r.holds);
    if (!live_known_ || live > state_.live) {
      live_known_ = true;
      state_.live = live;
      if (auto v = versions_.find(live); v != versions_.end())
        state_.live_seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - v->second.published).count();
      for (const auto& listener : listeners_.all()) send(listener, weights_live{live});
    }
  }
  for (auto it = versions_.begin(); it != versions_.end();) {
    const auto version = it->first;
    const bool newest = version == versions_.rbegin()->first;
    const bool used = std::any_of(readers_.begin(), readers_.end(), [version](const auto& r) {
      return r.second.holds == version || r.second.taking == version;
    });
    if (newest || used) {
      ++it;
      continue;
    }
    it->second.answer.deliver(weights_released{version, it->second.spoiled});
    it = versions_.erase(it);
  }
  if (observer_) observer_(state_);
}

}  // namespace weir

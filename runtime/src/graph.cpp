#include "weir/runtime/graph.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace weir {

namespace {

using drainable = interface<on<drained(drain)>>;
using disconnectable = interface<on<void(disconnect_ports)>>;

}  // namespace

actor_runtime::actor_runtime(std::unique_ptr<caf::actor_system_config> config, std::size_t threads)
    : config_(std::move(config)) {
  config_->set("scheduler.max-threads", static_cast<std::int64_t>(std::max<std::size_t>(threads, 1)));
  // The other policy, stealing, polls: it takes time from actors that compute, and sleeps up to 10 ms before it looks
  // again.
  config_->set("scheduler.policy", caf::atom("sharing"));
  config_->set("logger.verbosity", caf::atom("quiet"));
  system_ = std::make_unique<caf::actor_system>(*config_);
}

bool actor_runtime::wait_until_idle(std::chrono::milliseconds deadline) const {
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (system_->registry().running() > 0) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// What the graph and the exit hooks of its actors share; the hooks may outlive the graph.
struct graph::shared {
  std::mutex mutex;
  mutable std::condition_variable changed;
  std::vector<caf::actor_id> gone;
  std::optional<node_failure> failure;

  void exited(const std::string& name, caf::actor_id id, const caf::error& reason) {
    std::lock_guard lock(mutex);
    gone.push_back(id);
    const bool told = !reason || reason == caf::exit_reason::user_shutdown || reason == caf::exit_reason::kill;
    if (!told && !failure) failure = node_failure{name, from_caf(reason)};
    changed.notify_all();
  }

  bool is_gone(caf::actor_id id) const { return std::find(gone.begin(), gone.end(), id) != gone.end(); }
};

graph::graph(caf::actor_system& system) : system_(system), shared_(std::make_shared<shared>()) {}

graph::~graph() {
  using namespace std::chrono_literals;
  stop(0ms, 1000ms);
}

void graph::watch_erased(std::string name, caf::strong_actor_ptr actor) {
  const auto id = actor->id();
  actor->get()->attach_functor(
      [state = shared_, name, id](const caf::error& reason) { state->exited(name, id, reason); });
  members_.push_back({std::move(name), std::move(actor)});
}

std::optional<node_failure> graph::failure() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->failure;
}

std::vector<std::string> graph::alive() const {
  std::vector<std::string> names;
  std::lock_guard lock(shared_->mutex);
  for (const auto& m : members_)
    if (!shared_->is_gone(m.actor->id())) names.push_back(m.name);
  return names;
}

bool graph::wait_until_gone(std::chrono::milliseconds deadline) const {
  std::unique_lock lock(shared_->mutex);
  return shared_->changed.wait_for(lock, deadline, [this] {
    return std::all_of(members_.begin(), members_.end(),
                       [this](const member& m) { return shared_->is_gone(m.actor->id()); });
  });
}

std::vector<std::string> graph::drain_all(std::chrono::milliseconds deadline) {
  std::vector<std::string> late;
  caf::scoped_actor self{system_};
  // All are asked at once and answer in parallel; the timers run from here, so the whole wait is one deadline.
  using pending = decltype(self->request(std::declval<drainable>(), deadline, drain{}));
  std::vector<std::pair<std::string, pending>> asked;
  for (const auto& m : members_)
    asked.emplace_back(m.name, self->request(caf::actor_cast<drainable>(m.actor), deadline, drain{}));
  for (auto& [name, answer] : asked)
    answer.receive([](const drained&) {},
                   [&late, &who = name](const caf::error& e) {
                     // An actor that is gone has nothing under way.
                     if (e == caf::sec::request_timeout) late.push_back(who);
                   });
  return late;
}

stop_report graph::stop(std::chrono::milliseconds drain_deadline, std::chrono::milliseconds grace) {
  stop_report report;
  if (std::exchange(stopped_, true)) return report;
  if (drain_deadline.count() > 0) report.not_drained = drain_all(drain_deadline);
  for (const auto& m : members_) {
    caf::anon_send(caf::actor_cast<disconnectable>(m.actor), disconnect_ports{});
    caf::anon_send_exit(m.actor, caf::exit_reason::user_shutdown);
  }
  if (!wait_until_gone(grace)) {
    report.killed = alive();
    for (const auto& m : members_) caf::anon_send_exit(m.actor, caf::exit_reason::kill);
    if (!wait_until_gone(std::chrono::milliseconds(1000))) report.stuck = alive();
  }
  members_.clear();
  return report;
}

}  // namespace weir

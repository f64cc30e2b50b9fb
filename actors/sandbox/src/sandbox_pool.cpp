#include "weir/sandbox/sandbox_pool.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "weir/runtime/random.hpp"

namespace weir {

namespace {
constexpr std::chrono::milliseconds deadline_check{100};
}

sandbox_pool::sandbox_pool(caf::actor_config& config, sandbox_pool_settings settings,
                           std::shared_ptr<task_stream> tasks, sandbox_factory factory, data_position position,
                           std::function<void(const sandbox_pool_counts&)> observer)
    : node(config),
      settings_(std::move(settings)),
      tasks_(std::move(tasks)),
      factory_(std::move(factory)),
      done_(std::move(position)),
      observer_(std::move(observer)) {
  if (settings_.sandboxes == 0 || settings_.group_size == 0 || settings_.max_turns == 0)
    throw std::invalid_argument("a pool has at least one sandbox, one episode a group and one turn an episode");
  next_group_ = done_.below();
}

sandbox_pool_actor::behavior_type sandbox_pool::make_behavior() {
  this->set_down_handler([this](const caf::down_msg& down) { lost(down.source); });
  check_deadlines();
  return behave(
      [this]() -> promise<drained> {
        draining_ = true;
        waiting_.clear();
        drain_answer_ = make_response_promise<drained>();
        auto answer = drain_answer_;
        if (running_.empty()) drain_answer_.deliver(drained{});
        observe();
        return answer;
      },
      [this](const grant_admission& grant) { admit(grant.groups, grant.live); },
      [this](const episode_ended& message) {
        if (!current_sender()) return;
        const auto from = current_sender()->id();
        auto found = running_.find(from);
        if (found == running_.end()) return;
        const auto& spec = found->second.spec;
        if (spec.group != message.group || spec.sample != message.sample || spec.attempt != message.attempt) return;
        ended(from, message.failure);
        idle_.push_back(sandboxes_.at(from));
        start_waiting();
        observe();
      },
      [this](const tick&) { check_deadlines(); });
}

void sandbox_pool::on_exit() {
  for (auto& [id, sandbox] : sandboxes_) send_exit(sandbox, caf::exit_reason::user_shutdown);
  sandboxes_.clear();
  idle_.clear();
  drain_answer_ = {};
  node::on_exit();
}

void sandbox_pool::connected(const std::string& port) {
  if (port == engines.name) {
    monitor(engines_.all().back());
    engine_states_.resize(engines_.all().size());
  }
  start_waiting();
}

void sandbox_pool::admit(std::uint64_t groups, weight_version live) {
  if (draining_) return;
  for (; groups > 0; --groups) {
    while (done_.is_done(next_group_)) ++next_group_;
    const auto number = next_group_++;
    groups_[number] = {settings_.group_size, 0, live, false, {}};
    for (std::uint32_t sample = 0; sample < settings_.group_size; ++sample)
      waiting_.push_back(
          {number, sample, 0, derive_seed(settings_.seed, "episode", number, sample), live, tasks_->task(number)});
  }
  start_waiting();
  observe();
}

void sandbox_pool::start_waiting() {
  if (!records_) return;
  while (!waiting_.empty() && running_.size() < settings_.sandboxes) {
    const auto engine = least_loaded();
    if (!engine) return;
    auto spec = std::move(waiting_.front());
    waiting_.pop_front();
    if (groups_.at(spec.group).failed) {
      settle(spec.group);
      continue;
    }
    if (idle_.empty() && !make_sandbox()) {
      waiting_.push_front(std::move(spec));
      return;  // goes on when a sandbox is free
    }
    start(std::move(spec), *engine);
  }
}

std::optional<std::size_t> sandbox_pool::least_loaded() const {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < engines_.all().size(); ++i)
    if (!engine_states_[i].gone && (!best || engine_states_[i].rank() < engine_states_[*best].rank())) best = i;
  return best;
}

/// False if the system has no thread or memory for another: the pool then does with those that it has.
bool sandbox_pool::make_sandbox() {
  try {
    auto made = factory_(system(), sandbox_pool_actor{this});
    monitor(made);
    sandboxes_.emplace(made->id(), made);
    idle_.push_back(std::move(made));
    return true;
  } catch (const std::exception& e) {
    if (sandboxes_.empty()) throw std::runtime_error("no sandbox can be made: " + first_line(e.what()));
    settings_.sandboxes = static_cast<std::uint32_t>(sandboxes_.size());
    counts_.shortage =
        std::to_string(sandboxes_.size()) + " sandboxes can be made and no more: " + first_line(e.what());
    return false;
  }
}

void sandbox_pool::start(episode_spec spec, std::size_t engine) {
  auto sandbox = std::move(idle_.back());
  idle_.pop_back();
  ++engine_states_[engine].load;
  ++groups_.at(spec.group).live;
  running_[sandbox->id()] = {spec, engine, clock::now() + settings_.episode_timeout};
  send(sandbox,
       run_episode{std::move(spec), settings_.sampling, settings_.max_turns, engines_.all()[engine], *records_});
}

void sandbox_pool::ended(caf::actor_id sandbox, const std::string& failure) {
  auto taken = running_.extract(sandbox);
  auto& run = taken.mapped();
  --engine_states_[run.engine].load;
  engine_states_[run.engine].suspect = !failure.empty();
  auto& group = groups_.at(run.spec.group);
  --group.live;
  if (failure.empty()) {
    ++counts_.finished;
    --group.unfinished;
  } else {
    counts_.last_failure = failure;
    if (!group.failed && !draining_ && run.spec.attempt < settings_.retries) {
      ++counts_.retried;
      ++run.spec.attempt;
      waiting_.push_front(run.spec);
    } else if (!draining_) {
      give_up(group, failure);  // at a stop the group counts as one under way, which a resumed run runs again
    }
  }
  settle(run.spec.group);
  if (draining_ && running_.empty() && drain_answer_.pending()) drain_answer_.deliver(drained{});
}

void sandbox_pool::give_up(group_state& group, const std::string& failure) {
  if (group.failed) return;
  group.failed = true;
  group.reason = failure;
}

// A failed group is reported only once none of its episodes runs: nothing of it can arrive after the news.
void sandbox_pool::settle(std::uint64_t number) {
  auto found = groups_.find(number);
  if (found == groups_.end()) return;
  auto& group = found->second;
  if (group.live > 0) return;
  if (group.failed) {
    ++counts_.dropped_groups;
    send(*records_, group_dropped{number, group.admitted, group.reason});
    std::erase_if(waiting_, [number](const episode_spec& spec) { return spec.group == number; });
    groups_.erase(found);
  } else if (group.unfinished == 0) {
    groups_.erase(found);
  }
}

void sandbox_pool::lost(const caf::actor_addr& address) {
  for (std::size_t i = 0; i < engines_.all().size(); ++i)
    if (engines_.all()[i].address() == address) engine_states_[i].gone = true;
  const auto id = address.id();
  sandboxes_.erase(id);
  std::erase_if(idle_, [id](const sandbox_actor& s) { return s->id() == id; });
  if (running_.contains(id)) ended(id, "its sandbox ended in mid-episode");
  start_waiting();
  observe();
}

// An in-process environment that does not return cannot be stopped: its sandbox is forgotten and another one made.
void sandbox_pool::check_deadlines() {
  const auto now = clock::now();
  std::vector<caf::actor_id> late;
  for (const auto& [id, run] : running_)
    if (run.deadline <= now) late.push_back(id);
  for (auto id : late) {
    const auto& spec = running_.at(id).spec;
    send(sandboxes_.at(id), cancel_episode{spec.group, spec.sample, spec.attempt});
    demonitor(sandboxes_.at(id)->address());
    send_exit(sandboxes_.at(id), caf::exit_reason::user_shutdown);
    sandboxes_.erase(id);
    ended(id, "no end by the deadline of " + std::to_string(settings_.episode_timeout.count()) + " ms");
  }
  if (!late.empty()) {
    start_waiting();
    observe();
  }
  this->delayed_send(this, deadline_check, tick{});
}

void sandbox_pool::observe() {
  if (!observer_) return;
  counts_.live = running_.size();
  counts_.queued = waiting_.size();
  observer_(counts_);
}

}  // namespace weir

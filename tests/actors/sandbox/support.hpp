#pragma once
// A sandbox pool between a test's own model and a test's own sink of records.
#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "catch.hpp"
#include "weir/runtime/graph.hpp"
#include "weir/runtime/random.hpp"
#include "weir/sandbox/in_process_sandbox.hpp"
#include "weir/sandbox/sandbox_pool.hpp"

namespace weir::testing {

using namespace std::chrono_literals;
using tokens = std::vector<token>;

template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
  return condition();
}

/// A generation of these tokens, all of one version, log-probabilities -1, -2, ...
inline generation said(tokens what, weight_version version = 0) {
  generation g;
  for (std::size_t i = 0; i < what.size(); ++i) g.logprobs.push_back(-1.0F - static_cast<float>(i));
  g.versions.assign(what.size(), version);
  g.tokens = std::move(what);
  return g;
}

/// What a model does with a request: answers at once, holds it until the script is released, or never answers.
struct reply {
  result<generation> outcome = said({1});
  enum { at_once, held, never } when = at_once;
};

/// What a model is to do, and what it was asked. Shared by test and actor.
struct model_script {
  std::mutex mutex;
  std::vector<generate_request> asked;
  std::function<reply(const generate_request&, std::size_t number)> answer = [](const auto&, auto) { return reply{}; };
  std::size_t count() {
    std::lock_guard lock(mutex);
    return asked.size();
  }
  std::vector<generate_request> all() {
    std::lock_guard lock(mutex);
    return asked;
  }
};

/// Stands where the rollout engine does. A tick answers what is held, and what will be.
class model : public node<node_interface<on<generation(generate_request)>, on<void(tick)>>> {
 public:
  model(caf::actor_config& config, std::shared_ptr<model_script> script) : node(config), script_(std::move(script)) {}
  handle_type::behavior_type make_behavior() override {
    return behave([] { return drained{}; },
                  [this](const generate_request& request) {
                    auto answer = make_response_promise<generation>();
                    reply chosen;
                    {
                      std::lock_guard lock(script_->mutex);
                      script_->asked.push_back(request);
                      chosen = script_->answer(request, script_->asked.size() - 1);
                    }
                    if (chosen.when == reply::at_once || (chosen.when == reply::held && released_))
                      deliver(answer, chosen.outcome);
                    else
                      held_.emplace_back(answer, std::move(chosen));
                    return answer;
                  },
                  [this](const tick&) {
                    released_ = true;
                    for (auto& [answer, chosen] : held_)
                      if (chosen.when == reply::held) deliver(answer, chosen.outcome);
                    std::erase_if(held_, [](const auto& h) { return h.second.when == reply::held; });
                  });
  }
  void on_exit() override {
    for (auto& [answer, chosen] : held_) answer.deliver(to_caf(error{errc::unavailable, "the model ended"}));
    held_.clear();
    node::on_exit();
  }

 private:
  static void deliver(promise<generation>& answer, const result<generation>& outcome) {
    if (outcome)
      answer.deliver(*outcome);
    else
      answer.deliver(to_caf(outcome.error()));
  }
  std::shared_ptr<model_script> script_;
  std::vector<std::pair<promise<generation>, reply>> held_;
  bool released_ = false;
};

/// What came out, in order of arrival.
struct outcomes {
  std::mutex mutex;
  std::vector<episode_record> records;
  std::vector<group_dropped> dropped;
  std::vector<std::string> order;  ///< "record G" or "dropped G"
  std::size_t record_count() {
    std::lock_guard lock(mutex);
    return records.size();
  }
  std::size_t dropped_count() {
    std::lock_guard lock(mutex);
    return dropped.size();
  }
};

/// Stands where group assembly does.
class sink : public node<group_assembly_actor> {
 public:
  sink(caf::actor_config& config, std::shared_ptr<outcomes> into) : node(config), into_(std::move(into)) {}
  group_assembly_actor::behavior_type make_behavior() override {
    return behave([] { return drained{}; },
                  [this](const episode_record& message) {
                    std::lock_guard lock(into_->mutex);
                    into_->records.push_back(message);
                    into_->order.push_back("record " + std::to_string(message.spec.group));
                  },
                  [this](const group_dropped& message) {
                    std::lock_guard lock(into_->mutex);
                    into_->dropped.push_back(message);
                    into_->order.push_back("dropped " + std::to_string(message.group));
                  });
  }

 private:
  std::shared_ptr<outcomes> into_;
};

/// An environment whose reset and step are the test's.
struct environment_script {
  std::function<result<observation>(const nlohmann::json& task, std::uint64_t seed)> reset =
      [](const nlohmann::json&, std::uint64_t) -> result<observation> {
    return observation(tokens{10, 11});
  };
  std::function<result<step_result>(const action& turn)> step = [](const action&) -> result<step_result> {
    step_result ended;
    ended.terminated = true;
    return ended;
  };
};

class scripted_environment : public environment {
 public:
  explicit scripted_environment(environment_script script) : script_(std::move(script)) {}
  result<observation> reset(const nlohmann::json& task, std::uint64_t seed) override {
    return script_.reset(task, seed);
  }
  result<step_result> step(const action& turn) override { return script_.step(turn); }

 private:
  environment_script script_;
};

inline result<std::unique_ptr<environment>> made(environment_script script) {
  return std::unique_ptr<environment>(std::make_unique<scripted_environment>(std::move(script)));
}

/// A kind of environment from a function that makes the script of each one.
template <class Make>
environment_type kind(Make make) {
  return {[make](const nlohmann::json&) -> result<std::unique_ptr<environment>> { return made(make()); }, {}};
}

inline std::vector<std::string> numbered_tasks(std::size_t count) {
  std::vector<std::string> tasks;
  for (std::size_t i = 0; i < count; ++i) tasks.push_back(std::to_string(i));
  return tasks;
}

inline sandbox_pool_settings settings_of(std::uint32_t sandboxes, std::uint32_t group_size, std::uint32_t max_turns = 1,
                                         std::uint32_t retries = 0) {
  sandbox_pool_settings s;
  s.sandboxes = sandboxes;
  s.group_size = group_size;
  s.max_turns = max_turns;
  s.retries = retries;
  s.seed = 7;
  return s;
}

/// The graph: models <- pool -> sink. Tasks are "0", "1", ... in that order unless given.
struct world {
  actor_runtime runtime;
  graph g{runtime.system()};
  std::shared_ptr<outcomes> out = std::make_shared<outcomes>();
  std::vector<std::shared_ptr<model_script>> scripts;
  std::vector<placed<model>> models;
  std::mutex counts_mutex;
  sandbox_pool_counts latest;
  std::uint64_t most_live = 0;
  std::mutex made_mutex;
  std::vector<sandbox_actor> sandboxes;  ///< every one that was made; cleared by the destructor
  placed<sandbox_pool> pool;
  caf::scoped_actor self{runtime.system()};

  struct options {
    std::size_t engines = 1;
    std::size_t threads = 2;
    bool wired = true;
    std::size_t most_sandboxes = 1'000'000;  ///< no thread for another
    data_position position{};
    std::vector<std::string> tasks = numbered_tasks(1000);
    std::shared_ptr<lost_text> lost = nullptr;
  };

  world(sandbox_pool_settings settings, environment_type type, options chosen,
        std::shared_ptr<const tokenizer> text = nullptr)
      : runtime(actor_runtime::with<caf::id_block::weir_actors>(chosen.threads)),
        pool(g.add_with_thread<sandbox_pool>(
            "pool", settings, std::make_shared<task_stream>(std::move(chosen.tasks), 0, false),
            [this, most = chosen.most_sandboxes,
             make = in_process_sandboxes(std::move(type), {}, std::move(text), chosen.lost)](
                caf::actor_system& system, const sandbox_pool_actor& owner) {
              std::lock_guard lock(made_mutex);
              if (sandboxes.size() >= most) throw std::runtime_error("no more threads");
              auto sandbox = make(system, owner);
              sandboxes.push_back(sandbox);
              return sandbox;
            },
            chosen.position,
            [this](const sandbox_pool_counts& counts) {
              std::lock_guard lock(counts_mutex);
              latest = counts;
              most_live = std::max(most_live, counts.live);
            })) {
    for (std::size_t i = 0; i < chosen.engines; ++i) {
      scripts.push_back(std::make_shared<model_script>());
      models.push_back(g.add<model>("model " + std::to_string(i), scripts.back()));
    }
    if (chosen.wired) wire();
  }
  world(sandbox_pool_settings settings, environment_type type) : world(settings, std::move(type), options{}) {}

  ~world() {
    {
      std::lock_guard lock(made_mutex);
      sandboxes.clear();
    }
    g.stop(0ms, 2000ms);
    // No CHECK in a destructor: a sandbox that is left would keep the runtime's from ending, and the test from passing.
  }

  void wire() {
    for (auto& m : models) g.connect(pool, sandbox_pool::engines, m);
    g.connect(pool, sandbox_pool::records, g.add<sink>("sink", out));
  }
  void grant(std::uint64_t groups, weight_version live = 0) { g.tell(pool, grant_admission{groups, live}); }
  bool records(std::size_t count) {
    return eventually([&] { return out->record_count() >= count; }) && out->record_count() == count;
  }
  bool dropped(std::size_t count) {
    return eventually([&] { return out->dropped_count() >= count; }) && out->dropped_count() == count;
  }
  sandbox_pool_counts counts() {
    std::lock_guard lock(counts_mutex);
    return latest;
  }
  template <class Condition>
  bool counted(Condition condition) {
    return eventually([&] { return condition(counts()); });
  }
};

}  // namespace weir::testing

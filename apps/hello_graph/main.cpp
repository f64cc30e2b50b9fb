// A graph of one's own in under 100 lines: an environment and its reward (a slot machine with three arms), and a policy
// that learns, which is an actor of one's own. No language model, no libtorch.
//
//   collector --admission credits--> sandbox pool --turns--> policy
//        ^------------------ episodes ----------------------- policy <-- episodes -- pool's sandboxes
#include <array>
#include <cstdio>
#include <future>

#include "weir/buffer/episode_collector.hpp"
#include "weir/runtime/graph.hpp"
#include "weir/runtime/random.hpp"
#include "weir/sandbox/in_process_sandbox.hpp"

using namespace weir;

// The environment: one turn, whose first token is the arm to pull.
class slot_machine final : public environment {
 public:
  result<observation> reset(const nlohmann::json& task, std::uint64_t seed) override {
    chances_ = task.get<std::array<double, 3>>();
    luck_ = to_unit(seed);
    return observation(std::vector<token>{0});
  }
  result<step_result> step(const action& turn) override {
    step_result outcome;
    outcome.terminated = true;
    outcome.success = luck_ < chances_.at(static_cast<std::size_t>(turn.tokens[0]));
    outcome.reward = outcome.success ? 1 : 0;
    return outcome;
  }

 private:
  std::array<double, 3> chances_{};
  double luck_ = 0;
};

// The actor: answers turns as a rollout engine does, and learns from the episodes as they pass.
using policy_actor =
    node_interface<on<generation(generate_request)>, on<void(episode_record)>, on<void(group_dropped)>>;

class bandit_policy final : public node<policy_actor> {
 public:
  static constexpr port<bandit_policy, episode_sink> records{"records"};
  explicit bandit_policy(caf::actor_config& config) : node(config) {}

  policy_actor::behavior_type make_behavior() override {
    return behave([] { return drained{}; },
                  [this](const generate_request& request) {
                    random_stream random(request.seed);
                    std::size_t arm = random.uniform() < 0.1 ? random.below(3) : 0;
                    if (arm == 0)
                      for (std::size_t i = 1; i < 3; ++i) arm = value(i) > value(arm) ? i : arm;
                    return generation{{static_cast<token>(arm)}, {0.0F}, {version_}, finish_reason::stop};
                  },
                  [this](const episode_record& episode) {
                    const auto arm = static_cast<std::size_t>(episode.record.tokens.back());
                    pulls_.at(arm) += 1;
                    wins_.at(arm) += episode.record.reward;
                    ++version_;
                    send(*records_, episode);
                  },
                  [this](const group_dropped& gone) { send(*records_, gone); });
  }

 private:
  double value(std::size_t arm) const { return pulls_[arm] == 0 ? 1 : wins_[arm] / pulls_[arm]; }
  std::array<double, 3> pulls_{}, wins_{};
  weight_version version_ = 0;
  edge<episode_sink> records_{*this, records};
};

int main() {
  auto runtime = actor_runtime::with<caf::id_block::weir_actors>(2);
  graph g(runtime.system());
  environment_registry known;
  known.add<slot_machine>("slot machine");
  sandbox_pool_settings settings;
  settings.sandboxes = 8;
  settings.group_size = 1;
  auto tasks = std::make_shared<task_stream>(std::vector<std::string>{"[0.2, 0.5, 0.8]"}, 1);
  std::promise<collected_episodes> finished;

  auto policy = g.add<bandit_policy>("policy");
  auto pool =
      g.add<sandbox_pool>("pool", settings, tasks, in_process_sandboxes(*known.find("slot machine"), {}, nullptr));
  auto collector = g.add<episode_collector>("collector", 2000, 1,
                                            [&](collected_episodes all) { finished.set_value(std::move(all)); });
  g.connect(pool, sandbox_pool::engines, policy);
  g.connect(pool, sandbox_pool::records, policy);
  g.connect(policy, bandit_policy::records, collector);
  g.connect(collector, episode_collector::admission, pool);

  const auto all = finished.get_future().get();
  double first = 0, last = 0;
  for (std::size_t i = 0; i < 200; ++i)
    first += all.records[i].reward, last += all.records[all.records.size() - 1 - i].reward;
  std::printf("mean reward of the first 200 episodes %.2f, of the last 200 %.2f (the best arm pays 0.80)\n",
              first / 200, last / 200);
  return g.stop(std::chrono::seconds(1), std::chrono::seconds(1)).clean() ? 0 : 1;
}

// The staleness bound as a property of the whole flow: pool, sandboxes, assembly, buffer and weight store as they are,
// engines and trainer of the test's own that take their time at random. No trajectory that is trained on has a token
// older than the bound, no more is under way than the credits allow, and nothing ever stands still.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "catch.hpp"
#include "weir/buffer/group_assembly.hpp"
#include "weir/buffer/trajectory_buffer.hpp"
#include "weir/runtime/graph.hpp"
#include "weir/runtime/random.hpp"
#include "weir/sandbox/in_process_sandbox.hpp"
#include "weir/weights/weight_store.hpp"

using namespace std::chrono_literals;

namespace {

/// Two turns, now and then an episode that fails.
class two_turns final : public weir::environment {
 public:
  weir::result<weir::observation> reset(const nlohmann::json&, std::uint64_t seed) override {
    turns_ = 0;
    fails_ = seed % 29 == 0;
    return weir::observation(std::vector<weir::token>{1});
  }
  weir::result<weir::step_result> step(const weir::action&) override {
    if (fails_) return weir::fail(weir::errc::internal, "as the seed wants");
    weir::step_result out;
    out.terminated = ++turns_ == 2;
    out.next = std::vector<weir::token>{2};
    return out;
  }

 private:
  int turns_ = 0;
  bool fails_ = false;
};

using slow_engine_actor =
    weir::node_interface<weir::on<weir::generation(weir::generate_request)>,
                         weir::on<weir::weights_adopted(weir::adopt_weights)>, weir::on<void(weir::tick)>>;

/// Answers each turn, and each new version, after a while; a turn's token has the version of the moment it was made.
class slow_engine : public weir::node<slow_engine_actor> {
 public:
  slow_engine(caf::actor_config& config, std::uint64_t seed) : node(config), random_(seed) {}
  slow_engine_actor::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; },
                  [this](const weir::generate_request&) {
                    turns_.push_back(make_response_promise<weir::generation>());
                    auto answer = turns_.back();
                    delayed_send(this, delay(), weir::tick{});
                    return answer;
                  },
                  [this](const weir::adopt_weights& m) {
                    next_.push_back({m.version, make_response_promise<weir::weights_adopted>()});
                    auto answer = next_.back().second;
                    delayed_send(this, delay(), weir::tick{});
                    return answer;
                  },
                  [this](const weir::tick&) {
                    // What is ready first is as random as the delays.
                    if (!next_.empty() && (turns_.empty() || random_.below(2) == 0)) {
                      version_ = next_.front().first;
                      next_.front().second.deliver(weir::weights_adopted{version_});
                      next_.erase(next_.begin());
                    } else if (!turns_.empty()) {
                      const auto i = static_cast<std::ptrdiff_t>(random_.below(turns_.size()));
                      turns_[static_cast<std::size_t>(i)].deliver(
                          weir::generation{{3}, {-1.0F}, {version_}, weir::finish_reason::stop});
                      turns_.erase(turns_.begin() + i);
                    }
                  });
  }
  void on_exit() override {
    turns_.clear();
    next_.clear();
    node::on_exit();
  }

 private:
  std::chrono::microseconds delay() {
    return std::chrono::microseconds(random_.below(random_.below(10) == 0 ? 20'000 : 1'000));
  }
  weir::random_stream random_;
  weir::weight_version version_ = 0;
  std::vector<weir::promise<weir::generation>> turns_;
  std::vector<std::pair<weir::weight_version, weir::promise<weir::weights_adopted>>> next_;
};

struct observed {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::uint64_t> staleness;  ///< the largest of each batch
  std::uint64_t steps = 0;
  std::atomic<std::uint64_t> most_held{0}, bound{0}, stale{0}, dropped{0};
};

using test_trainer_actor = weir::node_interface<weir::on<void(weir::start_training)>, weir::on<void(weir::tick)>>;

class test_trainer : public weir::node<test_trainer_actor> {
 public:
  static constexpr weir::port<test_trainer, weir::batch_source> batches{"batches"};
  static constexpr weir::port<test_trainer, weir::weight_sink> versions{"versions"};
  test_trainer(caf::actor_config& config, observed& seen, std::uint64_t steps, std::uint64_t seed)
      : node(config), seen_(seen), steps_(steps), random_(seed) {}

  test_trainer_actor::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; }, [this](const weir::start_training&) { step(); },
                  [this](const weir::tick&) {
                    ++version_;
                    step();
                  });
  }

 private:
  void step() {
    {
      std::lock_guard lock(seen_.mutex);
      seen_.steps = version_;
      seen_.changed.notify_all();
    }
    if (version_ == steps_) return;
    request(*versions_, caf::infinite, weir::publish_weights{version_})
        .then([](const weir::weights_released&) {}, [](const caf::error&) {});
    request(*batches_, caf::infinite, weir::next_batch{version_})
        .then(
            [this](const weir::training_batch& batch) {
              std::uint64_t most = 0;
              for (const auto& g : batch.groups)
                for (const auto& t : g.trajectories)
                  most = std::max(most, version_ - weir::oldest_version(t, version_));
              {
                std::lock_guard lock(seen_.mutex);
                seen_.staleness.push_back(most);
              }
              delayed_send(this, std::chrono::microseconds(random_.below(3'000)), weir::tick{});
            },
            [](const caf::error&) {});
  }
  observed& seen_;
  std::uint64_t steps_;
  weir::random_stream random_;
  weir::weight_version version_ = 0;
  weir::edge<weir::batch_source> batches_{*this, batches};
  weir::edge<weir::weight_sink> versions_{*this, versions};
};

void run(std::uint64_t bound, std::uint64_t batch_groups, std::uint32_t group_size, std::uint32_t sandboxes,
         int engines, std::uint64_t seed) {
  INFO("bound " << bound << ", batch " << batch_groups << ", group " << group_size << ", sandboxes " << sandboxes
                << ", engines " << engines << ", seed " << seed);
  constexpr std::uint64_t steps = 25;
  auto runtime = weir::actor_runtime::with<caf::id_block::weir_actors>(2);
  observed seen;
  weir::graph g(runtime.system());
  auto buffer = g.add<weir::trajectory_buffer>(
      "buffer", weir::staleness_settings{batch_groups, bound, steps}, [&](const weir::buffer_fill& f) {
        seen.most_held = std::max<std::uint64_t>(seen.most_held, f.waiting + f.under_way);
        seen.bound = f.bound;
        seen.stale = f.stale;
      });
  auto assembly = g.add<weir::group_assembly>("assembly", group_size);
  weir::sandbox_pool_settings pool_settings;
  pool_settings.sandboxes = sandboxes;
  pool_settings.group_size = group_size;
  pool_settings.max_turns = 2;
  pool_settings.seed = seed;
  weir::environment_registry known;
  known.add<two_turns>("two turns");
  auto pool = g.add<weir::sandbox_pool>(
      "pool", pool_settings, std::make_shared<weir::task_stream>(std::vector<std::string>{"1", "2", "3"}, seed),
      weir::in_process_sandboxes(*known.find("two turns"), {}, nullptr), weir::data_position{},
      [&](const weir::sandbox_pool_counts& c) { seen.dropped = c.dropped_groups; });
  auto store = g.add<weir::weight_store>("store");
  auto trainer = g.add<test_trainer>("trainer", std::ref(seen), steps, seed + 1);
  for (int i = 0; i < engines; ++i) {
    auto engine = g.add<slow_engine>("engine", seed + 2 + static_cast<std::uint64_t>(i));
    g.connect(pool, weir::sandbox_pool::engines, engine);
    g.connect(store, weir::weight_store::engines, engine);
  }
  g.connect(pool, weir::sandbox_pool::records, assembly);
  g.connect(assembly, weir::group_assembly::groups, buffer);
  g.connect(buffer, weir::trajectory_buffer::admission, pool);
  g.connect(store, weir::weight_store::listeners, buffer);
  g.connect(trainer, test_trainer::batches, buffer);
  g.connect(trainer, test_trainer::versions, store);
  g.tell(trainer, weir::start_training{});
  {
    std::unique_lock lock(seen.mutex);
    CHECK(seen.changed.wait_for(lock, 60s, [&] { return seen.steps == steps; }));
  }
  CHECK_FALSE(g.failure());
  CHECK(g.stop(5s, 1s).clean());
  std::lock_guard lock(seen.mutex);
  CHECK(seen.staleness.size() == steps);
  for (auto s : seen.staleness) CHECK(s <= bound);
  CHECK(seen.stale == 0);
  CHECK(seen.most_held <= seen.bound);
}

}  // namespace

TEST_CASE("no token that is trained on is older than the bound, whatever the timing") {
  weir::random_stream random(20'260'101);
  for (std::uint64_t seed = 0; seed < 12; ++seed)
    run(random.below(4), 1 + random.below(5), static_cast<std::uint32_t>(1 + random.below(4)),
        static_cast<std::uint32_t>(1 + random.below(20)), static_cast<int>(1 + random.below(2)), seed * 100);
}

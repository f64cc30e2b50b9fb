// What does not answer, or is gone: environments that hang or are slow, models, sandboxes and engines that end.
#include <condition_variable>
#include <mutex>

#include "support.hpp"

using namespace weir::testing;
using weir::observation;
using weir::result;
using weir::step_result;

namespace {

/// Blocks whoever waits until it is opened.
class gate {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
  }
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  int waiting() {
    std::lock_guard lock(mutex_);
    return waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int waiting_ = 0;
};

/// Opens the gate when the test ends, however it ends: else a thread would wait for ever.
struct opened_at_the_end {
  gate& closed;
  ~opened_at_the_end() { closed.open(); }
};

}  // namespace

TEST_CASE("an environment that hangs misses its deadline and costs its episode, no other") {
  gate hang;
  auto settings = settings_of(2, 1);
  settings.episode_timeout = 300ms;
  world::options chosen;
  chosen.threads = 1;  // an environment has its own
  world w(settings, kind([&] {
            auto task = std::make_shared<int>(0);
            environment_script s;
            s.reset = [task](const nlohmann::json& t, std::uint64_t) -> result<observation> {
              *task = t.get<int>();
              return observation(tokens{1});
            };
            s.step = [&hang, task](const weir::action&) -> result<step_result> {
              if (*task == 1) hang.wait();
              step_result out;
              out.terminated = true;
              return out;
            };
            return s;
          }),
          chosen);
  const opened_at_the_end release{hang};
  w.grant(8);
  CHECK(w.records(7));
  CHECK(w.dropped(1));
  CHECK(hang.waiting() == 1);
  {
    std::lock_guard lock(w.out->mutex);
    REQUIRE(w.out->dropped.size() == 1);
    CHECK(w.out->dropped[0].group == 1);
    CHECK(w.out->dropped[0].reason == "no end by the deadline of 300 ms");
  }
  // Told although nothing else happened.
  CHECK(w.counted([](const auto& c) { return c.live == 0 && c.dropped_groups == 1 && c.finished == 7; }));
  w.grant(2);  // a new sandbox stands where the hanging one was
  CHECK(w.records(9));
  CHECK(w.most_live <= 2);
  hang.open();
  CHECK(eventually([&] { return hang.waiting() == 0; }));
  CHECK(w.counted([](const auto& c) { return c.finished == 9; }));  // whatever the late one still sent
}

TEST_CASE("slow environments run at once, however few threads the other actors have") {
  constexpr int many = 16;
  gate slow;
  opened_at_the_end end{slow};
  world::options chosen;
  chosen.threads = 1;
  world w(settings_of(many, many), kind([&] {
            environment_script s;
            s.step = [&](const weir::action&) -> result<step_result> {
              slow.wait();
              step_result out;
              out.terminated = true;
              return out;
            };
            return s;
          }),
          chosen);
  w.grant(1);
  for (int i = 0; i < 5000 && slow.waiting() < many; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(slow.waiting() == many);
  slow.open();
  CHECK(w.records(many));
}

TEST_CASE("a model that never answers costs an attempt, at the deadline") {
  auto settings = settings_of(1, 1, 1, 1);
  settings.episode_timeout = 100ms;
  world w(settings, kind([] { return environment_script{}; }));
  w.scripts[0]->answer = [](const auto&, std::size_t n) { return n == 0 ? reply{said({1}), reply::never} : reply{}; };
  w.grant(1);
  REQUIRE(w.records(1));
  CHECK(w.out->records[0].spec.attempt == 1);
  CHECK(w.counts().last_failure == "no end by the deadline of 100 ms");
}

TEST_CASE("an answer to an episode that was given up is not taken for another's") {
  auto settings = settings_of(1, 1, 1, 1);
  settings.episode_timeout = 100ms;
  world w(settings, kind([] { return environment_script{}; }));
  w.scripts[0]->answer = [](const auto&, std::size_t n) {
    return n == 0 ? reply{said({66}), reply::held} : reply{said({77})};
  };
  w.grant(1);
  REQUIRE(w.records(1));
  w.g.tell(w.models[0], weir::tick{});
  w.grant(1);
  REQUIRE(w.records(2));
  for (const auto& r : w.out->records) CHECK(r.record.tokens.back() == 77);
}

namespace {

/// Stands where the pool does: keeps what its sandbox reports.
class listener : public weir::node<weir::sandbox_pool_actor> {
 public:
  listener(caf::actor_config& config, std::shared_ptr<std::atomic<int>> ends) : node(config), ends_(std::move(ends)) {}
  weir::sandbox_pool_actor::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; }, [](const weir::grant_admission&) {},
                  [this](const weir::episode_ended&) { ++*ends_; }, [](const weir::tick&) {});
  }

 private:
  std::shared_ptr<std::atomic<int>> ends_;
};

}  // namespace

TEST_CASE("a sandbox that is told to cancel lives on: the late answer is not taken for the next episode's") {
  auto runtime = weir::actor_runtime::with<caf::id_block::weir_actors>(2);
  weir::graph g(runtime.system());
  auto ends = std::make_shared<std::atomic<int>>(0);
  auto script = std::make_shared<model_script>();
  auto out = std::make_shared<outcomes>();
  script->answer = [](const auto&, std::size_t n) { return reply{said({static_cast<weir::token>(n)}), reply::held}; };
  auto pool = g.add<listener>("pool", ends);
  auto engine = g.add<model>("model", script);
  auto records = g.add<sink>("sink", out);
  auto sandbox =
      weir::in_process_sandboxes(kind([] { return environment_script{}; }), {}, nullptr)(runtime.system(), pool.handle);
  weir::run_episode order;
  order.spec.task = "0";
  order.engine = caf::actor_cast<weir::generator_actor>(engine.handle);
  order.records = caf::actor_cast<weir::episode_sink>(records.handle);
  caf::anon_send(sandbox, order);
  caf::anon_send(sandbox, weir::cancel_episode{0, 0, 1});  // another attempt: not this one
  caf::anon_send(sandbox, weir::cancel_episode{0, 0, 0});
  order.spec.attempt = 1;
  caf::anon_send(sandbox, order);
  const bool both_asked = eventually([&] { return script->count() == 2; });
  g.tell(engine, weir::tick{});
  CHECK(both_asked);
  CHECK(eventually([&] { return *ends == 1; }));
  CHECK(eventually([&] { return out->record_count() == 1; }));
  std::this_thread::sleep_for(30ms);
  CHECK(*ends == 1);
  {
    std::lock_guard lock(out->mutex);
    REQUIRE(out->records.size() == 1);
    CHECK(out->records[0].spec.attempt == 1);
    CHECK(out->records[0].record.tokens == tokens{10, 11, 1});
  }
  caf::anon_send_exit(sandbox, caf::exit_reason::user_shutdown);
}

TEST_CASE("a sandbox that ends in mid-episode costs an attempt, and another takes its place") {
  world w(settings_of(1, 1, 1, 1), kind([] { return environment_script{}; }));
  w.scripts[0]->answer = [](const auto&, std::size_t n) { return n == 0 ? reply{said({1}), reply::never} : reply{}; };
  w.grant(1);
  REQUIRE(eventually([&] { return w.scripts[0]->count() == 1; }));
  auto kill_last = [&] {
    std::lock_guard lock(w.made_mutex);
    caf::anon_send_exit(w.sandboxes.back(), caf::exit_reason::kill);
  };
  kill_last();
  REQUIRE(w.records(1));
  CHECK(w.out->records[0].spec.attempt == 1);
  CHECK(w.counts().last_failure == "its sandbox ended in mid-episode");
  REQUIRE(w.counted([](const auto& c) { return c.finished == 1; }));

  kill_last();  // an idle one: nothing is lost
  std::this_thread::sleep_for(50ms);
  w.grant(1);
  REQUIRE(w.records(2));
  CHECK(w.counted([](const auto& c) { return c.finished == 2; }));
  CHECK(w.counted([](const auto& c) { return c.retried == 1; }));
  CHECK(w.out->dropped_count() == 0);
}

TEST_CASE("an engine that ends gets no more episodes; those that it had are run elsewhere") {
  world::options chosen;
  chosen.engines = 2;
  world w(settings_of(8, 1, 1, 1), kind([] { return environment_script{}; }), chosen);
  w.scripts[0]->answer = [](const auto&, auto) { return reply{said({1}), reply::held}; };
  w.scripts[1]->answer = w.scripts[0]->answer;
  w.grant(8);
  REQUIRE(eventually([&] { return w.scripts[0]->count() == 4 && w.scripts[1]->count() == 4; }));
  caf::anon_send_exit(w.models[0].handle, caf::exit_reason::kill);
  REQUIRE(eventually([&] { return w.scripts[1]->count() >= 8; }));
  w.grant(12);
  w.g.tell(w.models[1], weir::tick{});
  REQUIRE(w.records(20));
  CHECK(w.scripts[0]->count() == 4);
  CHECK(w.out->dropped_count() == 0);
}

TEST_CASE("an end that nobody's sandbox reports is ignored") {
  world w(settings_of(1, 1), kind([] { return environment_script{}; }));
  w.scripts[0]->answer = [](const auto&, auto) { return reply{said({1}), reply::held}; };
  w.grant(1);
  REQUIRE(eventually([&] { return w.scripts[0]->count() == 1; }));
  w.g.tell(w.pool, weir::episode_ended{0, 0, 0, "from nobody"});
  w.self->send(w.pool.handle, weir::episode_ended{0, 0, 0, "from a stranger"});
  w.g.tell(w.models[0], weir::tick{});
  REQUIRE(w.records(1));
  CHECK(w.counted([](const auto& c) { return c.finished == 1; }));
  CHECK(w.counts().last_failure.empty());
  CHECK_FALSE(w.g.failure());
}

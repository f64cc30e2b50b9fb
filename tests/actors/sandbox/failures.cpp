// What goes wrong in an episode costs that episode, is tried again, and then costs its group: never more.
#include <limits>

#include "support.hpp"

using namespace weir::testing;
using weir::observation;
using weir::result;
using weir::step_result;

namespace {

/// What an environment does when it should fail.
using failing = std::function<void()>;
const failing throws_std = [] { throw std::runtime_error("out of cards"); };
const failing throws_other = [] { throw 42; };  // NOLINT(hicpp-exception-baseclass)

struct fault {
  const char* name;
  std::string reason;  ///< what the pool must report
  std::function<result<void>()> in_make, in_reset, in_step;
};

result<void> thrown(const failing& how) {
  how();
  return {};
}
result<void> refused() { return weir::fail(weir::errc::internal, "out of cards"); }

const std::vector<fault> faults{
    {"make refuses", "the environment could not be made: out of cards", refused, {}, {}},
    {"make throws",
     "the environment could not be made: the environment's constructor threw: out of cards",
     [] { return thrown(throws_std); },
     {},
     {}},
    {"make throws an int",
     "the environment could not be made: the environment's constructor threw what is no std::exception",
     [] { return thrown(throws_other); },
     {},
     {}},
    {"reset refuses", "out of cards", {}, refused, {}},
    {"reset throws", "the environment's reset threw: out of cards", {}, [] { return thrown(throws_std); }, {}},
    {"reset throws an int",
     "the environment's reset threw what is no std::exception",
     {},
     [] { return thrown(throws_other); },
     {}},
    {"step refuses", "out of cards", {}, {}, refused},
    {"step throws", "the environment's step threw: out of cards", {}, {}, [] { return thrown(throws_std); }},
    {"step throws an int",
     "the environment's step threw what is no std::exception",
     {},
     {},
     [] { return thrown(throws_other); }},
};

/// Fails `failures` times in all, wherever `f` says, then never again.
weir::environment_type faulty(const fault& f, std::shared_ptr<std::atomic<int>> failures) {
  auto due = [failures](const std::function<result<void>()>& fail_here) -> result<void> {
    if (fail_here && failures->fetch_sub(1) > 0) return fail_here();
    return {};
  };
  return {[f, due](const nlohmann::json&) -> result<std::unique_ptr<weir::environment>> {
            if (auto r = due(f.in_make); !r) return weir::fail(r.error());
            environment_script s;
            s.reset = [f, due](const nlohmann::json&, std::uint64_t) -> result<observation> {
              if (auto r = due(f.in_reset); !r) return weir::fail(r.error());
              return observation(tokens{1});
            };
            s.step = [f, due](const weir::action&) -> result<step_result> {
              if (auto r = due(f.in_step); !r) return weir::fail(r.error());
              step_result out;
              out.terminated = true;
              return out;
            };
            return made(s);
          },
          {}};
}

}  // namespace

TEST_CASE("an environment's failure is retried, then drops its group with the reason; the next group is well") {
  for (const auto& f : faults) {
    INFO(f.name);
    auto failures = std::make_shared<std::atomic<int>>(3);
    world w(settings_of(1, 1, 1, 2), faulty(f, failures));
    w.grant(2, 5);
    REQUIRE(w.dropped(1));
    REQUIRE(w.records(1));
    CHECK(w.out->dropped[0].group == 0);
    CHECK(w.out->dropped[0].admitted == 5);
    CHECK(w.out->dropped[0].reason == f.reason);
    CHECK(w.out->records[0].spec.group == 1);
    CHECK(w.counted([](const auto& c) { return c.retried == 2 && c.dropped_groups == 1 && c.finished == 1; }));
    CHECK(w.counts().last_failure == f.reason);
    CHECK_FALSE(w.g.failure());
    std::lock_guard lock(w.made_mutex);
    CHECK(w.sandboxes.size() == 1);  // the sandbox lives on
  }
}

TEST_CASE("a retry has a new attempt number and the same seed") {
  for (const auto& f : faults) {
    INFO(f.name);
    auto failures = std::make_shared<std::atomic<int>>(1);
    world w(settings_of(1, 1, 1, 1), faulty(f, failures));
    w.grant(1);
    REQUIRE(w.records(1));
    CHECK(w.out->records[0].spec.attempt == 1);
    CHECK(w.out->records[0].spec.seed == weir::derive_seed(7, "episode", 0, 0));
    CHECK(w.out->dropped_count() == 0);
  }
  std::mutex mutex;
  std::vector<std::uint64_t> seeds;
  world w(settings_of(1, 2, 1, 1), kind([&] {
            environment_script s;
            s.reset = [&](const nlohmann::json&, std::uint64_t seed) -> result<observation> {
              std::lock_guard lock(mutex);
              seeds.push_back(seed);
              if (seeds.size() == 1) return weir::fail(weir::errc::internal, "once");
              return observation(tokens{1});
            };
            return s;
          }));
  w.grant(1);
  REQUIRE(w.records(2));
  CHECK(seeds == std::vector<std::uint64_t>{weir::derive_seed(7, "episode", 0, 0),
                                            weir::derive_seed(7, "episode", 0, 0),
                                            weir::derive_seed(7, "episode", 0, 1)});
}

TEST_CASE("what an environment may not give is a failure that says so") {
  auto with_prompt = [](observation prompt) {
    return kind([prompt] {
      environment_script s;
      s.reset = [prompt](const nlohmann::json&, std::uint64_t) -> result<observation> { return prompt; };
      return s;
    });
  };
  auto reason_of = [](weir::environment_type type, std::vector<std::string> tasks) {
    world::options chosen;
    chosen.tasks = std::move(tasks);
    world w(settings_of(1, 1), std::move(type), chosen);
    w.grant(1);
    REQUIRE(w.dropped(1));
    return w.out->dropped[0].reason;
  };
  CHECK(reason_of(with_prompt(tokens{}), {"1"}).find("empty prompt") != std::string::npos);
  CHECK(reason_of(with_prompt("text"), {"1"}).find("no tokenizer") != std::string::npos);
  CHECK(reason_of(with_prompt(tokens{1}), {"{broken"}).find("no JSON: {broken") != std::string::npos);
  auto nothing = kind([] { return environment_script{}; });
  nothing.make = [](const nlohmann::json&) -> result<std::unique_ptr<weir::environment>> {
    return std::unique_ptr<weir::environment>{};
  };
  CHECK(reason_of(nothing, {"1"}).find("maker returned none") != std::string::npos);
  CHECK(reason_of(kind([] {
                    environment_script s;
                    s.reset = [](const nlohmann::json&, std::uint64_t) -> result<observation> {
                      return weir::fail(weir::errc::internal, "");
                    };
                    return s;
                  }),
                  {"1"}) == "it failed");
  for (double reward : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity(), 1e200})
    CHECK(reason_of(kind([reward] {
                      environment_script s;
                      s.step = [reward](const weir::action&) -> result<step_result> {
                        step_result out;
                        out.reward = reward;
                        out.terminated = true;
                        return out;
                      };
                      return s;
                    }),
                    {"1"})
              .find("step gave a reward of " + std::to_string(reward).substr(0, 3)) != std::string::npos);
}

TEST_CASE("a group with one failure is reported once none of its episodes runs, and nothing of it comes after") {
  world w(settings_of(3, 3), kind([] {
            environment_script s;
            s.step = [](const weir::action& a) -> result<step_result> {
              if (a.tokens[0] == 99) return weir::fail(weir::errc::internal, "bad luck");
              step_result out;
              out.terminated = true;
              return out;
            };
            return s;
          }));
  w.scripts[0]->answer = [](const auto&, std::size_t n) {
    return n == 0 ? reply{said({99})} : reply{said({1}), reply::held};
  };
  w.grant(1);
  REQUIRE(eventually([&] { return w.scripts[0]->count() == 3; }));
  REQUIRE(w.counted([](const auto& c) { return c.last_failure == "bad luck"; }));
  CHECK(w.out->dropped_count() == 0);  // two still run
  w.g.tell(w.models[0], weir::tick{});
  REQUIRE(w.dropped(1));
  CHECK(w.out->order == std::vector<std::string>{"record 0", "record 0", "dropped 0"});
  CHECK(w.counted([](const auto& c) { return c.dropped_groups == 1; }));
}

TEST_CASE("episodes of a failed group that wait for a sandbox are not started") {
  world w(settings_of(1, 50), kind([] {
            environment_script s;
            s.reset = [](const nlohmann::json& task, std::uint64_t) -> result<observation> {
              if (task == 0) return weir::fail(weir::errc::internal, "bad task");
              return observation(tokens{1});
            };
            return s;
          }));
  w.grant(2);
  REQUIRE(w.records(50));
  CHECK(w.out->dropped_count() == 1);
  CHECK(w.counted([](const auto& c) { return c.finished == 50; }));
  CHECK(w.counted([](const auto& c) { return c.retried == 0; }));
}

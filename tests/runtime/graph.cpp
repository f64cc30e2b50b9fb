// The graph builder: wiring, draining, stopping, failures.
#include "weir/runtime/graph.hpp"

#include <atomic>
#include <thread>

#include "catch.hpp"

using namespace std::chrono_literals;

namespace {

struct ball {
  int bounces = 0;
};
struct other {
  int value = 0;
};
template <class Inspector>
auto inspect(Inspector& f, ball& x) {
  return weir::inspect_fields(f, "ball", x.bounces);
}
template <class Inspector>
auto inspect(Inspector& f, other& x) {
  return weir::inspect_fields(f, "other", x.value);
}

}  // namespace

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ball)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(other)

namespace {

using catcher_actor = weir::node_interface<weir::on<void(ball)>>;
using other_actor = weir::node_interface<weir::on<void(other)>>;

/// Passes a ball on until it has bounced `limit` times; counts what it caught.
class player : public weir::node<catcher_actor> {
 public:
  static constexpr weir::port<player, weir::interface<weir::on<void(ball)>>> throws { "throws" };
  player(caf::actor_config& config, std::atomic<int>& caught, int limit, bool slow_drain = false)
      : node(config), caught_(caught), limit_(limit), slow_drain_(slow_drain) {}

  catcher_actor::behavior_type make_behavior() override {
    return behave(
        [this]() -> weir::promise<weir::drained> {
          auto answer = make_response_promise<weir::drained>();
          if (!slow_drain_)
            answer.deliver(weir::drained{});
          else
            held_ = answer;
          return answer;
        },
        [this](const ball& b) {
          ++caught_;
          if (b.bounces < 0) throw std::runtime_error("a ball with negative bounces");
          if (b.bounces < limit_) send(*throws_, ball{b.bounces + 1});
        });
  }

  void on_exit() override {
    held_ = {};  // a promise holds its own actor
    node::on_exit();
  }

 private:
  std::atomic<int>& caught_;
  int limit_;
  bool slow_drain_;
  weir::promise<weir::drained> held_;
  weir::edge<weir::interface<weir::on<void(ball)>>> throws_ { *this, throws };
};

class deaf : public weir::node<other_actor> {
 public:
  explicit deaf(caf::actor_config& config) : node(config) {}
  other_actor::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; }, [](const other&) {});
  }
};

/// Blocks its own thread, whatever it is told, until `release`.
class blocker : public weir::node<other_actor> {
 public:
  blocker(caf::actor_config& config, std::atomic<bool>& release) : node(config), release_(release) {}
  other_actor::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; },
                  [this](const other&) {
                    while (!release_) std::this_thread::sleep_for(1ms);
                  });
  }

 private:
  std::atomic<bool>& release_;
};

template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
  return condition();
}

// Wiring that doesn't fit is no overload of connect: the output's target must be answered, and the output be the
// actor's.
static_assert(weir::wirable<player, decltype(player::throws), player>);
static_assert(!weir::wirable<player, decltype(player::throws), deaf>);
static_assert(!weir::wirable<deaf, decltype(player::throws), player>);

}  // namespace

TEST_CASE("a cycle of actors runs, drains and stops") {
  auto runtime = weir::actor_runtime::with(1);
  std::atomic<int> caught{0};
  weir::graph g(runtime.system());
  auto a = g.add<player>("a", std::ref(caught), 100);
  auto b = g.add_with_thread<player>("b", std::ref(caught), 100);
  g.connect(a, player::throws, b);
  g.connect(b, player::throws, a);
  g.tell(a, ball{0});
  REQUIRE(eventually([&] { return caught == 101; }));
  CHECK_FALSE(g.failure());
  CHECK(g.stop(1s, 1s).clean());
}

TEST_CASE("a stop says who did not drain, and ends it all the same") {
  auto runtime = weir::actor_runtime::with(1);
  std::atomic<int> caught{0};
  weir::graph g(runtime.system());
  g.add<player>("quick", std::ref(caught), 1);
  g.add<player>("slow", std::ref(caught), 1, true);
  auto report = g.stop(100ms, 2s);
  CHECK(report.not_drained == std::vector<std::string>{"slow"});
  CHECK(report.killed.empty());
  CHECK(report.stuck.empty());
}

TEST_CASE("an exception in a handler is the graph's failure, with actor and text") {
  auto runtime = weir::actor_runtime::with(1);
  std::atomic<int> caught{0};
  weir::graph g(runtime.system());
  auto a = g.add<player>("fragile", std::ref(caught), 1);
  g.tell(a, ball{-1});
  REQUIRE(eventually([&] { return g.failure().has_value(); }));
  CHECK(g.failure()->node == "fragile");
  CHECK(g.failure()->reason.message == "a ball with negative bounces");
  CHECK(g.stop(1s, 1s).clean());
}

TEST_CASE("an actor whose thread never comes back is named, and stop returns") {
  auto runtime = weir::actor_runtime::with(1);
  std::atomic<bool> release{false};
  weir::graph g(runtime.system());
  auto a = g.add_with_thread<blocker>("blocker", std::ref(release));
  g.tell(a, other{1});
  std::this_thread::sleep_for(20ms);
  auto report = g.stop(0ms, 50ms);
  CHECK(report.stuck == std::vector<std::string>{"blocker"});
  release = true;
}

TEST_CASE("two runtimes live in one process") {
  auto first = weir::actor_runtime::with(1);
  auto second = weir::actor_runtime::with(1);
  std::atomic<int> caught{0};
  weir::graph g1(first.system());
  weir::graph g2(second.system());
  g1.tell(g1.add<player>("p", std::ref(caught), 0), ball{0});
  g2.tell(g2.add<player>("p", std::ref(caught), 0), ball{0});
  CHECK(eventually([&] { return caught == 2; }));
}

// The staleness bound holds whatever the timing: a simulated run with random delays, and each rule by itself.
#include "weir/buffer/staleness_ledger.hpp"

#include <deque>
#include <queue>

#include "catch.hpp"
#include "weir/runtime/random.hpp"

using weir::staleness_ledger;
using weir::trajectory_group;
using weir::weight_version;

namespace {

trajectory_group group_of(std::uint64_t number, weight_version admitted, weight_version drawn) {
  trajectory_group g{number, admitted, {}};
  weir::trajectory t;
  t.tokens = {1, 2};
  t.mask = {0, 1};
  t.logprobs = {0, -1};
  t.versions = {0, drawn};
  g.trajectories.push_back(t);
  return g;
}

/// What a run did, to be compared with the bound.
struct outcome {
  std::uint64_t steps = 0;
  std::uint64_t worst = 0;
  std::uint64_t stale = 0;
  std::uint64_t most_held = 0;
  std::uint64_t started = 0;
};

/// A run on virtual time: groups take random times with a heavy tail, some are dropped, engines adopt versions late,
/// the trainer's steps take random times. `hasty` breaks the ledger's rule: it trains as soon as B groups are there.
outcome simulate(std::uint64_t seed, weir::staleness_settings settings, std::uint64_t steps, bool hasty = false) {
  struct event {
    double time;
    int kind;  // 0: group ends, 1: engines hold a version, 2: the trainer's step ends
    trajectory_group group;
    weight_version version;
    bool drop;
    bool operator<(const event& other) const { return time > other.time; }
  };
  weir::random_stream random(seed);
  auto delay = [&] {
    const auto u = random.uniform();
    return u < 0.05 ? 200 * random.uniform() : 5 * random.uniform();
  };
  staleness_ledger ledger(settings);
  std::priority_queue<event> events;
  outcome out;
  weight_version engines = 0;
  weight_version trainer = 0;
  weight_version granted_under = 0;
  bool training = false;
  double now = 0;
  std::uint64_t next = 0;
  auto start = [&](std::uint64_t groups) {
    for (; groups > 0; --groups) {
      // The first token is drawn after a wait in a queue: by then the engines may hold a newer version, never an older.
      events.push({now + delay(), 0, group_of(next++, granted_under, engines), 0, random.uniform() < 0.05});
    }
    out.most_held = std::max(out.most_held, ledger.under_way() + ledger.waiting());
  };
  events.push({0, 1, {}, 0, false});
  while (out.steps < steps && !events.empty()) {
    auto e = events.top();
    events.pop();
    now = e.time;
    if (e.kind == 0 && e.drop) start(ledger.dropped(e.group.admitted));
    if (e.kind == 0 && !e.drop) ledger.arrived(e.group);
    if (e.kind == 1 && e.version >= engines) {
      engines = granted_under = e.version;
      start(ledger.weights_live(e.version));
    }
    if (e.kind == 2) {
      training = false;
      ++out.steps;
      ++trainer;
      events.push({now + delay(), 1, {}, trainer, false});
    }
    while (!training && (ledger.ready(trainer) || (hasty && ledger.waiting() >= settings.batch_groups))) {
      auto batch = ledger.take(trainer);
      out.stale += batch.stale.size();
      start(batch.grants);
      if (batch.groups.empty()) continue;
      REQUIRE(batch.groups.size() == settings.batch_groups);
      for (const auto& g : batch.groups)
        out.worst = std::max(out.worst, trainer - weir::oldest_version(g.trajectories[0], 0));
      training = true;
      events.push({now + delay(), 2, {}, 0, false});
    }
  }
  out.started = next;
  return out;
}

}  // namespace

TEST_CASE("no trajectory is ever older than the bound, none is thrown away, and the run never stops") {
  for (std::uint64_t bound : {0, 1, 2, 5})
    for (std::uint64_t batch : {1, 3, 16})
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        auto out = simulate(seed, {batch, bound}, 200);
        INFO("bound " << bound << ", batch " << batch << ", seed " << seed);
        CHECK(out.steps == 200);
        CHECK(out.worst <= bound);
        CHECK(out.stale == 0);
        CHECK(out.most_held <= (bound + 1) * batch);
      }
}

TEST_CASE("training as soon as a batch is full would break the bound, and is caught") {
  std::uint64_t stale = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto out = simulate(seed, {4, 1}, 200, true);
    stale += out.stale;
    CHECK(out.worst <= 1);  // what would break it is taken out
  }
  CHECK(stale > 0);
}

TEST_CASE("synchronous: one batch is admitted, and the next only when its weights are live") {
  staleness_ledger ledger({4, 0});
  CHECK(ledger.weights_live(0) == 4);
  CHECK(ledger.weights_live(0) == 0);
  for (std::uint64_t g = 0; g < 3; ++g) ledger.arrived(group_of(g, 0, 0));
  CHECK_FALSE(ledger.ready(0));
  CHECK(ledger.dropped(0) == 1);
  ledger.arrived(group_of(4, 0, 0));
  REQUIRE(ledger.ready(0));
  CHECK(ledger.take(0).groups.size() == 4);
  CHECK(ledger.under_way() == 0);
  CHECK_FALSE(ledger.ready(1));
  CHECK(ledger.weights_live(1) == 4);
}

TEST_CASE("a resumed run starts its count where it resumes, and nothing starts for a step that will not come") {
  staleness_ledger ledger({2, 3, 12});
  CHECK(ledger.weights_live(10) == 4);  // two steps are left, though the bound would allow four batches
  CHECK(ledger.weights_live(11) == 0);
}

TEST_CASE("a group that no grant covers is a fault") {
  staleness_ledger ledger({2, 0});
  static_cast<void>(ledger.weights_live(0));
  CHECK_THROWS_AS(ledger.arrived(group_of(0, 7, 7)), std::logic_error);
  CHECK_THROWS_AS(staleness_ledger({0, 0}), std::invalid_argument);
}

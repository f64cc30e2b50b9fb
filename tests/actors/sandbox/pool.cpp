// Admission, limits, sharing, draining: what the pool starts, and when.
#include <algorithm>
#include <map>
#include <set>

#include "support.hpp"

using namespace weir::testing;

namespace {

weir::environment_type plain() {
  return kind([] { return environment_script{}; });
}

reply hold(const weir::generate_request&, std::size_t) { return {said({1}), reply::held}; }

std::map<std::uint64_t, std::set<std::uint32_t>> samples_by_group(world& w) {
  std::map<std::uint64_t, std::set<std::uint32_t>> out;
  std::lock_guard lock(w.out->mutex);
  for (const auto& r : w.out->records) out[r.spec.group].insert(r.spec.sample);
  return out;
}

}  // namespace

TEST_CASE("as many groups start as were granted, each with all its samples") {
  world w(settings_of(4, 3), plain());
  std::this_thread::sleep_for(20ms);
  CHECK(w.scripts[0]->count() == 0);
  w.grant(2);
  REQUIRE(w.records(6));
  std::this_thread::sleep_for(50ms);
  CHECK(w.scripts[0]->count() == 6);
  w.grant(0);
  w.grant(1);
  REQUIRE(w.records(9));
  std::this_thread::sleep_for(50ms);
  CHECK(w.scripts[0]->count() == 9);
  const std::set<std::uint32_t> all{0, 1, 2};
  CHECK(samples_by_group(w) == std::map<std::uint64_t, std::set<std::uint32_t>>{{0, all}, {1, all}, {2, all}});
}

TEST_CASE("never more episodes at once than sandboxes, and all sandboxes are used") {
  world w(settings_of(3, 2), plain());
  w.scripts[0]->answer = hold;
  w.grant(10);
  REQUIRE(eventually([&] { return w.scripts[0]->count() == 3; }));
  CHECK(w.counted([](const auto& c) { return c.live == 3 && c.queued == 17; }));
  std::this_thread::sleep_for(50ms);
  CHECK(w.scripts[0]->count() == 3);
  w.g.tell(w.models[0], weir::tick{});
  REQUIRE(w.records(20));
  CHECK(w.counted([](const auto& c) { return c.live == 0 && c.queued == 0 && c.finished == 20; }));
  CHECK(w.most_live == 3);
  std::lock_guard lock(w.made_mutex);
  CHECK(w.sandboxes.size() == 3);
}

TEST_CASE("no more sandboxes are made than there are episodes") {
  world w(settings_of(64, 1), plain());
  w.grant(2);
  REQUIRE(w.records(2));
  std::lock_guard lock(w.made_mutex);
  CHECK(w.sandboxes.size() <= 2);
}

TEST_CASE("engines share the load") {
  world::options chosen;
  chosen.engines = 3;
  world w(settings_of(9, 1), plain(), chosen);
  for (auto& s : w.scripts) s->answer = hold;
  w.grant(9);
  for (auto& s : w.scripts) CHECK(eventually([&] { return s->count() == 3; }));
  w.g.tell(w.models[1], weir::tick{});  // the one that is free again gets the next
  REQUIRE(w.records(3));
  REQUIRE(w.counted([](const auto& c) { return c.finished == 3; }));
  w.grant(3);
  CHECK(eventually([&] { return w.scripts[1]->count() == 6; }));
  CHECK(w.scripts[0]->count() == 3);
  CHECK(w.scripts[2]->count() == 3);
  for (auto& m : w.models) w.g.tell(m, weir::tick{});
  CHECK(w.records(12));
}

TEST_CASE("groups that are granted before the wires are set start once they are") {
  world::options chosen;
  chosen.wired = false;
  world w(settings_of(2, 2), plain(), chosen);
  w.grant(2);
  REQUIRE(w.counted([](const auto& c) { return c.queued == 4; }));
  w.wire();
  CHECK(w.records(4));
}

TEST_CASE("a drain waits for what runs, starts nothing, and lets no group go") {
  world w(settings_of(2, 3, 1, 1), plain());
  w.scripts[0]->answer = [](const auto&, std::size_t n) {
    return n == 0 ? reply{said({1}), reply::held} : reply{weir::fail(weir::errc::unavailable, "stopping"), reply::held};
  };
  w.grant(2);
  REQUIRE(eventually([&] { return w.scripts[0]->count() == 2; }));
  auto answer = w.self->request(w.pool.handle, 5s, weir::drain{});
  REQUIRE(w.counted([](const auto& c) { return c.queued == 0; }));
  CHECK(w.counted([](const auto& c) { return c.live == 2; }));
  w.grant(5);
  std::this_thread::sleep_for(30ms);
  CHECK(w.out->record_count() == 0);
  w.g.tell(w.models[0], weir::tick{});
  bool drained = false;
  answer.receive([&](const weir::drained&) { drained = true; },
                 [](const caf::error& e) { FAIL(weir::from_caf(e).message); });
  CHECK(drained);
  CHECK(w.records(1));
  CHECK(w.counted([](const auto& c) { return c.live == 0; }));
  CHECK(w.scripts[0]->count() == 2);
  CHECK(w.out->dropped_count() == 0);  // the one that failed is under way, for a resumed run to run again
  CHECK(w.counted([](const auto& c) { return c.retried == 0; }));
}

TEST_CASE("a drain with nothing under way is answered at once") {
  world w(settings_of(2, 1), plain());
  bool drained = false;
  w.self->request(w.pool.handle, 2s, weir::drain{})
      .receive([&](const weir::drained&) { drained = true; }, [](const caf::error&) {});
  CHECK(drained);
}

TEST_CASE("a stop with episodes under way is clean, and leaves no actor") {
  world w(settings_of(4, 1), plain());
  w.scripts[0]->answer = hold;
  w.grant(6);
  REQUIRE(eventually([&] { return w.scripts[0]->count() == 4; }));
  const auto report = w.g.stop(50ms, 2s);
  CHECK(report.not_drained == std::vector<std::string>{"pool"});
  CHECK(report.killed.empty());
  CHECK(report.stuck.empty());
  std::vector<weir::sandbox_actor> all;
  {
    std::lock_guard lock(w.made_mutex);
    all.swap(w.sandboxes);
  }
  for (const auto& sandbox : all) {
    w.self->monitor(sandbox);  // tells at once of one that is gone
    bool gone = false;
    w.self->receive([&](const caf::down_msg&) { gone = true; }, caf::after(2s) >> [] {});
    CHECK(gone);
  }
}

TEST_CASE("groups that are done at the data position are passed over, and the others keep number, task and seed") {
  world::options chosen;
  chosen.position = weir::data_position::from(2, {3, 4, 6});
  world w(settings_of(2, 1), plain(), chosen);
  w.grant(4, 9);
  REQUIRE(w.records(4));
  std::set<std::uint64_t> groups;
  for (const auto& r : w.out->records) {
    groups.insert(r.spec.group);
    CHECK(r.spec.task == std::to_string(r.spec.group));
    CHECK(r.spec.seed == weir::derive_seed(7, "episode", r.spec.group, 0));
    CHECK(r.spec.admitted == 9);
  }
  CHECK(groups == std::set<std::uint64_t>{2, 5, 7, 8});
}

TEST_CASE("the samples of a group differ in seed and share the task, and the model gets the sampling parameters") {
  auto settings = settings_of(4, 4);
  settings.sampling.temperature = 0.5F;
  settings.sampling.max_tokens = 33;
  world w(settings, plain());
  w.grant(1);
  REQUIRE(w.records(4));
  std::set<std::uint64_t> episode_seeds, turn_seeds;
  for (const auto& r : w.out->records) {
    episode_seeds.insert(r.spec.seed);
    CHECK(r.spec.task == "0");
  }
  for (const auto& request : w.scripts[0]->all()) {
    turn_seeds.insert(request.seed);
    CHECK(request.sampling.temperature == 0.5F);
    CHECK(request.sampling.max_tokens == 33);
  }
  CHECK(episode_seeds.size() == 4);
  CHECK(turn_seeds.size() == 4);
}

TEST_CASE("a pool for which the system has too few threads does with what there is, and says so; with none it ends") {
  world::options chosen;
  chosen.most_sandboxes = 3;
  world w(settings_of(8, 4), plain(), chosen);
  w.grant(5);
  CHECK(w.records(20));
  CHECK(w.counted([](const auto& c) { return c.finished == 20 && c.shortage.find("3 sandboxes") == 0; }));
  CHECK(w.most_live <= 3);
  CHECK_FALSE(w.g.failure());
  chosen.most_sandboxes = 0;
  world none(settings_of(8, 4), plain(), chosen);
  none.grant(1);
  REQUIRE(eventually([&] { return none.g.failure().has_value(); }));
  CHECK(none.g.failure()->reason.message == "no sandbox can be made: no more threads");
}

TEST_CASE("a pool of nothing is refused") {
  auto runtime = weir::actor_runtime::with<caf::id_block::weir_actors>(1);
  weir::graph g(runtime.system());
  for (auto settings : {settings_of(0, 1), settings_of(1, 0), settings_of(1, 1, 0)})
    CHECK_THROWS_AS(
        g.add<weir::sandbox_pool>("pool", settings, std::make_shared<weir::task_stream>(numbered_tasks(1), 0),
                                  weir::in_process_sandboxes(plain(), {}, nullptr)),
        std::invalid_argument);
}

// Group assembly and the trajectory buffer as actors, with a test's own pool and trainer at their ends.
#include <atomic>
#include <thread>

#include "catch.hpp"
#include "weir/buffer/group_assembly.hpp"
#include "weir/buffer/trajectory_buffer.hpp"
#include "weir/runtime/graph.hpp"

using namespace std::chrono_literals;

namespace {

/// Stands where the pool does: keeps the credits that it was granted.
class credit_counter : public weir::node<weir::node_interface<weir::on<void(weir::grant_admission)>>> {
 public:
  credit_counter(caf::actor_config& config, std::atomic<std::uint64_t>& credits) : node(config), credits_(credits) {}
  handle_type::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; }, [this](const weir::grant_admission& g) { credits_ += g.groups; });
  }

 private:
  std::atomic<std::uint64_t>& credits_;
};

weir::episode_record episode(std::uint64_t group, std::uint32_t sample, weir::weight_version version = 0) {
  weir::episode_record e;
  e.spec.group = group;
  e.spec.sample = sample;
  e.spec.admitted = version;
  e.record.group = group;
  e.record.sample = sample;
  e.record.tokens = {1, 2};
  e.record.mask = {0, 1};
  e.record.logprobs = {0, -1};
  e.record.versions = {0, version};
  return e;
}

template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
  return condition();
}

struct world {
  weir::actor_runtime runtime = weir::actor_runtime::with<caf::id_block::weir_actors>(1);
  std::atomic<std::uint64_t> credits{0};
  std::atomic<std::uint64_t> waiting{0};
  weir::graph g{runtime.system()};
  weir::placed<weir::trajectory_buffer> buffer;
  weir::placed<weir::group_assembly> assembly;
  caf::scoped_actor self{runtime.system()};

  explicit world(weir::staleness_settings settings, std::uint32_t group_size)
      : buffer(g.add<weir::trajectory_buffer>("buffer", settings,
                                              [this](const weir::buffer_fill& fill) { waiting = fill.waiting; })),
        assembly(g.add<weir::group_assembly>("assembly", group_size)) {
    auto pool = g.add<credit_counter>("pool", std::ref(credits));
    g.connect(buffer, weir::trajectory_buffer::admission, pool);
    g.connect(assembly, weir::group_assembly::groups, buffer);
  }

  weir::result<weir::training_batch> batch(weir::weight_version version) {
    weir::result<weir::training_batch> out = weir::fail(weir::errc::internal, "no answer");
    self->request(buffer.handle, 2s, weir::next_batch{version})
        .receive([&](weir::training_batch& b) { out = std::move(b); },
                 [&](const caf::error& e) { out = weir::fail(weir::from_caf(e)); });
    return out;
  }
};

}  // namespace

TEST_CASE("groups leave assembly complete, samples in order, and a batch comes by group number") {
  world w({2, 0}, 3);
  w.g.tell(w.buffer, weir::weights_live{0});
  REQUIRE(eventually([&] { return w.credits == 2; }));
  for (auto [group, sample] : {std::pair{1, 2}, {0, 1}, {1, 0}, {0, 2}, {1, 1}, {0, 0}})
    w.g.tell(w.assembly, episode(static_cast<std::uint64_t>(group), static_cast<std::uint32_t>(sample)));
  auto batch = w.batch(0);
  REQUIRE(batch);
  REQUIRE(batch->groups.size() == 2);
  for (std::uint64_t g = 0; g < 2; ++g) {
    CHECK(batch->groups[g].group == g);
    for (std::uint32_t s = 0; s < 3; ++s) CHECK(batch->groups[g].trajectories[s].sample == s);
  }
  w.g.tell(w.buffer, weir::weights_live{1});
  CHECK(eventually([&] { return w.credits == 4; }));
}

TEST_CASE("a dropped group's credit is granted anew, and its late records harm nobody") {
  world w({1, 0}, 2);
  w.g.tell(w.buffer, weir::weights_live{0});
  REQUIRE(eventually([&] { return w.credits == 1; }));
  w.g.tell(w.assembly, episode(0, 0));
  w.g.tell(w.assembly, weir::group_dropped{0, 0, "its sandbox died"});
  REQUIRE(eventually([&] { return w.credits == 2; }));
  w.g.tell(w.assembly, episode(0, 1));
  w.g.tell(w.assembly, episode(1, 0));
  w.g.tell(w.assembly, episode(1, 0));  // sent twice: counted once
  w.g.tell(w.assembly, episode(1, 1));
  auto batch = w.batch(0);
  REQUIRE(batch);
  REQUIRE(batch->groups.size() == 1);
  CHECK(batch->groups[0].group == 1);
  CHECK(batch->dropped == std::vector<std::uint64_t>{0});
}

TEST_CASE("a trainer that waits hears of the stop") {
  world w({1, 0}, 1);
  auto pending = w.self->request(w.buffer.handle, 5s, weir::next_batch{0});
  CHECK(w.g.stop(1s, 1s).clean());
  pending.receive([](const weir::training_batch&) { FAIL("there is no batch"); },
                  [](const caf::error& e) { CHECK(weir::from_caf(e).code == weir::errc::unavailable); });
}

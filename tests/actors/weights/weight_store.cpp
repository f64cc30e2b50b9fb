// The weight store, with engines of the test's own: slow, failing, dying, late.
#include "weir/weights/weight_store.hpp"

#include <atomic>
#include <mutex>
#include <thread>

#include "catch.hpp"
#include "weir/runtime/graph.hpp"

using namespace std::chrono_literals;

namespace {

/// What an engine of the test saw, and how it is to behave.
struct engine_script {
  std::mutex mutex;
  std::vector<weir::weight_version> offered;
  std::atomic<bool> hold{false};  ///< keep the next offer unanswered until told
  std::atomic<int> fail{0};       ///< refuse so many offers
  std::size_t count() {
    std::lock_guard lock(mutex);
    return offered.size();
  }
  weir::weight_version last() {
    std::lock_guard lock(mutex);
    return offered.empty() ? 999 : offered.back();
  }
};

class scripted_engine
    : public weir::node<
          weir::node_interface<weir::on<weir::weights_adopted(weir::adopt_weights)>, weir::on<void(weir::tick)>>> {
 public:
  scripted_engine(caf::actor_config& config, engine_script& script) : node(config), script_(script) {}
  handle_type::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; },
                  [this](const weir::adopt_weights& m) -> weir::promise<weir::weights_adopted> {
                    auto answer = make_response_promise<weir::weights_adopted>();
                    {
                      std::lock_guard lock(script_.mutex);
                      script_.offered.push_back(m.version);
                    }
                    if (script_.fail > 0) {
                      --script_.fail;
                      answer.deliver(weir::to_caf(weir::error{weir::errc::invalid_data, "a checksum"}));
                    } else if (script_.hold) {
                      held_ = answer;
                      version_ = m.version;
                    } else {
                      answer.deliver(weir::weights_adopted{m.version});
                    }
                    return answer;
                  },
                  [this](const weir::tick&) { held_.deliver(weir::weights_adopted{version_}); });
  }
  void on_exit() override {
    held_ = {};
    node::on_exit();
  }

 private:
  engine_script& script_;
  weir::promise<weir::weights_adopted> held_;
  weir::weight_version version_ = 0;
};

class listener : public weir::node<weir::node_interface<weir::on<void(weir::weights_live)>>> {
 public:
  listener(caf::actor_config& config, std::atomic<std::int64_t>& live) : node(config), live_(live) {}
  handle_type::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; },
                  [this](const weir::weights_live& m) { live_ = static_cast<std::int64_t>(m.version); });
  }

 private:
  std::atomic<std::int64_t>& live_;
};

/// Publishes, and counts what it got back.
class publisher : public weir::node<weir::node_interface<weir::on<void(weir::publish_weights)>>> {
 public:
  static constexpr weir::port<publisher, weir::weight_sink> versions{"versions"};
  publisher(caf::actor_config& config, std::atomic<std::uint64_t>& released, std::atomic<int>& errors)
      : node(config), released_(released), errors_(errors) {}
  handle_type::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; },
                  [this](const weir::publish_weights& m) {
                    request(*versions_, caf::infinite, m)
                        .then([this](const weir::weights_released& r) { released_ += std::uint64_t{1} << r.version; },
                              [this](const caf::error&) { ++errors_; });
                  });
  }

 private:
  std::atomic<std::uint64_t>& released_;
  std::atomic<int>& errors_;
  weir::edge<weir::weight_sink> versions_{*this, versions};
};

template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
  return condition();
}

struct world {
  weir::actor_runtime runtime = weir::actor_runtime::with<caf::id_block::weir_actors>(1);
  engine_script scripts[2];
  std::atomic<std::int64_t> live{-1};
  std::atomic<std::uint64_t> released{0};  ///< a bit a version
  std::atomic<int> errors{0};
  weir::graph g{runtime.system()};
  weir::placed<weir::weight_store> store;
  weir::placed<scripted_engine> engines[2];
  weir::placed<publisher> trainer;

  explicit world(int connected = 2, weir::weight_store_settings settings = {})
      : store(g.add<weir::weight_store>("store", settings)) {
    for (int i = 0; i < 2; ++i)
      engines[i] = g.add<scripted_engine>("engine " + std::to_string(i), std::ref(scripts[i]));
    auto buffer = g.add<listener>("buffer", std::ref(live));
    trainer = g.add<publisher>("trainer", std::ref(released), std::ref(errors));
    g.connect(store, weir::weight_store::listeners, buffer);
    g.connect(trainer, publisher::versions, store);
    for (int i = 0; i < connected; ++i) g.connect(store, weir::weight_store::engines, engines[i]);
  }
  void publish(weir::weight_version v) { g.tell(trainer, weir::publish_weights{v}); }
};

}  // namespace

TEST_CASE("a version is live once every engine holds it, and released once none does") {
  world w;
  w.publish(0);
  REQUIRE(eventually([&] { return w.live == 0; }));
  w.scripts[1].hold = true;
  w.publish(1);
  REQUIRE(eventually([&] { return w.scripts[1].count() == 2; }));
  std::this_thread::sleep_for(20ms);
  CHECK(w.live == 0);
  CHECK(w.released == 0);  // engine 1 still reads version 0
  w.scripts[1].hold = false;
  w.g.tell(w.engines[1], weir::tick{});
  CHECK(eventually([&] { return w.live == 1 && w.released == 0b1; }));
}

TEST_CASE("an engine that is slow skips versions; what nobody reads is released at once") {
  world w;
  w.publish(0);
  REQUIRE(eventually([&] { return w.live == 0; }));
  w.scripts[0].hold = true;
  w.publish(1);
  REQUIRE(eventually([&] { return w.scripts[0].count() == 2; }));
  w.publish(2);
  w.publish(3);
  w.publish(4);
  REQUIRE(eventually([&] { return w.scripts[1].last() == 4; }));
  CHECK(eventually([&] { return (w.released & 0b01100) == 0b01100; }));
  CHECK((w.released & 0b10011) == 0);  // 0 is held, 1 is being taken, 4 is the newest
  w.scripts[0].hold = false;
  w.g.tell(w.engines[0], weir::tick{});
  CHECK(eventually([&] { return w.live == 4 && w.released == 0b01111; }));
  CHECK(w.scripts[0].last() == 4);
  CHECK(w.scripts[0].count() == 3);
}

TEST_CASE("an engine that is connected late is sent the newest version") {
  world w(1);
  w.publish(0);
  w.publish(1);
  REQUIRE(eventually([&] { return w.live == 1; }));
  w.g.connect(w.store, weir::weight_store::engines, w.engines[1]);
  CHECK(eventually([&] { return w.scripts[1].last() == 1; }));
}

TEST_CASE("a failed adoption is tried again, and an engine that never succeeds is ended with the reason") {
  world w(2, {3, 1ms});
  w.scripts[0].fail = 2;
  w.publish(0);
  CHECK(eventually([&] { return w.live == 0; }));
  CHECK(w.scripts[0].count() == 3);
  w.scripts[0].fail = 1000;
  w.publish(1);
  REQUIRE(eventually([&] { return w.g.failure().has_value(); }));
  CHECK(w.g.failure()->node == "engine 0");
  CHECK(w.g.failure()->reason.message.find("a checksum") != std::string::npos);
  CHECK(eventually([&] { return w.live == 1; }));  // the other engine goes on
}

TEST_CASE("an engine that dies holds nothing back") {
  world w;
  w.publish(0);
  REQUIRE(eventually([&] { return w.live == 0; }));
  w.scripts[0].hold = true;
  w.publish(1);
  REQUIRE(eventually([&] { return w.scripts[0].count() == 2; }));
  caf::anon_send_exit(w.engines[0].handle, caf::exit_reason::kill);
  CHECK(eventually([&] { return w.live == 1 && w.released == 0b1; }));
}

TEST_CASE("versions only go up, and a store that stops answers who waits") {
  world w;
  w.publish(3);
  REQUIRE(eventually([&] { return w.live == 3; }));
  w.publish(3);
  CHECK(eventually([&] { return w.errors == 1; }));
  caf::anon_send_exit(w.store.handle, caf::exit_reason::user_shutdown);
  CHECK(eventually([&] { return w.errors == 2; }));
}

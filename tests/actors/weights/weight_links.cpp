// The way from a trainer's store over a broadcast to the engines of another store.
#include "weir/weights/weight_links.hpp"

#include <atomic>
#include <cstring>
#include <thread>

#include "catch.hpp"
#include "weir/runtime/graph.hpp"
#include "weir/transport/tcp.hpp"
#include "weir/weights/manifest_header.hpp"
#include "weir/weights/weight_store.hpp"

using namespace std::chrono_literals;

namespace {

constexpr std::size_t size = 300'000;

std::byte filling(weir::weight_version v) { return static_cast<std::byte>(v * 13 + 1); }

/// Holds what it adopted last, and looks whether it stays as it is.
class checking_engine : public weir::node<weir::node_interface<weir::on<weir::weights_adopted(weir::adopt_weights)>>> {
 public:
  checking_engine(caf::actor_config& config, std::shared_ptr<weir::weight_shelf> shelf,
                  std::atomic<std::uint64_t>& newest, std::atomic<int>& wrong)
      : node(config), shelf_(std::move(shelf)), newest_(newest), wrong_(wrong) {}
  handle_type::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; },
                  [this](const weir::adopt_weights& m) {
                    if (held_ && !all(*held_, filling(version_))) ++wrong_;
                    auto content = shelf_->find(m.version);
                    if (!content || content->bytes.size() != size || !all(*content, filling(m.version)))
                      ++wrong_;
                    else
                      held_ = *content, version_ = m.version, newest_ = m.version;
                    return weir::weights_adopted{m.version, {}};
                  });
  }

 private:
  static bool all(const weir::weight_content& c, std::byte b) {
    return std::all_of(c.bytes.begin(), c.bytes.end(), [b](std::byte x) { return x == b; });
  }
  std::shared_ptr<weir::weight_shelf> shelf_;
  std::optional<weir::weight_content> held_;
  weir::weight_version version_ = 0;
  std::atomic<std::uint64_t>& newest_;
  std::atomic<int>& wrong_;
};

/// The trainer's part: publishes as fast as regions are released.
class publishing : public weir::node<weir::node_interface<weir::on<void(weir::tick)>>> {
 public:
  static constexpr weir::port<publishing, weir::weight_sink> versions{"versions"};
  publishing(caf::actor_config& config, weir::snapshot_writer writer, weir::weight_version last)
      : node(config), writer_(std::move(writer)), last_(last) {}
  handle_type::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; },
                  [this](const weir::tick&) {
                    const auto into = writer_.next();
                    if (into.empty() || next_ > last_) return;
                    std::fill(into.begin(), into.end(), filling(next_));
                    request(*versions_, caf::infinite, writer_.publish(next_++))
                        .then(
                            [this](const weir::weights_released& r) {
                              writer_.released(r);
                              send(this, weir::tick{});
                            },
                            [](const caf::error&) {});
                    send(this, weir::tick{});
                  });
  }

 private:
  weir::snapshot_writer writer_;
  weir::weight_version next_ = 1, last_;
  weir::edge<weir::weight_sink> versions_{*this, versions};
};

class listening : public weir::node<weir::node_interface<weir::on<void(weir::weights_live)>>> {
 public:
  listening(caf::actor_config& config, std::atomic<std::uint64_t>& live) : node(config), live_(live) {}
  handle_type::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; }, [this](const weir::weights_live& m) { live_ = m.version; });
  }

 private:
  std::atomic<std::uint64_t>& live_;
};

struct world {
  weir::actor_runtime runtime = weir::actor_runtime::with<caf::id_block::weir_actors>(2);
  std::atomic<std::uint64_t> newest[2] = {0, 0}, live{0};
  std::atomic<int> wrong{0}, deltas{0}, mapped{0};
  weir::manifest form{{{"w", weir::dtype::bf16, {size / 2}, 0, size}}, size};
  std::vector<std::shared_ptr<weir::weight_shelf>> shelves;
  weir::graph g{runtime.system()};

  explicit world(const weir::transport_maker& maker, bool map, weir::weight_version last) {
    weir::broadcast_settings b;
    b.bytes = size;
    b.description = weir::to_header(form);
    b.chunk = 64 << 10;
    b.delta = weir::delta_use::on;
    weir::divide_for_delta(0, size, 2, 64 << 10, b.ranges);
    auto sender = weir::broadcast_sender::make(maker, b);
    REQUIRE(sender);
    auto shelf = std::make_shared<weir::weight_shelf>();
    auto writer = weir::snapshot_writer::make(
        shelf, [s = *sender] { return s->allocate(); }, 4);
    REQUIRE(writer);
    auto trainer = g.add<publishing>("trainer", std::move(*writer), last);
    auto store = g.add<weir::weight_store>("store");
    auto uplink = g.add<weir::weight_uplink>("uplink", *sender, shelf);
    auto listener = g.add<listening>("listener", std::ref(live));
    for (int i = 0; i < 2; ++i) {
      weir::receiver_settings r;
      r.name = "node " + std::to_string(i);
      r.source = (*sender)->address();
      r.map = map;
      auto there = std::make_shared<weir::weight_shelf>();
      shelves.push_back(there);
      weir::weight_downlink_observer o;
      o.on_arrived = [this](const weir::arrived_weights& w) { deltas += w.delta ? 1 : 0, mapped += w.mapped ? 1 : 0; };
      auto downlink = g.add<weir::weight_downlink>("downlink", maker, r, there, o);
      auto node_store = g.add<weir::weight_store>("node store");
      auto engine = g.add<checking_engine>("engine", there, std::ref(newest[i]), std::ref(wrong));
      g.connect(downlink, weir::weight_downlink::versions, node_store);
      g.connect(node_store, weir::weight_store::engines, engine);
      g.connect(node_store, weir::weight_store::listeners, downlink);
    }
    g.connect(store, weir::weight_store::engines, uplink);
    g.connect(store, weir::weight_store::listeners, listener);
    g.connect(trainer, publishing::versions, store);
    g.tell(trainer, weir::tick{});
  }
  bool arrive(weir::weight_version last) {
    for (int i = 0; i < 20000 && (live < last || newest[0] < last || newest[1] < last) && !g.failure(); ++i)
      std::this_thread::sleep_for(1ms);
    return live == last && newest[0] == last && newest[1] == last;
  }
};

}  // namespace

TEST_CASE(
    "versions go from a trainer's store to the engines of two nodes, and come back as memory that may be written") {
  weir::tcp_settings wire;
  wire.shared_memory = false;
  for (bool map : {false, true}) {
    world w(weir::tcp_maker(map ? weir::tcp_settings{} : wire), map, 60);
    CHECK(w.arrive(60));
    CHECK(w.wrong == 0);
    CHECK_FALSE(w.g.failure());
    if (map) CHECK(w.mapped > 0);
    for (const auto& there : w.shelves) {
      REQUIRE(there->layout());
      CHECK(*there->layout() == w.form);
    }
    CHECK(w.g.stop(2s, 1s).stuck.empty());
  }
}

// The trainer as an actor: its conversation with buffer and store, failures, drains and resumption.
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>

#include "catch.hpp"
#include "weir/runtime/graph.hpp"
#include "weir/runtime/random.hpp"
#include "weir/trainer/trainer.hpp"
#include "weir/transport/inproc.hpp"
#include "weir/weights/weight_store.hpp"

using namespace std::chrono_literals;

namespace {

weir::causal_lm_config small() {
  weir::causal_lm_config c;
  c.vocab_size = 11;
  c.hidden_size = 16;
  c.layers = 1;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_dim = 8;
  c.intermediate_size = 24;
  c.max_positions = 32;
  c.initializer_range = 0.3;
  c.tied_embeddings = true;
  return c;
}

/// A batch that is a function of its version alone: two groups of two.
weir::training_batch batch_of(weir::weight_version version) {
  weir::training_batch batch;
  batch.version = version;
  weir::random_stream random(version);
  for (std::uint64_t g = 0; g < 2; ++g) {
    weir::trajectory_group group;
    group.group = version * 2 + g;
    for (std::uint32_t s = 0; s < 2; ++s) {
      weir::trajectory t;
      t.group = group.group;
      t.sample = s;
      for (int i = 0; i < 6; ++i) {
        const bool own = i >= 3;
        t.tokens.push_back(static_cast<weir::token>(random.below(11)));
        t.mask.push_back(own ? 1 : 0);
        t.logprobs.push_back(own ? -2.3F : 0.0F);
        t.versions.push_back(own ? version - std::min<weir::weight_version>(version, s) : 0);
      }
      t.reward = s;
      group.trajectories.push_back(std::move(t));
    }
    batch.groups.push_back(std::move(group));
  }
  return batch;
}

/// Stands where the buffer does: serves batches of `batch_of`, as the script says.
struct buffer_script {
  std::atomic<std::int64_t> poison_from{-1}, poison_to{-1};  ///< versions whose batches have a NaN
  std::atomic<std::uint64_t> hold_from{~std::uint64_t{0}};   ///< from this version on, answers never come
};

class scripted_buffer : public weir::node<weir::node_interface<weir::on<weir::training_batch(weir::next_batch)>>> {
 public:
  scripted_buffer(caf::actor_config& config, buffer_script& script) : node(config), script_(script) {}
  handle_type::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; },
                  [this](const weir::next_batch& m) -> weir::promise<weir::training_batch> {
                    auto answer = make_response_promise<weir::training_batch>();
                    auto batch = batch_of(m.version);
                    const auto v = static_cast<std::int64_t>(m.version);
                    if (v >= script_.poison_from && v < script_.poison_to)
                      batch.groups[1].trajectories[0].logprobs[4] = std::numeric_limits<float>::quiet_NaN();
                    if (m.version < script_.hold_from)
                      answer.deliver(std::move(batch));
                    else
                      held_.push_back(answer);
                    return answer;
                  });
  }
  void on_exit() override {
    for (auto& h : held_) h.deliver(weir::to_caf(weir::error{weir::errc::unavailable, "the buffer stopped"}));
    held_.clear();
    node::on_exit();
  }

 private:
  buffer_script& script_;
  std::vector<weir::promise<weir::training_batch>> held_;
};

/// An engine that takes every version and checks what it reads.
class reading_engine : public weir::node<weir::node_interface<weir::on<weir::weights_adopted(weir::adopt_weights)>>> {
 public:
  reading_engine(caf::actor_config& config, std::shared_ptr<weir::weight_shelf> shelf,
                 std::atomic<std::uint64_t>& taken, std::atomic<int>& wrong)
      : node(config), shelf_(std::move(shelf)), taken_(taken), wrong_(wrong) {}
  handle_type::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; },
                  [this](const weir::adopt_weights& m) {
                    // What was held until now was not written to meanwhile.
                    if (held_ && !std::equal(copy_.begin(), copy_.end(), held_->bytes.begin())) ++wrong_;
                    auto view = shelf_->find(m.version);
                    if (!view)
                      ++wrong_;
                    else
                      held_ = *view, copy_.assign(view->bytes.begin(), view->bytes.end());
                    ++taken_;
                    return weir::weights_adopted{m.version};
                  });
  }

 private:
  std::shared_ptr<weir::weight_shelf> shelf_;
  std::optional<weir::weight_content> held_;
  std::vector<std::byte> copy_;
  std::atomic<std::uint64_t>& taken_;
  std::atomic<int>& wrong_;
};

template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 10000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
  return condition();
}

std::vector<float> parameters(const weir::causal_lm& model) {
  std::vector<float> out(model.layout().bytes / 4);
  model.copy_to(std::as_writable_bytes(std::span(out)));
  return out;
}

struct world {
  weir::actor_runtime runtime = weir::actor_runtime::with<caf::id_block::weir_actors>(1);
  buffer_script script;
  std::atomic<std::uint64_t> taken{0};
  std::atomic<int> wrong{0};
  std::mutex mutex;
  std::vector<weir::training_step> steps;
  struct kept {
    weir::weight_version version;
    weir::data_position data;
    std::vector<float> parameters;
    std::size_t reported;  ///< steps until then
  };
  std::vector<kept> checkpoints;
  std::optional<weir::result<weir::weight_version>> end;
  bool disk_full = false;
  std::stop_source stop;
  weir::graph g{runtime.system()};
  weir::placed<weir::trainer> trainer;

  explicit world(weir::trainer_settings settings, weir::learner learner, weir::training_position start = {},
                 std::size_t regions = 3) {
    auto shelf = std::make_shared<weir::weight_shelf>();
    const auto bytes = weir::causal_lm::layout(small()).bytes;
    auto writer = weir::snapshot_writer::make(shelf, bytes, regions);
    weir::trainer_hooks hooks;
    hooks.on_step = [this](const weir::training_step& s) {
      std::lock_guard lock(mutex);
      steps.push_back(s);
    };
    hooks.checkpoint = [this](const weir::learner& l, weir::weight_version v,
                              const weir::data_position& d) -> weir::result<void> {
      std::lock_guard lock(mutex);
      if (disk_full) return weir::fail(weir::errc::io, "no space left");
      checkpoints.push_back({v, d, parameters(l.model()), steps.size()});
      return {};
    };
    hooks.on_end = [this](const weir::result<weir::weight_version>& r) {
      std::lock_guard lock(mutex);
      end = r;
    };
    auto buffer = g.add<scripted_buffer>("buffer", std::ref(script));
    auto store = g.add<weir::weight_store>("store");
    auto engine = g.add<reading_engine>("engine", shelf, std::ref(taken), std::ref(wrong));
    trainer = g.add_with_thread<weir::trainer>("trainer", std::move(learner), settings, std::move(*writer), start,
                                               std::move(hooks), stop.get_token());
    g.connect(trainer, weir::trainer::batches, buffer);
    g.connect(trainer, weir::trainer::versions, store);
    g.connect(store, weir::weight_store::engines, engine);
  }
  bool ended() {
    return eventually([&] {
      std::lock_guard lock(mutex);
      return end.has_value();
    });
  }
  bool stepped(std::size_t n) {
    return eventually([&] {
      std::lock_guard lock(mutex);
      return steps.size() >= n;
    });
  }
};

weir::learner fresh(std::uint64_t seed = 1) {
  weir::learner_settings settings;
  settings.optimizer.lr = 1e-2;
  return weir::learner(weir::causal_lm::random(small(), seed), settings);
}

weir::trainer_settings steps(std::uint64_t n, std::uint64_t checkpoint_every = 0) {
  weir::trainer_settings s;
  s.steps = n;
  s.checkpoint_every = checkpoint_every;
  s.lr = {1e-2, 0, n, weir::lr_decay::constant};
  return s;
}

}  // namespace

TEST_CASE("training steps, publishes, keeps checkpoints, and ends at its last step") {
  auto reference = fresh();
  for (weir::weight_version v = 0; v < 7; ++v) REQUIRE(reference.step(batch_of(v).groups, v, 1e-2));

  world w(steps(7, 3), fresh());
  w.g.tell(w.trainer, weir::start_training{});
  w.g.tell(w.trainer, weir::start_training{});  // a second one changes nothing
  REQUIRE(w.ended());
  REQUIRE(*w.end);
  CHECK(**w.end == 7);
  REQUIRE(w.steps.size() == 7);
  for (std::uint64_t i = 0; i < 7; ++i) {
    const auto& s = w.steps[i];
    CHECK(s.version == i + 1);
    CHECK(s.failure.empty());
    CHECK(s.learned.sequences == 4);
    CHECK(s.tokens == 12);
    CHECK(s.staleness_max == (i == 0 ? 0 : 1));
    CHECK(s.staleness_mean == (i == 0 ? 0 : 0.5));
    CHECK(s.seconds.train > 0);
  }
  REQUIRE(w.checkpoints.size() == 3);
  CHECK(w.checkpoints[0].version == 3);
  CHECK(w.checkpoints[1].version == 6);
  CHECK(w.checkpoints[2].version == 7);
  for (const auto& c : w.checkpoints) CHECK(c.reported == c.version);
  CHECK(w.checkpoints[1].data.below() == 12);
  CHECK(w.checkpoints[2].parameters == parameters(reference.model()));
  CHECK(w.taken >= 1);
  CHECK(w.wrong == 0);
  CHECK(w.g.stop(2s, 1s).clean());
}

TEST_CASE("one region more than the engine holds is enough to go on with") {
  world w(steps(20), fresh(), {}, 2);
  w.g.tell(w.trainer, weir::start_training{});
  REQUIRE(w.ended());
  CHECK(w.steps.size() == 20);
  CHECK(w.wrong == 0);
}

TEST_CASE("a step that is not finite is undone, counted and named; the versions go on with the same weights") {
  auto reference = fresh();
  for (weir::weight_version v : {0, 3}) REQUIRE(reference.step(batch_of(v).groups, v, 1e-2));
  world w(steps(4), fresh());
  w.script.poison_from = 1;
  w.script.poison_to = 3;
  w.g.tell(w.trainer, weir::start_training{});
  REQUIRE(w.ended());
  REQUIRE(*w.end);
  REQUIRE(w.steps.size() == 4);
  CHECK(w.steps[1].failure.find("version 1") != std::string::npos);
  CHECK(w.steps[1].failure.find("group 3") != std::string::npos);
  CHECK(w.steps[3].failure.empty());
  CHECK(w.steps[3].failed_steps == 2);
  CHECK(w.checkpoints.back().parameters == parameters(reference.model()));
  CHECK(w.checkpoints.back().data.below() == 8);  // a batch that failed is not tried again
}

TEST_CASE("too many failed steps in a row end the run with the reason, and a checkpoint of what was good") {
  auto settings = steps(100);
  settings.most_failed_steps = 3;
  world w(settings, fresh());
  w.script.poison_from = 2;
  w.script.poison_to = 1000;
  w.g.tell(w.trainer, weir::start_training{});
  REQUIRE(w.ended());
  REQUIRE_FALSE(*w.end);
  CHECK(w.end->error().code == weir::errc::numeric);
  CHECK(w.end->error().message.find("3 steps in a row") != std::string::npos);
  CHECK(w.steps.size() == 5);
  CHECK(w.checkpoints.size() == 1);
}

TEST_CASE("a drain while it waits for a batch keeps a checkpoint; going on from there equals not having stopped") {
  world whole(steps(6), fresh());
  whole.g.tell(whole.trainer, weir::start_training{});
  REQUIRE(whole.ended());

  world first(steps(6), fresh());
  first.script.hold_from = 3;
  first.g.tell(first.trainer, weir::start_training{});
  REQUIRE(first.stepped(3));
  CHECK(first.g.stop(2s, 1s).clean());
  REQUIRE(first.ended());
  REQUIRE(*first.end);
  CHECK(**first.end == 3);
  REQUIRE(first.checkpoints.size() == 1);
  CHECK(first.checkpoints[0].data.below() == 6);
}

TEST_CASE("a step that is stopped counts as not taken") {
  world w(steps(1000), fresh());
  w.g.tell(w.trainer, weir::start_training{});
  REQUIRE(w.stepped(2));
  w.stop.request_stop();
  REQUIRE(w.ended());
  REQUIRE(*w.end);
  const auto version = **w.end;
  CHECK(w.checkpoints.back().version == version);
  CHECK(w.checkpoints.back().data.below() == version * 2);
  auto reference = fresh();
  for (weir::weight_version v = 0; v < version; ++v) REQUIRE(reference.step(batch_of(v).groups, v, 1e-2));
  CHECK(w.checkpoints.back().parameters == parameters(reference.model()));
}

TEST_CASE("a checkpoint that fails does not stop training, but a last one that fails is the run's result") {
  world w(steps(4, 1), fresh());
  w.disk_full = true;
  w.g.tell(w.trainer, weir::start_training{});
  REQUIRE(w.ended());
  CHECK(w.steps.size() == 4);
  REQUIRE_FALSE(*w.end);
  CHECK(w.end->error().code == weir::errc::io);
}

TEST_CASE("learning rates rise, then stay or fall") {
  const weir::lr_schedule constant{1.0, 4, 10, weir::lr_decay::constant};
  CHECK(constant.at(0) == 0.25);
  CHECK(constant.at(3) == 1.0);
  CHECK(constant.at(9) == 1.0);
  const weir::lr_schedule linear{1.0, 0, 10, weir::lr_decay::linear};
  CHECK(linear.at(0) == 1.0);
  CHECK(linear.at(5) == Approx(0.5));
  CHECK(linear.at(10) == 0.0);
  const weir::lr_schedule cosine{2.0, 2, 12, weir::lr_decay::cosine};
  CHECK(cosine.at(2) == 2.0);
  CHECK(cosine.at(7) == Approx(1.0));
  CHECK(cosine.at(12) == Approx(0.0).margin(1e-12));
}

// Steps that fail: the error says where, and parameters and optimizer are as before, bit for bit.
#include <cmath>
#include <limits>

#include "catch.hpp"
#include "learner_support.hpp"

using namespace weir::testing;

namespace {

constexpr double rate = 1e-2;
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// A learner that has momentum.
weir::learner practised(const weir::learner_settings& settings) {
  auto plain = settings;
  plain.loss = weir::decoupled_ppo;
  weir::learner first(small_model(), plain);
  REQUIRE(first.step(random_batch(2, 2, 0.4, 50), 0, rate));
  temporary_folder folder;
  REQUIRE(first.save_state(folder.path() / "state"));
  weir::learner l(small_model(), settings);
  REQUIRE(l.load_state(folder.path() / "state"));
  return l;
}

/// The error of a step from version 5, after which nothing has changed.
weir::error failure(weir::learner& l, const std::vector<weir::trajectory_group>& batch,
                    const std::stop_token& stop = {}, double lr = rate) {
  const auto before = state_of(l);
  auto report = l.step(batch, 5, lr, stop);
  REQUIRE_FALSE(report);
  CHECK(state_of(l) == before);
  return report.error();
}

void says(const std::string& message, std::initializer_list<const char*> all) {
  INFO(message);
  for (const char* what : all) {
    INFO(what);
    CHECK(message.find(what) != std::string::npos);
  }
}

std::size_t first_produced(const weir::trajectory& t) {
  std::size_t i = 0;
  while (t.mask[i] == 0) ++i;
  return i;
}

/// An objective that does `what` to its loss when it is called for the n-th time.
weir::objective faulty(int n, std::function<at::Tensor(const at::Tensor&)> what) {
  return [n, what = std::move(what), calls = std::make_shared<int>(0)](const weir::objective_inputs& in,
                                                                       const weir::objective_settings& s) {
    auto terms = weir::decoupled_ppo(in, s);
    if (++*calls == n) terms.loss = what(terms.loss);
    return terms;
  };
}

}  // namespace

TEST_CASE("a log-probability that is no number: numeric, with version and group") {
  auto s = weir::learner_settings{};
  s.minibatches = GENERATE(1U, 2U);
  s.passes = GENERATE(1U, 2U);
  auto l = practised(s);
  for (float value : {not_a_number, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    auto batch = random_batch(4, 3);
    auto& t = batch[3].trajectories[1];  // in the second minibatch, if there are two
    t.logprobs[first_produced(t)] = value;
    const auto e = failure(l, batch);
    CHECK(e.code == weir::errc::numeric);
    says(e.message, {"version 5", "group 6", "sample 1", "log-probability"});
  }
}

TEST_CASE("a log-probability of what the model did not produce is never looked at") {
  auto batch = random_batch(2, 2), clean = batch;
  batch[0].trajectories[0].logprobs[0] = not_a_number;
  weir::learner a(small_model(), {}), b(small_model(), {});
  REQUIRE(a.step(batch, 0, rate));
  REQUIRE(b.step(clean, 0, rate));
  CHECK(state_of(a) == state_of(b));
}

TEST_CASE("a reward that is not finite: numeric, with version and group") {
  auto l = practised({});
  for (double value : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                       std::numeric_limits<double>::quiet_NaN(), 1e154, -3.5e38}) {
    auto batch = random_batch(3, 2);
    batch[1].trajectories[1].reward = value;
    const auto e = failure(l, batch);
    CHECK(e.code == weir::errc::numeric);
    says(e.message, {"version 5", "group 4", "sample 1", "reward"});
  }
}

TEST_CASE("rewards at the end of fp32's range: their group's advantages are as they should be") {
  auto l = practised({});
  auto batch = random_batch(3, 3);
  for (auto& t : batch[1].trajectories) t.reward = 3.4e38 * (t.sample % 2 == 0 ? 1 : -1);
  const auto report = l.step(batch, 5, rate);
  REQUIRE(report);
  CHECK(std::isfinite(report->loss));
}

TEST_CASE("a loss that stops being a number halfway through is undone") {
  struct setup {
    std::uint32_t minibatches, passes;
    int call;
    const char* group;
  };
  for (const auto& [minibatches, passes, call, group] :
       {setup{1, 1, 1, "group 3"}, setup{2, 1, 2, "group 5"}, setup{1, 2, 2, "group 3"}, setup{2, 2, 4, "group 5"}}) {
    INFO(minibatches << " minibatches, " << passes << " passes, call " << call);
    auto s = weir::learner_settings{};
    s.minibatches = minibatches;
    s.passes = passes;
    s.loss = faulty(call, [](const at::Tensor& loss) { return loss * not_a_number; });
    auto l = practised(s);
    const auto e = failure(l, random_batch(4, 2));
    CHECK(e.code == weir::errc::numeric);
    says(e.message, {"version 5", group});
    // The learner is none the worse.
    CHECK(l.step(random_batch(4, 2), 5, rate));
  }
}

TEST_CASE("the group is the first whose loss is no number, also within one micro-batch") {
  auto s = weir::learner_settings{};
  s.loss = faulty(1, [](const at::Tensor& loss) {
    auto spoiled = at::zeros_like(loss);
    spoiled[5][0] = not_a_number;  // of two a group, the second of the third
    return loss + spoiled;
  });
  auto l = practised(s);
  says(failure(l, random_batch(4, 2)).message, {"version 5", "group 5"});
}

TEST_CASE("a gradient that is no number, of a loss that is one, is undone and names the tensor") {
  auto s = weir::learner_settings{};
  s.minibatches = 2;
  s.loss = faulty(2, [](const at::Tensor& loss) { return loss + (loss * 0).sqrt(); });
  auto l = practised(s);
  const auto e = failure(l, random_batch(4, 2));
  CHECK(e.code == weir::errc::numeric);
  says(e.message, {"version 5", "gradient", "model.embed_tokens.weight"});
}

TEST_CASE("an objective that throws leaves the step undone") {
  auto s = weir::learner_settings{};
  s.minibatches = 2;
  s.loss = faulty(2, [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no memory"); });
  auto l = practised(s);
  const auto before = state_of(l);
  CHECK_THROWS_AS(l.step(random_batch(4, 2), 5, rate), std::runtime_error);
  CHECK(state_of(l) == before);
}

TEST_CASE("malformed trajectories are refused: invalid_argument, with the group") {
  auto l = practised({});
  auto broken = [&](const std::function<void(weir::trajectory&)>& damage) {
    auto batch = random_batch(3, 2);
    damage(batch[2].trajectories[0]);
    const auto e = failure(l, batch);
    CHECK(e.code == weir::errc::invalid_argument);
    says(e.message, {"group 5", "sample 0"});
    const std::vector<weir::trajectory> alone{batch[2].trajectories[0]};
    const auto before = state_of(l);
    auto supervised = l.supervised_step(alone, rate);
    REQUIRE_FALSE(supervised);
    CHECK(supervised.error().code == weir::errc::invalid_argument);
    CHECK(state_of(l) == before);
    return e.message;
  };
  says(broken([](auto& t) { t.mask.pop_back(); }), {"length"});
  says(broken([](auto& t) { t.logprobs.push_back(0); }), {"length"});
  says(broken([](auto& t) { t.versions.clear(); }), {"length"});
  says(broken([](auto& t) { t.tokens.pop_back(); }), {"length"});
  says(broken([](auto& t) { t.mask[0] = 1; }), {"first token"});
  says(broken([](auto& t) { t.tokens[1] = 37; }), {"37"});
  says(broken([](auto& t) { t.tokens.back() = -1; }), {"-1"});
}

TEST_CASE("trajectories without anything produced, or without a token, count but do not train") {
  auto batch = random_batch(2, 3);
  auto& t = batch[0].trajectories[0];
  t.mask.assign(t.mask.size(), 0);
  auto& none = batch[1].trajectories[2];
  none.tokens.clear(), none.mask.clear(), none.logprobs.clear(), none.versions.clear();
  weir::learner l(small_model(), {});
  auto r = l.step(batch, 0, rate);
  REQUIRE(r);
  CHECK(r->sequences == 6);
  CHECK(r->sequences_trained == 4);
  const std::vector<weir::trajectory> nothing{t, none};
  const auto before = state_of(l);
  auto supervised = l.supervised_step(nothing, rate);
  REQUIRE_FALSE(supervised);
  CHECK(supervised.error().code == weir::errc::invalid_argument);
  CHECK_FALSE(l.supervised_step({}, rate));
  CHECK(state_of(l) == before);
}

TEST_CASE("a learning rate that is none is refused before it spoils the parameters") {
  auto l = practised({});
  const auto batch = random_batch(2, 2);
  for (double lr : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1e-3}) {
    CHECK(failure(l, batch, {}, lr).code == weir::errc::invalid_argument);
    const auto before = state_of(l);
    CHECK_FALSE(l.supervised_step(batch[0].trajectories, lr));
    CHECK(state_of(l) == before);
  }
}

TEST_CASE("a stopped step leaves everything as it was") {
  auto s = weir::learner_settings{};
  SECTION("before it begins") {
    auto l = practised(s);
    std::stop_source stop;
    stop.request_stop();
    CHECK(failure(l, random_batch(2, 2), stop.get_token()).code == weir::errc::unavailable);
    const auto before = state_of(l);
    auto supervised = l.supervised_step(random_batch(1, 2)[0].trajectories, rate, stop.get_token());
    REQUIRE_FALSE(supervised);
    CHECK(supervised.error().code == weir::errc::unavailable);
    CHECK(state_of(l) == before);
  }
  SECTION("between micro-batches, and after an optimizer step") {
    s.minibatches = 2;
    s.micro_batch_tokens = 1;  // one sequence each: 4 calls a minibatch
    const int call = GENERATE(1, 2, 4, 5, 7);
    std::stop_source stop;
    s.loss = faulty(call, [&](const at::Tensor& loss) {
      stop.request_stop();
      return loss;
    });
    auto l = practised(s);
    CHECK(failure(l, random_batch(4, 2), stop.get_token()).code == weir::errc::unavailable);
  }
}

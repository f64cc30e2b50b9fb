// A training step: its gradient by definition, independent of how it is computed, and what it reports.
#include "weir/trainer/learner.hpp"

#include "catch.hpp"
#include "learner_support.hpp"

using namespace weir::testing;

namespace {

constexpr double rate = 1e-2;

/// The gradient that one step on `batch` uses.
at::Tensor gradient_of(const std::vector<weir::trajectory_group>& batch, const weir::learner_settings& settings) {
  weir::learner l(small_model(), settings);
  auto report = l.step(batch, 0, rate);
  REQUIRE(report);
  return l.model().flat_grad().clone();
}

at::Tensor parameters_after(const std::vector<std::vector<weir::trajectory_group>>& batches,
                            const weir::learner_settings& settings) {
  weir::learner l(small_model(), settings);
  weir::weight_version version = 0;
  for (const auto& batch : batches) REQUIRE(l.step(batch, version++, rate));
  return l.model().flat().clone();
}

/// The same from one padded matrix of the whole batch: no packing, no micro-batches, nothing left out.
at::Tensor gradient_by_definition(const std::vector<weir::trajectory_group>& batch, const weir::learner_settings& s) {
  auto model = small_model();
  model.flat_grad();
  std::vector<at::Tensor> logp, entropy, behaviour, advantages, mask;
  constexpr std::int64_t width = 24;
  auto padded = [](const at::Tensor& x) { return at::constant_pad_nd(x, {0, width - x.size(0)}); };
  for (const auto& g : batch) {
    std::vector<double> rewards;
    for (const auto& t : g.trajectories) rewards.push_back(t.reward);
    const auto a = weir::group_advantages(rewards, s.advantages, s.advantage_eps);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto& t = g.trajectories[i];
      std::vector<std::int64_t> targets;
      std::vector<float> own;
      for (std::size_t k = 0; k < t.tokens.size(); ++k)
        if (t.mask[k] != 0) {
          targets.push_back(static_cast<std::int64_t>(k));
          own.push_back(t.logprobs[k]);
        }
      const auto e = model.evaluate(packed({t.tokens}), targets, static_cast<float>(s.temperature), true);
      logp.push_back(padded(e.logprobs));
      entropy.push_back(padded(e.entropy));
      behaviour.push_back(padded(at::tensor(own)));
      mask.push_back(padded(at::ones({static_cast<std::int64_t>(own.size())})));
      advantages.push_back(mask.back() * a[i]);
    }
  }
  weir::objective_inputs in;
  in.logp = at::stack(logp);
  in.logp_behaviour = at::stack(behaviour);
  in.logp_proximal = in.logp.detach();
  in.advantages = at::stack(advantages);
  in.mask = at::stack(mask);
  const auto weights = weir::aggregation_weights(in.mask, s.aggregate, s.max_length);
  auto loss =
      (s.loss(in, s.loss_settings).loss * weights).sum() - (at::stack(entropy) * weights).sum() * s.entropy_bonus;
  loss.backward();
  return model.flat_grad().clone();
}

}  // namespace

TEST_CASE("the gradient is the objective's, aggregated over the whole batch") {
  auto batch = random_batch(4, 3);
  for (auto& t : batch[1].trajectories) t.reward = 0.25;  // a group with nothing to learn, that counts all the same
  auto s = plain_settings();
  s.max_length = 30;
  SECTION("for every objective") {
    for (const auto& name : weir::objective_names()) {
      INFO(name);
      s.loss = weir::find_objective(name);
      CHECK(relative_difference(gradient_of(batch, s), gradient_by_definition(batch, s)) < 1e-5);
    }
  }
  SECTION("for every aggregation") {
    for (auto how :
         {weir::aggregation::token_mean, weir::aggregation::sequence_mean_token_mean,
          weir::aggregation::sequence_mean_token_sum, weir::aggregation::sequence_mean_token_sum_over_max_length}) {
      s.aggregate = how;
      CHECK(relative_difference(gradient_of(batch, s), gradient_by_definition(batch, s)) < 1e-5);
    }
  }
  SECTION("for other advantages, another temperature, and an entropy bonus") {
    s.advantages = weir::advantage_kind::rloo;
    s.temperature = 0.7;
    s.entropy_bonus = 0.05;
    CHECK(relative_difference(gradient_of(batch, s), gradient_by_definition(batch, s)) < 1e-5);
  }
}

TEST_CASE("the gradient does not depend on the size of micro-batches") {
  const auto batch = random_batch(4, 3);
  auto s = plain_settings();
  s.entropy_bonus = GENERATE(0.0, 0.01);
  s.aggregate = GENERATE(weir::aggregation::token_mean, weir::aggregation::sequence_mean_token_mean);
  const auto together = gradient_of(batch, s);
  for (std::int64_t tokens : {1, 25, 60, 200}) {
    s.micro_batch_tokens = tokens;
    CHECK(relative_difference(gradient_of(batch, s), together) < 1e-5);
  }
}

TEST_CASE("leaving out what has no advantage changes only the time") {
  auto batch = random_batch(4, 4);
  for (auto& t : batch[0].trajectories) t.reward = 0.1;
  for (auto& t : batch[2].trajectories) t.reward = 1;
  auto s = weir::learner_settings{};
  s.minibatches = GENERATE(1U, 4U);  // with 4, some minibatches have nothing to learn from
  s.passes = GENERATE(1U, 2U);
  s.skip_zero_advantage = false;
  const auto once = parameters_after({batch}, s), all = parameters_after({batch, batch}, s);
  s.skip_zero_advantage = true;
  if (s.minibatches * s.passes == 1) CHECK(largest_difference(parameters_after({batch}, s), once) < 1e-6);
  // AdamW makes much of rounding; a step that momentum alone takes would be of the size of the rate.
  CHECK(largest_difference(parameters_after({batch, batch}, s), all) < rate * 1e-3);
  CHECK(largest_difference(all, small_model().flat()) > 1e-3);

  weir::learner l(small_model(), s);
  auto report = l.step(batch, 0, rate);
  REQUIRE(report);
  CHECK(report->sequences == 16);
  CHECK(report->sequences_trained == 8);
  CHECK(report->groups_trained == 2);
}

TEST_CASE("a batch without any advantage changes nothing, whether it is computed or left out") {
  auto batch = random_batch(2, 3), other = batch;
  for (auto& g : batch)
    for (auto& t : g.trajectories) t.reward = 0.3;
  auto s = weir::learner_settings{};
  s.skip_zero_advantage = GENERATE(true, false);
  weir::learner l(small_model(), s);
  REQUIRE(l.step(other, 0, rate));  // so that there is momentum
  const auto before = state_of(l);
  auto report = l.step(batch, 1, rate);
  REQUIRE(report);
  CHECK(state_of(l) == before);
  CHECK(report->gradient_norm == 0);
  CHECK(report->reward == Approx(0.3));
  CHECK(report->sequences_trained == (s.skip_zero_advantage ? 0 : 6));
  CHECK(report->groups_trained == 0);
  REQUIRE(l.step({}, 2, rate));
  CHECK(state_of(l) == before);
}

TEST_CASE("minibatches are steps on parts of the batch, passes are steps on all of it") {
  const auto batch = random_batch(4, 3);
  const std::vector<weir::trajectory_group> front(batch.begin(), batch.begin() + 2),
      back(batch.begin() + 2, batch.end());
  auto s = weir::learner_settings{};
  s.loss = weir::ppo_clip;  // knows the behaviour only: nothing is carried from one optimizer step to the next
  s.needs_proximal = false;
  const auto in_two = parameters_after({front, back}, s), twice = parameters_after({batch, batch}, s);
  const auto both = parameters_after({front, back, front, back}, s);
  s.minibatches = 2;
  CHECK(largest_difference(parameters_after({batch}, s), in_two) < 1e-6);
  s.passes = 2;
  CHECK(largest_difference(parameters_after({batch}, s), both) < 1e-6);
  s.minibatches = 1;
  CHECK(largest_difference(parameters_after({batch}, s), twice) < 1e-6);
  s.minibatches = 9;  // more than there are groups
  s.passes = 1;
  CHECK(largest_difference(parameters_after({batch}, s),
                           parameters_after({{batch[0]}, {batch[1]}, {batch[2]}, {batch[3]}}, plain_settings())) > 0);
  CHECK(parameters_after({batch}, s).isfinite().all().item<bool>());
}

TEST_CASE("the proximal policy is the one before the step, at every minibatch and pass") {
  const auto batch = random_batch(2, 2);
  auto s = weir::learner_settings{};
  s.passes = 2;
  s.minibatches = GENERATE(1U, 2U);
  std::vector<at::Tensor> logp, proximal;
  s.loss = [&](const weir::objective_inputs& in, const weir::objective_settings& settings) {
    logp.push_back(in.logp.detach().clone());
    proximal.push_back(in.logp_proximal.clone());
    CHECK_FALSE(in.logp_proximal.requires_grad());
    return weir::decoupled_ppo(in, settings);
  };
  weir::learner l(small_model(), s);
  REQUIRE(l.step(batch, 0, 0.05));
  const std::size_t parts = s.minibatches;
  REQUIRE(logp.size() == 2 * parts);
  CHECK(largest_difference(logp[0], proximal[0]) < 1e-6);
  for (std::size_t p = 0; p < parts; ++p) CHECK(same_bits(proximal[p], proximal[parts + p]));
  CHECK(largest_difference(logp[parts], proximal[parts]) > 1e-3);          // the second pass
  if (parts == 2) CHECK(largest_difference(logp[1], proximal[1]) > 1e-3);  // the second minibatch
}

TEST_CASE("the report of a step on its own samples: ratio 1, nothing clipped") {
  const auto batch = random_batch(3, 4, 0.0, 3, 0.8);
  auto s = weir::learner_settings{};
  s.temperature = 0.8;
  weir::learner l(small_model(), s);
  auto r = l.step(batch, 0, rate);
  REQUIRE(r);
  double reward = 0, success = 0, tokens = 0, entropy = 0;
  auto model = small_model();
  for (const auto& g : batch)
    for (const auto& t : g.trajectories) {
      reward += t.reward / 12;
      success += t.success ? 1.0 / 12 : 0;
      std::vector<std::int64_t> targets;
      for (std::size_t i = 0; i < t.mask.size(); ++i)
        if (t.mask[i] != 0) targets.push_back(static_cast<std::int64_t>(i));
      tokens += static_cast<double>(targets.size());
      entropy += model.evaluate(packed({t.tokens}), targets, 0.8F).entropy.sum().item<double>();
    }
  CHECK(r->reward == Approx(reward));
  CHECK(r->success == Approx(success));
  CHECK(r->sequences == 12);
  CHECK(r->sequences_trained == 12);
  CHECK(r->tokens_trained == static_cast<std::int64_t>(tokens));
  CHECK(r->entropy == Approx(entropy / tokens).epsilon(1e-5));
  CHECK(r->off_policy.kl_behaviour == Approx(0.0).margin(1e-6));
  CHECK(r->off_policy.clip_fraction == 0);
  CHECK(r->off_policy.importance_weight_mean == Approx(1.0).epsilon(1e-6));
  CHECK(r->off_policy.effective_sample_size == Approx(1.0).epsilon(1e-6));
  CHECK(r->gradient_norm > 0);
  CHECK(r->seconds > 0);
}

TEST_CASE("the reported loss does not depend on how many minibatches there are") {
  auto batch = random_batch(4, 3);
  for (auto& g : batch) g.trajectories[0].reward = 2;  // so that the losses are far from 0
  auto s = plain_settings();
  s.loss = weir::reinforce;
  s.needs_proximal = false;
  s.aggregate = weir::aggregation::sequence_mean_token_sum;  // whose parts are of equal weight
  auto loss = [&](std::uint32_t minibatches) {
    s.minibatches = minibatches;
    weir::learner l(small_model(), s);
    auto r = l.step(batch, 0, 0.0);
    REQUIRE(r);
    return r->loss;
  };
  CHECK(std::abs(loss(1)) > 0.1);
  CHECK(loss(2) == Approx(loss(1)).epsilon(1e-5));
  CHECK(loss(4) == Approx(loss(1)).epsilon(1e-5));
}

TEST_CASE("the whole gradient is clipped to its norm") {
  const auto batch = random_batch(2, 3);
  auto s = plain_settings();
  const auto free = gradient_of(batch, s);
  const auto norm = free.norm().item<double>();
  s.clip_norm = norm / 3;
  CHECK(relative_difference(gradient_of(batch, s), free / 3) < 1e-5);
  s.clip_norm = norm * 3;
  CHECK(relative_difference(gradient_of(batch, s), free) < 1e-7);
  weir::learner l(small_model(), s);
  CHECK(l.step(batch, 0, rate)->gradient_norm == Approx(norm));
}

TEST_CASE("steps make good answers likelier, and an entropy bonus spreads the choice") {
  auto batch = random_batch(2, 4, 0.0);
  auto likelihood = [&](weir::causal_lm& model) {
    double sum = 0;
    for (const auto& g : batch)
      for (const auto& t : g.trajectories) {
        auto copy = t;
        set_behaviour(copy, model, 0);
        for (auto l : copy.logprobs) sum += (t.success ? 1 : -1) * l;
      }
    return sum;
  };
  for (auto& g : batch)
    for (auto& t : g.trajectories) t.success = t.sample % 2 == 0, t.reward = t.success ? 1 : 0;
  weir::learner l(small_model(), {});
  const auto before = likelihood(l.model());
  for (weir::weight_version v = 0; v < 5; ++v) REQUIRE(l.step(batch, v, rate));
  CHECK(likelihood(l.model()) > before + 1);

  auto s = weir::learner_settings{};
  s.entropy_bonus = 1;
  weir::learner spread(small_model(), s);
  for (auto& g : batch)
    for (auto& t : g.trajectories) t.reward = 0;  // with the bonus these are not left out
  const auto first = spread.step(batch, 0, rate)->entropy;
  CHECK(spread.step(batch, 1, rate)->entropy > first);
}

TEST_CASE("supervised steps lower the loss, which is the mean cross-entropy of what has mask 1") {
  const auto batch = random_batch(2, 3)[0].trajectories;
  auto model = small_model();
  double sum = 0, tokens = 0;
  for (const auto& t : batch) {
    auto copy = t;
    set_behaviour(copy, model, 0);
    for (std::size_t i = 0; i < t.mask.size(); ++i) sum -= copy.logprobs[i], tokens += t.mask[i];
  }
  weir::learner l(small_model(), {});
  auto first = l.supervised_step(batch, rate);
  REQUIRE(first);
  CHECK(*first == Approx(sum / tokens).epsilon(1e-5));
  double last = *first;
  for (int i = 0; i < 20; ++i) {
    auto loss = l.supervised_step(batch, rate);
    REQUIRE(loss);
    last = *loss;
  }
  CHECK(last < *first / 2);
}

TEST_CASE("a supervised gradient does not depend on the size of micro-batches") {
  const auto batch = random_batch(1, 6)[0].trajectories;
  auto gradient = [&](std::int64_t tokens) {
    auto s = plain_settings();
    s.micro_batch_tokens = tokens;
    weir::learner l(small_model(), s);
    REQUIRE(l.supervised_step(batch, rate));
    return l.model().flat_grad().clone();
  };
  CHECK(relative_difference(gradient(1), gradient(16384)) < 1e-5);
  CHECK(relative_difference(gradient(40), gradient(16384)) < 1e-5);
}

TEST_CASE("tensors that do not learn stay as they are, and the others learn as if those had no gradient") {
  const auto batch = random_batch(2, 4);
  auto settings = plain_settings();
  settings.trained = {"*.q_proj.weight", "model.norm.weight"};
  weir::learner some(small_model(), settings), all(small_model(), plain_settings());
  const auto before = some.model().flat().detach().clone();
  auto report = some.step(batch, 0, rate);
  REQUIRE(report);
  REQUIRE(all.step(batch, 0, rate));
  double squares = 0;
  for (const auto& t : some.model().layout().tensors) {
    const auto part = [&](const at::Tensor& flat) {
      return flat.detach().narrow(0, static_cast<std::int64_t>(t.offset / 4), static_cast<std::int64_t>(t.bytes / 4));
    };
    CAPTURE(t.name);
    if (t.name.ends_with("q_proj.weight") || t.name == "model.norm.weight") {
      CHECK(at::equal(part(some.model().flat()), part(all.model().flat())));
      CHECK_FALSE(at::equal(part(some.model().flat()), part(before)));
      squares += std::pow(part(all.model().flat_grad()).norm().item<double>(), 2);
    } else {
      CHECK(at::equal(part(some.model().flat()), part(before)));
    }
  }
  CHECK(report->gradient_norm == Approx(std::sqrt(squares)).epsilon(1e-4));
  settings.trained = {"*.lora_a.weight"};
  CHECK_THROWS_WITH(weir::learner(small_model(), settings), Catch::Contains("lora_a"));
}

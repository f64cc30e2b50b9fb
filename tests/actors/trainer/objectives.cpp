// Objectives: the golden file, what a change of it looks like, and edges that it does not have.
#include "weir/trainer/objectives.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "catch.hpp"
#include "policy_support.hpp"
#include "weir/trainer/verify.hpp"

using namespace weir::testing;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const fs::path golden = fs::path(WEIR_FIXTURES) / "objectives" / "golden.json";

/// The verification of a golden file after `edit`.
weir::result<weir::verification> verified(const std::function<void(json&)>& edit) {
  temporary_folder folder;
  auto content = json::parse(slurp(golden));
  edit(content);
  spill(folder.path() / "golden.json", content.dump());
  return weir::verify_objectives(folder.path() / "golden.json");
}

at::Tensor row(std::vector<double> values) { return at::tensor(values, at::kDouble).view({1, -1}); }

/// One sequence, all of it its own tokens.
weir::objective_inputs inputs(std::vector<double> logp, std::vector<double> behaviour, std::vector<double> proximal,
                              std::vector<double> advantages) {
  weir::objective_inputs in;
  in.logp = row(std::move(logp)).requires_grad_(true);
  in.logp_behaviour = row(std::move(behaviour));
  in.logp_proximal = row(std::move(proximal));
  in.advantages = row(std::move(advantages));
  in.mask = at::ones_like(in.advantages);
  return in;
}

}  // namespace

TEST_CASE("all objectives and advantages equal the golden file, values and gradients") {
  auto v = weir::verify_objectives(golden);
  REQUIRE(v);
  CHECK(v->ok());
  std::set<std::string> names;
  for (const auto& c : v->checks) {
    INFO(c.name << ": " << c.difference << " " << c.where);
    CHECK(c.ok);
    names.insert(c.name.substr(0, c.name.find('/')));
  }
  for (const char* name :
       {"ppo_clip", "ppo_dual_clip_c3", "decoupled_ppo", "truncated_is", "masked_is", "gspo", "cispo",
        "advantages grpo_sample_std", "advantages rloo", "diagnostics effective_sample_size_fraction"}) {
    INFO(name);
    CHECK(names.count(name) == 1);
  }
}

TEST_CASE("one changed number is found, by name and place") {
  struct change {
    const char* pointer;
    const char* check;
  };
  for (const auto& [pointer, name] : {change{"/policy/0/objectives/ppo_clip~1token_mean/loss", "ppo_clip/token_mean"},
                                      change{"/policy/0/objectives/gspo~1sequence_mean/grad/1/2", "gspo/sequence_mean"},
                                      change{"/policy/0/advantages/rloo/3", "advantages rloo"},
                                      change{"/policy/0/diagnostics/kl_behaviour_k1", "diagnostics kl_behaviour_k1"}}) {
    INFO(pointer);
    auto v = verified([&](json& g) {
      auto& number = g.at(json::json_pointer(pointer));
      number = number.get<double>() + 1e-6;
    });
    REQUIRE(v);
    CHECK_FALSE(v->ok());
    int failed = 0;
    for (const auto& c : v->checks)
      if (!c.ok) {
        ++failed;
        CHECK(c.name == name);
        CHECK(c.difference == Approx(1e-6).epsilon(1e-2));
        CHECK(c.where.starts_with("case 0"));
      }
    CHECK(failed == 1);
  }
}

TEST_CASE("a golden file that is none is an error that names it") {
  for (const char* content : {"", "[]", "{}", R"({"policy": [{}]})", R"({"policy": 3})"}) {
    temporary_folder folder;
    spill(folder.path() / "golden.json", content);
    auto v = weir::verify_objectives(folder.path() / "golden.json");
    INFO(content);
    REQUIRE_FALSE(v);
    CHECK(v.error().message.find("golden.json") != std::string::npos);
    CHECK(v.error().message.find("exception") == std::string::npos);
  }
}

TEST_CASE("what a golden file lacks, or has in another form, is told by its field") {
  struct change {
    const char* pointer;
    json value;  ///< in place of what is there; null: removed
    const char* field;
  };
  for (const auto& c :
       {change{"/policy/0/config/eps_low", "a", ": policy[0].config.eps_low is \"a\", needs a number"},
        change{"/policy/0/config/group_size", 7, ": policy[0].config.group_size "},
        change{"/policy/0/config/group_size", 0, ": policy[0].config.group_size "},
        change{"/policy/0/inputs/mask", nullptr, ": policy[0].inputs.mask is missing"},
        change{"/policy/0/inputs/mask", json::array(), ": policy[0].inputs.mask "},
        change{"/policy/0/inputs/logp/0", {1.0}, ": policy[0].inputs.logp "},
        change{"/policy/0/inputs/logp/1", {1.0}, ": policy[0].inputs.logp[1] "},
        change{"/policy/0/inputs/logp/1/2", nullptr, ": policy[0].inputs.logp[1][2] "},
        change{"/policy/0/inputs/rewards", {1.0}, ": policy[0].inputs.rewards "},
        change{"/policy/0/advantages/rloo", json::array(), ": policy[0].advantages.rloo[0] is missing"},
        change{"/policy/0/objectives/gspo~1sequence_mean/grad/1/2", "x", "gspo/sequence_mean.grad[1][2] "},
        change{"/policy/0/objectives/ppo_dual_clip_cx~1token_mean", 1, "ppo_dual_clip_cx/token_mean "}}) {
    INFO(c.pointer);
    auto v = verified([&c](json& g) {
      const json::json_pointer at(c.pointer);
      const bool entry = c.value.is_null() && g.at(at.parent_pointer()).is_object();
      if (entry)
        g.at(at.parent_pointer()).erase(at.back());
      else
        g[at] = c.value;
    });
    REQUIRE_FALSE(v);
    INFO(v.error().message);
    CHECK(v.error().message.find("golden.json") != std::string::npos);
    CHECK(v.error().message.find(c.field) != std::string::npos);
  }
}

TEST_CASE("an objective that is not there is noted, not passed") {
  auto v = verified([](json& g) {
    g["policy"][0]["objectives"]["magic/token_mean"] = g["policy"][0]["objectives"]["ppo_clip/token_mean"];
  });
  REQUIRE(v);
  CHECK(v->ok());
  bool noted = false;
  for (const auto& n : v->notes) noted = noted || n.find("magic/token_mean") != std::string::npos;
  CHECK(noted);
}

TEST_CASE("objectives are found by name") {
  const auto names = weir::objective_names();
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == 8);
  for (const auto& name : names) CHECK(weir::find_objective(name));
  CHECK_FALSE(weir::find_objective("ppo"));
  CHECK_FALSE(weir::find_objective(""));
}

TEST_CASE("REINFORCE's gradient is -A on every token") {
  auto in = inputs({-1, -2}, {-1, -2}, {-1, -2}, {0.5, -3});
  const auto terms = weir::reinforce(in, {});
  terms.loss.sum().backward();
  CHECK(largest_difference(in.logp.grad(), row({-0.5, 3})) == 0);
  CHECK(largest_difference(terms.loss, row({0.5, -6})) == 0);
}

TEST_CASE("a ratio beyond the bound gives no gradient where that would push it further, and is counted") {
  // Ratios e^0.5 and e^-0.5, each with both signs.
  auto in = inputs({-1, -1, -1, -1}, {-1.5, -1.5, -0.5, -0.5}, {-1, -1, -1, -1}, {1, -1, 1, -1});
  const auto terms = weir::ppo_clip(in, {});
  terms.loss.sum().backward();
  const auto g = in.logp.grad()[0];
  CHECK(largest_difference(terms.clipped, row({1, 0, 0, 1})) == 0);
  CHECK(g[0].item<double>() == 0);
  CHECK(g[1].item<double>() == Approx(std::exp(0.5)));
  CHECK(g[2].item<double>() == Approx(-std::exp(-0.5)));
  CHECK(g[3].item<double>() == 0);
}

TEST_CASE("importance weights are bounded or dropped as the objective says, also infinite ones") {
  const auto infinite = 1e4;
  auto in = inputs({-1, -1, -1, -1}, {-1, -1 - std::log(5.0), -1 + std::log(5.0), -1 - infinite}, {-1, -1, -1, -1},
                   {1, 1, 1, 1});
  const auto losses = [&](const char* name) { return weir::find_objective(name)(in, {}).loss; };
  CHECK(largest_difference(losses("truncated_is"), row({-1, -2, -0.2, -2})) < 1e-12);
  CHECK(largest_difference(losses("masked_is"), row({-1, 0, 0, 0})) == 0);
  CHECK(largest_difference(losses("decoupled_ppo").narrow(1, 0, 3), row({-1, -5, -0.2})) < 1e-12);
  losses("masked_is").sum().backward();
  CHECK(in.logp.grad().isfinite().all().item<bool>());
}

TEST_CASE("no objective gives loss or gradient to padding") {
  for (const auto& name : weir::objective_names()) {
    INFO(name);
    auto in = inputs({-1, -2, 0, 0}, {-1.2, -1.8, 0, 0}, {-1.1, -1.9, 0, 0}, {1, 1, 0, 0});
    in.mask = row({1, 1, 0, 0});
    const auto weights = weir::aggregation_weights(in.mask, weir::aggregation::token_mean, 1);
    const auto terms = weir::find_objective(name)(in, {});
    (terms.loss * weights).sum().backward();
    CHECK(largest_difference(in.logp.grad().narrow(1, 2, 2), row({0, 0})) == 0);
    CHECK(in.logp.grad().narrow(1, 0, 2).abs().min().item<double>() > 0);
  }
}

TEST_CASE("aggregation weights, by hand") {
  const auto mask = at::tensor({1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0}, at::kDouble).view({3, 3});
  auto is = [&](weir::aggregation how, double first, double second) {
    const auto w = weir::aggregation_weights(mask, how, 10);
    CHECK(largest_difference(w, mask * at::tensor({first, second, 0.0}, at::kDouble).view({3, 1})) < 1e-15);
  };
  is(weir::aggregation::token_mean, 1.0 / 4, 1.0 / 4);
  is(weir::aggregation::sequence_mean_token_mean, 1.0 / 9, 1.0 / 3);
  is(weir::aggregation::sequence_mean_token_sum, 1.0 / 3, 1.0 / 3);
  is(weir::aggregation::sequence_mean_token_sum_over_max_length, 1.0 / 30, 1.0 / 30);
  CHECK(largest_difference(weir::aggregation_weights(at::zeros({2, 2}), weir::aggregation::token_mean, 1),
                           at::zeros({2, 2})) == 0);
}

TEST_CASE("divergences add over micro-batches, and of nothing are those of equal policies") {
  const auto a = inputs({-1, -2, -1}, {-1.5, -1.5, -1}, {-1.1, -2, -1.4}, {1, 1, 1}), b = inputs({-3}, {-1}, {-2}, {1});
  const auto both = inputs({-1, -2, -1, -3}, {-1.5, -1.5, -1, -1}, {-1.1, -2, -1.4, -2}, {1, 1, 1, 1});
  weir::divergence_sums apart, together;
  apart.add(a, weir::ppo_clip(a, {}).clipped);
  apart.add(b, weir::ppo_clip(b, {}).clipped);
  together.add(both, weir::ppo_clip(both, {}).clipped);
  const auto x = apart.mean(), y = together.mean();
  CHECK(x.clip_fraction == Approx(y.clip_fraction));
  CHECK(x.kl_behaviour == Approx(y.kl_behaviour));
  CHECK(x.importance_weight_mean == Approx(y.importance_weight_mean));
  CHECK(x.effective_sample_size == Approx(y.effective_sample_size));
  CHECK(y.kl_behaviour == Approx((-0.5 + 0.5 + 0 + 2) / 4));
  CHECK(y.clip_fraction == Approx(0.25));
  const auto none = weir::divergence_sums{}.mean();
  CHECK(none.kl_behaviour == 0);
  CHECK(none.importance_weight_mean == 1);
  CHECK(none.effective_sample_size == 1);
}

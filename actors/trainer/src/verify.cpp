#include "weir/trainer/verify.hpp"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "weir/runtime/files.hpp"
#include "weir/trainer/objectives.hpp"

namespace weir {

namespace {

using json = nlohmann::json;
constexpr double tolerance = 1e-10;

const std::map<std::string, aggregation> aggregations{
    {"token_mean", aggregation::token_mean},
    {"sequence_mean_token_mean", aggregation::sequence_mean_token_mean},
    {"sequence_mean_token_sum", aggregation::sequence_mean_token_sum},
    {"sequence_mean_token_sum_over_max_length", aggregation::sequence_mean_token_sum_over_max_length},
    {"sequence_mean", aggregation::sequence_mean_token_mean}};

const std::map<std::string, advantage_kind> advantage_kinds{{"grpo_sample_std", advantage_kind::grpo},
                                                            {"grpo_population_std", advantage_kind::grpo_population},
                                                            {"dr_grpo", advantage_kind::dr_grpo},
                                                            {"rloo", advantage_kind::rloo}};

at::Tensor matrix(const json& rows) {
  std::vector<double> values;
  for (const auto& row : rows)
    for (const auto& v : row) values.push_back(v.get<double>());
  return at::tensor(values, at::kDouble).view({static_cast<std::int64_t>(rows.size()), -1});
}

/// Checks by name; one name may be fed by several cases.
class collector {
 public:
  void add(const std::string& name, double ours, double theirs, const std::string& where) {
    auto& c = checks_[name];
    c.name = name;
    c.tolerance = tolerance;
    const double difference = std::abs(ours - theirs);
    if (!(difference <= c.difference)) c.difference = difference;
    if (!(difference <= tolerance) && c.where.empty())
      c.where = where + ": " + json(ours).dump() + ", the reference has " + json(theirs).dump();
  }
  std::vector<check> done() {
    std::vector<check> all;
    for (auto& [name, c] : checks_) {
      c.ok = c.where.empty();
      all.push_back(c);
    }
    return all;
  }

 private:
  std::map<std::string, check> checks_;
};

struct policy_case {
  objective_inputs inputs;
  objective_settings settings;
  at::Tensor reference;
  double max_length = 1;
  std::int64_t group_size = 1;
  double advantage_eps = 0;
};

policy_case read_case(const json& entry) {
  policy_case c;
  const auto &config = entry.at("config"), &in = entry.at("inputs");
  c.settings.eps_low = config.at("eps_low");
  c.settings.eps_high = config.at("eps_high");
  c.settings.is_cap = config.at("is_cap");
  c.settings.is_low = config.at("is_low");
  c.settings.is_high = config.at("is_high");
  c.max_length = config.at("max_length");
  c.group_size = config.at("group_size");
  c.advantage_eps = config.at("advantage_eps");
  c.inputs.mask = matrix(in.at("mask"));
  c.inputs.logp = matrix(in.at("logp"));
  c.inputs.logp_behaviour = matrix(in.at("logp_behaviour"));
  c.inputs.logp_proximal = matrix(in.at("logp_proximal"));
  if (in.contains("logp_reference")) c.reference = matrix(in.at("logp_reference"));
  return c;
}

std::vector<double> advantages_of(const policy_case& c, const json& rewards, advantage_kind kind) {
  std::vector<double> all, group;
  for (std::size_t i = 0; i < rewards.size(); ++i) {
    group.push_back(rewards[i]);
    if (static_cast<std::int64_t>(group.size()) == c.group_size) {
      const auto values = group_advantages(group, kind, c.advantage_eps);
      all.insert(all.end(), values.begin(), values.end());
      group.clear();
    }
  }
  return all;
}

/// False if this build has no objective of that name.
bool check_objective(const policy_case& c, const std::string& key, const json& expected, const std::string& where,
                     collector& out) {
  const auto slash = key.find('/');
  auto name = key.substr(0, slash);
  const auto how = aggregations.find(slash == std::string::npos ? "" : key.substr(slash + 1));
  auto settings = c.settings;
  if (const std::string dual = "ppo_dual_clip_c"; name.starts_with(dual)) {  // the bound is a part of the name
    settings.dual_clip = std::stod(name.substr(dual.size()));
    name = "ppo_dual_clip";
  }
  const auto f = find_objective(name);
  if (!f || how == aggregations.end()) return false;
  auto in = c.inputs;
  in.logp = c.inputs.logp.clone().requires_grad_(true);
  const auto loss = (f(in, settings).loss * aggregation_weights(in.mask, how->second, c.max_length)).sum();
  loss.backward();
  out.add(key, loss.item<double>(), expected.at("loss"), where + " loss");
  const auto theirs = matrix(expected.at("grad"));
  const auto ours = in.logp.grad();
  for (std::int64_t b = 0; b < ours.size(0); ++b)
    for (std::int64_t t = 0; t < ours.size(1); ++t)
      out.add(key, ours[b][t].item<double>(), theirs[b][t].item<double>(),
              where + " gradient at [" + std::to_string(b) + ", " + std::to_string(t) + "]");
  return true;
}

void check_diagnostics(const policy_case& c, const json& expected, const std::string& where, collector& out) {
  divergence_sums sums;
  sums.add(c.inputs, ppo_clip(c.inputs, c.settings).clipped);
  const auto d = sums.mean();
  const std::map<std::string, double> ours{{"clip_fraction/token_mean", d.clip_fraction},
                                           {"kl_behaviour_k1", d.kl_behaviour},
                                           {"importance_weight_mean", d.importance_weight_mean},
                                           {"effective_sample_size_fraction", d.effective_sample_size}};
  for (const auto& [key, value] : ours)
    if (expected.contains(key)) out.add("diagnostics " + key, value, expected.at(key), where);
}

void check_case(const json& entry, const std::string& where, collector& out, std::vector<std::string>& notes) {
  auto c = read_case(entry);
  const auto& rewards = entry.at("inputs").at("rewards");
  for (const auto& [key, expected] : entry.at("advantages").items()) {
    const auto kind = advantage_kinds.find(key);
    if (kind == advantage_kinds.end()) continue;
    const auto ours = advantages_of(c, rewards, kind->second);
    for (std::size_t i = 0; i < ours.size(); ++i)
      out.add("advantages " + key, ours[i], expected.at(i), where + " sequence " + std::to_string(i));
  }
  const auto per_sequence = advantages_of(c, rewards, advantage_kind::grpo);
  c.inputs.advantages = at::tensor(per_sequence, at::kDouble).unsqueeze(1).expand_as(c.inputs.mask);
  for (const auto& [key, expected] : entry.at("objectives").items())
    if (!check_objective(c, key, expected, where, out) && where == "case 0") notes.push_back(key + ": not implemented, not checked");
  if (entry.contains("diagnostics")) check_diagnostics(c, entry.at("diagnostics"), where, out);
}

}  // namespace

result<verification> verify_objectives(const std::filesystem::path& golden_json) {
  auto golden = read_json_file(golden_json);
  if (!golden) return fail(golden.error());
  verification out;
  collector all;
  try {
    const auto& cases = golden->at("policy");
    for (std::size_t i = 0; i < cases.size(); ++i) check_case(cases[i], "case " + std::to_string(i), all, out.notes);
  } catch (const std::exception& e) {  // of the JSON library, or of libtorch for matrices that are none
    return fail(errc::invalid_data, golden_json.string() + ": " + e.what());
  }
  if (golden->contains("returns")) out.notes.emplace_back("returns (V-trace, GAE): not implemented, not checked");
  out.checks = all.done();
  return out;
}

}  // namespace weir

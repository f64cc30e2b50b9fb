#include "weir/trainer/verify.hpp"

#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include "weir/runtime/files.hpp"
#include "weir/runtime/json_view.hpp"
#include "weir/trainer/objectives.hpp"

namespace weir {

namespace {

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

/// Rows of one length; as many and as long as those of `like`, if it is given.
at::Tensor matrix(const json_view& rows, const at::Tensor& like = {}) {
  std::vector<double> values;
  const auto height = rows.size(), width = height == 0 ? 0 : rows.at(0).size();
  if (like.defined()
          ? like.sizes() != at::IntArrayRef{static_cast<std::int64_t>(height), static_cast<std::int64_t>(width)}
          : width == 0)
    rows.refuse(like.defined() ? std::to_string(like.size(0)) + " rows of " + std::to_string(like.size(1))
                               : "rows of numbers");
  for (std::size_t i = 0; i < height; ++i) {
    const auto row = rows.at(i);
    if (row.size() != width) row.refuse(std::to_string(width) + " numbers, as the rows before it");
    for (std::size_t j = 0; j < width; ++j) values.push_back(row.at(j).number());
  }
  return at::tensor(values, at::kDouble).view({static_cast<std::int64_t>(height), static_cast<std::int64_t>(width)});
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
      c.where = where + ": " + nlohmann::json(ours).dump() + ", the reference has " + nlohmann::json(theirs).dump();
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
  std::vector<double> rewards;
  double max_length = 1;
  std::size_t group_size = 1;
  double advantage_eps = 0;
};

policy_case read_case(const json_view& entry) {
  policy_case c;
  const auto config = entry.at("config"), in = entry.at("inputs");
  c.settings.eps_low = config.at("eps_low").number();
  c.settings.eps_high = config.at("eps_high").number();
  c.settings.is_cap = config.at("is_cap").number();
  c.settings.is_low = config.at("is_low").number();
  c.settings.is_high = config.at("is_high").number();
  c.max_length = config.at("max_length").number();
  c.group_size = config.at("group_size").natural();
  c.advantage_eps = config.at("advantage_eps").number();
  c.inputs.mask = matrix(in.at("mask"));
  c.inputs.logp = matrix(in.at("logp"), c.inputs.mask);
  c.inputs.logp_behaviour = matrix(in.at("logp_behaviour"), c.inputs.mask);
  c.inputs.logp_proximal = matrix(in.at("logp_proximal"), c.inputs.mask);
  const auto rewards = in.at("rewards");
  for (std::size_t i = 0; i < rewards.size(); ++i) c.rewards.push_back(rewards.at(i).number());
  const auto rows = static_cast<std::size_t>(c.inputs.mask.size(0));
  if (c.rewards.size() != rows) rewards.refuse(std::to_string(rows) + " numbers, one a row of mask");
  if (c.group_size == 0 || rows % c.group_size != 0)
    config.at("group_size").refuse("a divisor of the " + std::to_string(rows) + " rows");
  return c;
}

std::vector<double> advantages_of(const policy_case& c, advantage_kind kind) {
  std::vector<double> all;
  for (std::size_t i = 0; i < c.rewards.size(); i += c.group_size) {
    const auto values = group_advantages(std::span(c.rewards).subspan(i, c.group_size), kind, c.advantage_eps);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

/// The bound that stands in a name such as ppo_dual_clip_c3; nothing if it is no number.
std::optional<double> bound_in(std::string_view digits) {
  double value = 0;
  const auto* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, value);
  return read.ec == std::errc{} && read.ptr == end ? std::optional(value) : std::nullopt;
}

/// False if this build has no objective of that name.
bool check_objective(const policy_case& c, const std::string& key, const json_view& expected, const std::string& where,
                     collector& out) {
  const auto slash = key.find('/');
  auto name = key.substr(0, slash);
  const auto how = aggregations.find(slash == std::string::npos ? "" : key.substr(slash + 1));
  auto settings = c.settings;
  if (const std::string dual = "ppo_dual_clip_c"; name.starts_with(dual)) {
    const auto bound = bound_in(std::string_view(name).substr(dual.size()));
    if (!bound) expected.refuse("a name that ends with its bound, such as ppo_dual_clip_c3");
    settings.dual_clip = *bound;
    name = "ppo_dual_clip";
  }
  const auto f = find_objective(name);
  if (!f || how == aggregations.end()) return false;
  auto in = c.inputs;
  in.logp = c.inputs.logp.clone().requires_grad_(true);
  const auto loss = (f(in, settings).loss * aggregation_weights(in.mask, how->second, c.max_length)).sum();
  loss.backward();
  out.add(key, loss.item<double>(), expected.at("loss").number(), where + " loss");
  const auto theirs = matrix(expected.at("grad"), c.inputs.mask);
  const auto ours = in.logp.grad();
  for (std::int64_t b = 0; b < ours.size(0); ++b)
    for (std::int64_t t = 0; t < ours.size(1); ++t)
      out.add(key, ours[b][t].item<double>(), theirs[b][t].item<double>(),
              where + " gradient at [" + std::to_string(b) + ", " + std::to_string(t) + "]");
  return true;
}

void check_diagnostics(const policy_case& c, const json_view& expected, const std::string& where, collector& out) {
  divergence_sums sums;
  sums.add(c.inputs, ppo_clip(c.inputs, c.settings).clipped);
  const auto d = sums.mean();
  const std::map<std::string, double> ours{{"clip_fraction/token_mean", d.clip_fraction},
                                           {"kl_behaviour_k1", d.kl_behaviour},
                                           {"importance_weight_mean", d.importance_weight_mean},
                                           {"effective_sample_size_fraction", d.effective_sample_size}};
  for (const auto& [key, value] : ours)
    if (expected.has(key)) out.add("diagnostics " + key, value, expected.at(key).number(), where);
}

void check_case(const json_view& entry, const std::string& where, collector& out, std::vector<std::string>& notes) {
  auto c = read_case(entry);
  for (const auto& [key, expected] : entry.at("advantages").items()) {
    const auto kind = advantage_kinds.find(key);
    if (kind == advantage_kinds.end()) continue;
    const auto ours = advantages_of(c, kind->second);
    for (std::size_t i = 0; i < ours.size(); ++i)
      out.add("advantages " + key, ours[i], expected.at(i).number(), where + " sequence " + std::to_string(i));
  }
  const auto per_sequence = advantages_of(c, advantage_kind::grpo);
  c.inputs.advantages = at::tensor(per_sequence, at::kDouble).unsqueeze(1).expand_as(c.inputs.mask);
  for (const auto& [key, expected] : entry.at("objectives").items())
    if (!check_objective(c, key, expected, where, out) && where == "case 0")
      notes.push_back(key + ": not implemented, not checked");
  if (entry.has("diagnostics")) check_diagnostics(c, entry.at("diagnostics"), where, out);
}

}  // namespace

result<verification> verify_objectives(const std::filesystem::path& golden_json) {
  auto golden = read_json_file(golden_json);
  if (!golden) return fail(golden.error());
  verification out;
  collector all;
  const json_view root(*golden, golden_json.string());
  try {
    const auto cases = root.at("policy");
    for (std::size_t i = 0; i < cases.size(); ++i) check_case(cases.at(i), "case " + std::to_string(i), all, out.notes);
  } catch (const json_view::mismatch& e) {
    return fail(errc::invalid_data, e.what());
  }
  if (root.has("returns")) out.notes.emplace_back("returns (V-trace, GAE): not implemented, not checked");
  out.checks = all.done();
  return out;
}

}  // namespace weir

// Training's view of the model: log-probabilities, entropy, and the gradient of all parameters.
#include <map>

#include "catch.hpp"
#include "ops.hpp"
#include "policy_support.hpp"
#include "weir/policy/evaluation.hpp"

using namespace weir::testing;

namespace {

std::vector<std::vector<weir::token>> sequences() {
  weir::random_stream random(5);
  std::vector<std::vector<weir::token>> out;
  for (std::int64_t n : {7, 2, 19, 1, 11, 2}) out.push_back(random_tokens(random, n, small_config().vocab_size));
  return out;
}

/// The architecture once more: in double precision, of composite operations, with each HF tensor a leaf of its own.
class reference_model {
 public:
  explicit reference_model(const weir::causal_lm& model) : config_(model.config()), layout_(model.layout()) {
    for (const auto& spec : layout_.tensors)
      leaves_[spec.name] = part(model.flat(), spec).to(at::kDouble).clone().requires_grad_(true);
  }

  at::Tensor logits(const weir::packed_sequences& batch) {
    using namespace weir::ops;
    packing p{batch.offsets, {}, {}, {}, config_.heads, config_.kv_heads, config_.rms_norm_eps};
    for (std::size_t b = 0; b + 1 < batch.offsets.size(); ++b)
      for (std::int64_t i = 0; i < batch.offsets[b + 1] - batch.offsets[b]; ++i) p.positions.push_back(i);
    std::tie(p.cosine, p.sine) = rope_tables(64, config_.head_dim, config_.rope_theta);
    const auto ids = at::tensor(std::vector<std::int64_t>(batch.tokens.begin(), batch.tokens.end()), at::kLong);
    auto norm = [&](const at::Tensor& x, const std::string& name) {
      return rms_norm(x, at(name), config_.rms_norm_eps, form::composite);
    };
    auto linear = [&](const at::Tensor& x, const std::string& name) { return at::mm(x, at(name).t()); };
    auto x = at("model.embed_tokens").index_select(0, ids);
    for (std::int64_t i = 0; i < config_.layers; ++i) {
      const auto layer = "model.layers." + std::to_string(i) + ".", attn = layer + "self_attn.";
      const auto a = norm(x, layer + "input_layernorm");
      const auto qkv = at::cat({linear(a, attn + "q_proj"), linear(a, attn + "k_proj"), linear(a, attn + "v_proj")}, 1);
      x = x + linear(attention(qkv, at(attn + "q_norm"), at(attn + "k_norm"), p, form::composite), attn + "o_proj");
      const auto b = norm(x, layer + "post_attention_layernorm");
      x = x + linear(at::silu(linear(b, layer + "mlp.gate_proj")) * linear(b, layer + "mlp.up_proj"),
                     layer + "mlp.down_proj");
    }
    return linear(norm(x, "model.norm"), config_.tied_embeddings ? "model.embed_tokens" : "lm_head");
  }

  /// What stands in `flat` for the tensor of `spec`.
  static at::Tensor part(const at::Tensor& flat, const weir::tensor_spec& spec) {
    return flat.narrow(0, static_cast<std::int64_t>(spec.offset / 4), static_cast<std::int64_t>(spec.bytes / 4))
        .view(spec.shape);
  }
  const at::Tensor& at(const std::string& name) const { return leaves_.at(name + ".weight"); }
  const std::map<std::string, at::Tensor>& leaves() const { return leaves_; }

 private:
  weir::causal_lm_config config_;
  weir::manifest layout_;
  std::map<std::string, at::Tensor> leaves_;
};

/// log softmax(logits / temperature) of each target, and the entropy of that distribution.
std::pair<at::Tensor, at::Tensor> by_definition(const at::Tensor& logits, const weir::packed_sequences& batch,
                                                const std::vector<std::int64_t>& targets, double temperature) {
  std::vector<std::int64_t> from, wanted;
  for (auto t : targets) {
    from.push_back(t - 1);
    wanted.push_back(batch.tokens[static_cast<std::size_t>(t)]);
  }
  const auto all =
      at::log_softmax(logits.index_select(0, at::tensor(from, at::kLong)).to(at::kDouble) / temperature, -1);
  return {all.gather(1, at::tensor(wanted, at::kLong).unsqueeze(1)).squeeze(1), -(all.exp() * all).sum(-1)};
}

}  // namespace

TEST_CASE("log-probabilities and entropy are those of the logits at the temperature") {
  const auto tied = GENERATE(true, false);
  const auto temperature = GENERATE(0.4F, 1.0F, 3.0F);
  auto model = weir::causal_lm::random(small_config(tied), 11);
  const auto batch = packed(sequences());
  for (const auto& targets : {all_targets(batch), std::vector<std::int64_t>{1, 8, 20}}) {
    const auto e = model.evaluate(batch, targets, temperature);
    const auto [logp, entropy] = by_definition(model.logits(batch), batch, targets, temperature);
    CHECK(largest_difference(e.logprobs, logp) < 1e-5);
    CHECK(largest_difference(e.entropy, entropy) < 1e-5);
    CHECK(e.logprobs.scalar_type() == at::kFloat);
    CHECK_FALSE(e.entropy.requires_grad());
  }
}

TEST_CASE("logits and the gradient of every tensor are those of the architecture written out in double precision") {
  const auto tied = GENERATE(true, false);
  const auto with_entropy = GENERATE(false, true);
  auto model = weir::causal_lm::random(small_config(tied), 12);
  const auto batch = packed(sequences());
  const auto targets = all_targets(batch);
  const auto weights = gaussian({static_cast<std::int64_t>(targets.size())}, 13);
  reference_model reference(model);
  const auto logits = reference.logits(batch);
  CHECK(largest_difference(model.logits(batch), logits) < 1e-5);

  const auto [logp, entropy] = by_definition(logits, batch, targets, 0.8);
  auto objective = (logp * weights).sum();
  if (with_entropy) objective = objective + (entropy * weights).sum() * 0.3;
  objective.backward();
  const auto& grad = model.flat_grad();
  const auto e = model.evaluate(batch, targets, 0.8F, with_entropy);
  auto ours = (e.logprobs * weights).sum();
  if (with_entropy) ours = ours + (e.entropy * weights).sum() * 0.3;
  CHECK(ours.item<double>() == Approx(objective.item<double>()).epsilon(1e-5));
  ours.backward();
  for (const auto& spec : model.layout().tensors) {
    INFO(spec.name);
    CHECK(relative_difference(reference_model::part(grad, spec), reference.leaves().at(spec.name).grad()) < 1e-5);
  }
}

TEST_CASE("the gradient does not depend on how sequences are packed into calls") {
  auto model = weir::causal_lm::random(small_config(), 14);
  const auto& grad = model.flat_grad();
  auto gradient_of = [&](const std::vector<std::vector<std::vector<weir::token>>>& calls) {
    grad.zero_();
    for (const auto& call : calls) {
      const auto batch = packed(call);
      const auto targets = all_targets(batch);
      if (!targets.empty()) model.evaluate(batch, targets, 1.0F).logprobs.sum().backward();
    }
    return grad.clone();
  };
  const auto s = sequences();
  const auto together = gradient_of({s});
  CHECK(together.norm().item<double>() > 1);
  CHECK(relative_difference(gradient_of({{s[0]}, {s[1]}, {s[2]}, {s[3]}, {s[4]}, {s[5]}}), together) < 1e-6);
  CHECK(relative_difference(gradient_of({{s[5], s[2]}, {s[4], s[1], s[0]}}), together) < 1e-6);
}

TEST_CASE("a sequence's log-probabilities do not depend on its company") {
  auto model = weir::causal_lm::random(small_config(), 15);
  const auto s = sequences();
  const auto batch = packed(s);
  const auto all = model.evaluate(batch, all_targets(batch), 1.0F).logprobs;
  std::int64_t at = 0;
  for (const auto& one : s) {
    if (one.size() < 2) continue;
    const auto alone = packed({one});
    const auto own = model.evaluate(alone, all_targets(alone), 1.0F).logprobs;
    CHECK(largest_difference(own, all.narrow(0, at, own.size(0))) < 2e-6);
    at += own.size(0);
  }
}

TEST_CASE("evaluate without gradient gives the same bits as with") {
  auto model = weir::causal_lm::random(small_config(), 16);
  model.flat_grad();
  const auto batch = packed(sequences());
  const auto with = model.evaluate(batch, all_targets(batch), 1.0F).logprobs;
  at::NoGradGuard none;
  CHECK(same_bits(model.evaluate(batch, all_targets(batch), 1.0F).logprobs, with));
}

TEST_CASE("evaluate refuses what it cannot mean") {
  auto model = weir::causal_lm::random(small_config(), 1);
  const auto batch = packed({{1, 2, 3}, {4, 5}});
  using list = std::vector<std::int64_t>;
  auto call = [&](const list& targets, float temperature) {
    return thrown_by([&] { model.evaluate(batch, targets, temperature); });
  };
  CHECK(call({1, 2, 4}, 1.0F).empty());
  CHECK_FALSE(call({}, 1.0F).empty());
  CHECK_FALSE(call({1}, 0.0F).empty());
  CHECK_FALSE(call({1}, -1.0F).empty());
  CHECK_FALSE(call({1}, std::nanf("")).empty());
  CHECK_FALSE(call({5}, 1.0F).empty());
  CHECK_FALSE(call({0}, 1.0F).empty());
  CHECK_FALSE(call({-1}, 1.0F).empty());
  CHECK_FALSE(call({3}, 1.0F).empty());     // the second sequence's first token
  CHECK_FALSE(call({2, 1}, 1.0F).empty());  // falling
}

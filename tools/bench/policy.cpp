// The model's speed at Countdown's size, against the matrix products alone, which libtorch's BLAS computes in the same
// run: what is left of the peak after norms, attention and everything else.
#include <numeric>

#include "bench.hpp"
#include "weir/policy/causal_lm.hpp"
#include "weir/policy/evaluation.hpp"
#include "weir/policy/threads.hpp"

namespace {

weir::causal_lm_config countdown_model() {
  weir::causal_lm_config c;
  c.vocab_size = 17;
  c.hidden_size = 96;
  c.layers = 3;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 24;
  c.intermediate_size = 256;
  c.max_positions = 64;
  c.tied_embeddings = true;
  return c;
}

/// Weights [outputs, inputs] of every product of a forward pass.
std::vector<at::Tensor> matrices(const weir::causal_lm_config& c) {
  std::vector<at::Tensor> out;
  for (std::int64_t i = 0; i < c.layers; ++i) {
    out.push_back(at::rand({(c.heads + 2 * c.kv_heads) * c.head_dim, c.hidden_size}));
    out.push_back(at::rand({c.hidden_size, c.heads * c.head_dim}));
    out.push_back(at::rand({2 * c.intermediate_size, c.hidden_size}));
    out.push_back(at::rand({c.hidden_size, c.intermediate_size}));
  }
  out.push_back(at::rand({c.vocab_size, c.hidden_size}));
  return out;
}

/// One forward pass's products over `rows` rows, and twice as many again for a backward pass.
void products(const std::vector<at::Tensor>& weights, std::int64_t rows, bool backward) {
  for (const auto& w : weights) {
    const auto x = at::empty({rows, w.size(1)});
    const auto y = at::mm(x, w.t());
    if (!backward) continue;
    at::mm(y, w);
    at::mm(y.t(), x);
  }
}

}  // namespace

int main(int argc, char** argv) {
  weir::bench::report report("policy", argc, argv);
  weir::set_intra_op_threads(1);
  const int rounds = report.quick() ? 3 : 20;
  const auto config = countdown_model();
  auto model = weir::causal_lm::random(config, 1);
  model.flat_grad();

  constexpr std::int64_t sequences = 512, length = 13, produced = 6;
  weir::packed_sequences batch;
  std::vector<std::int64_t> targets;
  batch.offsets.push_back(0);
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::int64_t i = 0; i < length; ++i) {
      if (i >= length - produced) targets.push_back(static_cast<std::int64_t>(batch.tokens.size()));
      batch.tokens.push_back(static_cast<weir::token>((s * 7 + i * 5) % config.vocab_size));
    }
    batch.offsets.push_back(static_cast<std::int64_t>(batch.tokens.size()));
  }
  const auto weights = matrices(config);
  const auto train =
      weir::bench::best_seconds(rounds, [&] { model.evaluate(batch, targets, 1.0F).logprobs.sum().backward(); });
  const auto train_products = weir::bench::best_seconds(rounds, [&] { products(weights, sequences * length, true); });
  report.add("forward and backward, 512 sequences of 13 tokens", 1e3 * train, "ms");
  report.add("its matrix products alone", 1e3 * train_products, "ms");
  report.add("products alone / forward and backward", train_products / train, "x", 0.5);

  auto replica = weir::causal_lm::bind(config, model.flat().detach());
  constexpr std::int64_t slots = 256;
  weir::kv_cache cache(config, slots, 32);
  const std::vector<weir::token> prompt{3, 7, 5, 14, 3, 8, 13};
  std::vector<weir::sequence_chunk> prefill, decode;
  for (std::int64_t s = 0; s < slots; ++s) {
    prefill.push_back({s, 0, prompt});
    decode.push_back({s, static_cast<std::int64_t>(prompt.size()), std::span(prompt).first(1)});
  }
  replica.extend(cache, prefill);
  const auto step = weir::bench::best_seconds(10 * rounds, [&] { replica.extend(cache, decode); });
  const auto step_products = weir::bench::best_seconds(10 * rounds, [&] { products(weights, slots, false); });
  report.add("one decode step of 256 sequences", 1e3 * step, "ms");
  report.add("its matrix products alone", 1e3 * step_products, "ms");
  report.add("products alone / decode step", step_products / step, "x", 0.5);
  report.add("tokens/s while decoding", slots / step, "1/s");
  return report.finish();
}

#pragma once
#include "ops.hpp"
#include "weir/policy/causal_lm.hpp"
#include "weir/policy/torch.hpp"

namespace weir {

struct causal_lm::state {
  struct layer {
    at::Tensor input_norm, qkv, q_norm, k_norm, out, mlp_norm, gate_up, down;
  };

  /// Buffers of `extend`, kept between calls: rows are padded to a multiple of `row_multiple`.
  struct scratch {
    std::int64_t rows = 0;
    at::Tensor x, normed, qkv, q, k, attended, gate_up, swiglu;
    std::int64_t last_rows = 0;
    at::Tensor last, last_normed, logits;
    std::vector<std::int64_t> positions;
    std::vector<float> scores;
  };
  /// The matrices as the CPU's product kernel wants them.
  struct packed_layer {
    at::Tensor qkv, out, gate_up, down;
  };

  state(const causal_lm_config& c, at::Tensor parameters);
  void view_parameters();
  void need_positions(std::int64_t positions);
  at::Tensor hidden(const packed_sequences& batch);
  void need_rows(std::int64_t rows, std::int64_t last_rows);
  void pack_parameters();
  at::Tensor extend_fused(kv_cache& cache, std::span<const sequence_chunk> chunks, std::int64_t rows);
  at::Tensor extend_composite(kv_cache& cache, std::span<const sequence_chunk> chunks);

  causal_lm_config config;
  manifest layout;
  at::Tensor flat, flat_grad;
  at::Tensor embedding, norm, head;
  std::vector<layer> layers;
  std::vector<packed_layer> packed;
  at::Tensor packed_head;
  bool constant = false;  ///< the parameters change by rebind only, so that `packed` stays true
  bool packed_now = false;
  at::Tensor cosine, sine;  ///< on the CPU
  scratch work;
};

struct kv_cache::state {
  std::int64_t slots = 0;
  std::int64_t capacity = 0;
  std::vector<at::Tensor> keys, values;  ///< per layer: [slots, kv_heads, capacity, head_dim]
};

}  // namespace weir

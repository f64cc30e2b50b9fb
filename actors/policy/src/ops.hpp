#pragma once
// The differentiable operations of the causal language model. Each has two forms: `fused`, for fp32 on the CPU, with
// kernels and gradients of our own; and `composite`, of libtorch's operations, for any device and type, which is also
// the reference that the tests hold the fused form against.

#include <cstdint>
#include <utility>
#include <vector>

#include "weir/policy/torch.hpp"

namespace weir::ops {

enum class form { automatic, fused, composite };

/// How N packed tokens divide into sequences, and what attention needs besides.
struct packing {
  std::vector<std::int64_t> offsets;    ///< [B+1]
  std::vector<std::int64_t> positions;  ///< [N], each token's place in its sequence
  at::Tensor cosine, sine;              ///< [>= longest sequence, d / 2], fp32
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  double eps = 1e-6;
};

/// weight [V, H], tokens (int64) [N] -> [N, H].
at::Tensor embed(const at::Tensor& weight, const at::Tensor& tokens, form how = form::automatic);

/// x [N, D], weight [D].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, form how = form::automatic);

/// Norms q and k per head, rotates them, and attends causally within each sequence.
/// qkv [N, (heads + 2 kv_heads) d] -> [N, heads d].
at::Tensor attention(const at::Tensor& qkv, const at::Tensor& q_norm, const at::Tensor& k_norm,
                     const packing& how_packed, form how = form::automatic);

/// gate_up [N, 2 I] -> silu(gate) * up, [N, I].
at::Tensor swiglu(const at::Tensor& gate_up, form how = form::automatic);

/// logits [R, V], targets (int64) [R] -> log-probability of the targets and entropy at `temperature`, each [R].
std::pair<at::Tensor, at::Tensor> log_prob(const at::Tensor& logits, const at::Tensor& targets, double temperature,
                                           bool entropy_gradient, form how = form::automatic);

/// cos and sin of position * theta^(-2 i / d), as transformers computes them in fp32: each [positions, d / 2].
std::pair<at::Tensor, at::Tensor> rope_tables(std::int64_t positions, std::int64_t head_dim, double theta);

}  // namespace weir::ops

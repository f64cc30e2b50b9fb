#pragma once
// Fused CPU kernels of the causal language model, on contiguous fp32. Plain loops that the compiler vectorises; each
// function exists once per instruction set and is chosen at run time. Rows are tokens, [begin, end) is the caller's
// share of them. A row's result never depends on which other rows are computed.

#include <cstdint>

namespace weir::kernels {

/// Rotary tables: [positions, head_dim / 2] each.
struct rope_table {
  const float* cosine;
  const float* sine;
};

/// Shapes of attention: q [N, heads, d], k and v [N, kv_heads, d] where N counts tokens.
struct heads_shape {
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t d;
};

/// What one AdamW step multiplies by, worked out by the caller.
struct adamw_factors {
  float decay;  ///< 1 - lr * weight decay
  float beta1, beta2;
  float rest1, rest2;     ///< 1 - beta, rounded once: 1 - float(0.999) is off by 1e-5
  float rate;             ///< lr / (1 - beta1^t)
  float root_correction;  ///< 1 / sqrt(1 - beta2^t)
  float eps;
};

/// Outputs of a packed panel; see table::pack.
inline constexpr std::int64_t panel_width = 16;
/// What the rows of table::product are a multiple of.
inline constexpr std::int64_t row_multiple = 8;

struct table {
  const char* name;

  /// y = x * inv * w with inv = 1 / sqrt(mean(x^2) + eps) (Zhang, Sennrich 2019). x, y [N, D]; inv [N], may be null.
  void (*rms_norm)(const float* x, const float* w, float* y, float* inv, std::int64_t begin, std::int64_t end,
                   std::int64_t dim, float eps);
  /// dx is written, dw [D] added to.
  void (*rms_norm_backward)(const float* x, const float* w, const float* inv, const float* dy, float* dx, float* dw,
                            std::int64_t begin, std::int64_t end, std::int64_t dim);

  /// Norms each head of q and k, rotates it to the token's position (halves paired, as HF does). qkv
  /// [N, (heads + 2 kv_heads) d]; q, k as heads_shape says; inv [N, heads + kv_heads], may be null.
  void (*norm_rope)(const float* qkv, const float* qw, const float* kw, rope_table rope, const std::int64_t* positions,
                    float* q, float* k, float* inv, std::int64_t begin, std::int64_t end, heads_shape shape, float eps);
  /// From dq, dk to the q and k columns of dqkv, which are written; dqw and dkw [d] are added to.
  void (*norm_rope_backward)(const float* qkv, const float* qw, const float* kw, rope_table rope,
                             const std::int64_t* positions, const float* inv, const float* dq, const float* dk,
                             float* dqkv, float* dqw, float* dkw, std::int64_t begin, std::int64_t end,
                             heads_shape shape);

  /// Causal attention within one sequence of `length` tokens; pointers at its first token. v has `v_stride` floats from
  /// token to token. out [length, heads, d]; lse [length, heads] is the log of each softmax's denominator. scratch:
  /// `length` floats.
  void (*attention)(const float* q, const float* k, const float* v, std::int64_t v_stride, float* out, float* lse,
                    std::int64_t length, heads_shape shape, float* scratch);
  /// dq is written, dk added to (zero it first), dv (same stride as v) added to.
  void (*attention_backward)(const float* q, const float* k, const float* v, std::int64_t v_stride, const float* out,
                             const float* lse, const float* dout, float* dq, float* dk, float* dv, std::int64_t length,
                             heads_shape shape);

  /// One token's attention to `keys` cached ones: k, v [kv_heads, capacity, d] at the sequence's slot. out [heads, d].
  /// scratch: `keys` floats.
  void (*attention_cached)(const float* q, const float* k, const float* v, std::int64_t capacity, std::int64_t keys,
                           float* out, heads_shape shape, float* scratch);

  /// out [N, I] = silu(gate) * up of gate_up [N, 2 I] (Shazeer 2020).
  void (*swiglu)(const float* gate_up, float* out, std::int64_t begin, std::int64_t end, std::int64_t dim);
  void (*swiglu_backward)(const float* gate_up, const float* dout, float* dgate_up, std::int64_t begin,
                          std::int64_t end, std::int64_t dim);

  /// Of softmax(logits * inverse_temperature): the log-probability of `targets`, the entropy, and the log-denominator.
  void (*log_prob)(const float* logits, const std::int64_t* targets, float inverse_temperature, float* logp,
                   float* entropy, float* lse, std::int64_t begin, std::int64_t end, std::int64_t vocab);
  /// dlogits is written. dentropy may be null.
  void (*log_prob_backward)(const float* logits, const std::int64_t* targets, float inverse_temperature,
                            const float* lse, const float* entropy, const float* dlogp, const float* dentropy,
                            float* dlogits, std::int64_t begin, std::int64_t end, std::int64_t vocab);

  /// Updates weights w and moments m, v in place from gradient g.
  void (*adamw)(float* w, const float* g, float* m, float* v, std::int64_t begin, std::int64_t end, adamw_factors f);

  /// Rewrites w [N, K] for `product`: panels of `panel_width` outputs, each [K, panel_width], the last filled with
  /// zeros.
  void (*pack)(const float* w, float* packed, std::int64_t outputs, std::int64_t inputs);
  /// y [rows, N] = x [rows, K] * w^T, added to y if `add`, for the panels [begin, end) of packed w. Rows are a multiple
  /// of `row_multiple`. Every output is one sum over K in ascending order: a row's bits don't depend on the others, nor
  /// on their number, which no BLAS promises.
  void (*product)(const float* x, const float* packed, float* y, std::int64_t rows, std::int64_t outputs,
                  std::int64_t inputs, std::int64_t begin, std::int64_t end, bool add);

  /// exp, elementwise: what the others use. For its test.
  void (*exponential)(const float* x, float* y, std::int64_t n);
};

/// The best set for this processor.
const table& best() noexcept;

/// All sets that this processor can run, the baseline first.
const table* const* available(std::int64_t& count) noexcept;

}  // namespace weir::kernels

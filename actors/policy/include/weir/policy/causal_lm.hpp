#pragma once
// The `causal_lm` policy: the Qwen3 architecture (transformers' modeling_qwen3.py is the reference), its parameters in
// one flat buffer, with what training needs (packed sequences, autograd) and what acting needs (KV cache, batching).

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weir/actors/manifest.hpp"
#include "weir/actors/types.hpp"
#include "weir/transport/result.hpp"

namespace at {
class Tensor;
}

namespace weir {

/// What config.json (and generation_config.json, for `eos`) says. Both spellings of rope_theta and dtype are read.
struct causal_lm_config {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t max_positions = 0;
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tied_embeddings = false;
  dtype type = dtype::f32;  ///< what `save` writes
  std::vector<token> eos;   ///< generation ends on these; may be empty
  bool operator==(const causal_lm_config&) const = default;
};

/// Reads `directory`/config.json. The error names the file and the field.
result<causal_lm_config> read_causal_lm_config(const std::filesystem::path& directory);

/// Writes config.json and generation_config.json, as transformers reads them.
result<void> write_causal_lm_config(const causal_lm_config& config, const std::filesystem::path& directory);

/// Several sequences, one after the other, without padding: N tokens, B sequences.
struct packed_sequences {
  std::vector<token> tokens;          ///< [N]
  std::vector<std::int64_t> offsets;  ///< [B+1], from 0 to N, strictly increasing
};

/// Keys and values of up to `slots` sequences of up to `capacity` tokens each. Owned by one engine; not thread-safe.
class kv_cache {
 public:
  kv_cache(const causal_lm_config& config, std::int64_t slots, std::int64_t capacity,
           const std::string& device = "cpu");
  ~kv_cache();
  kv_cache(kv_cache&&) noexcept;
  kv_cache& operator=(kv_cache&&) noexcept;
  std::int64_t slots() const noexcept;
  std::int64_t capacity() const noexcept;
  std::size_t bytes() const noexcept;

  /// Gives slot `to` the first `tokens` tokens of slot `from`: sequences that begin alike need to be computed once.
  void copy(std::int64_t from, std::int64_t to, std::int64_t tokens);

 private:
  friend class causal_lm;
  struct state;
  std::unique_ptr<state> state_;
};

/// New tokens of one sequence, to be appended to its slot.
struct sequence_chunk {
  std::int64_t slot = 0;
  std::int64_t start = 0;         ///< tokens already in the slot; start + tokens.size() <= capacity
  std::span<const token> tokens;  ///< at least one
};

/// Of each target: defined in weir/policy/evaluation.hpp, with libtorch.
struct lm_evaluation;

/// Whether tensors can be made and computed with on a device, named as libtorch names it ("cpu", "cuda:1"). Error:
/// invalid_config, with libtorch's reason.
result<void> check_device(const std::string& device);

/// A model and its parameters. Movable, not copyable. Not thread-safe: one thread at a time uses an object; two objects
/// are independent. Exceptions of libtorch (out of memory, device faults) leave the member functions that compute.
class causal_lm {
 public:
  /// Reads an HF directory: config.json and model.safetensors, or the shards that model.safetensors.index.json names.
  /// F32, F16 and BF16 are read; parameters are held in fp32. Errors name the file and the tensor.
  static result<causal_lm> load(const std::filesystem::path& directory, const std::string& device = "cpu");

  /// Random parameters: normal(0, initializer_range), norms 1. The same seed gives the same bits.
  static causal_lm random(const causal_lm_config& config, std::uint64_t seed, const std::string& device = "cpu");

  /// A replica whose parameters are read from `flat` (fp32, [layout(config).bytes / 4]), which the caller keeps alive,
  /// and unchanged until `rebind`: what `extend` prepares from it is then prepared once.
  static causal_lm bind(const causal_lm_config& config, const at::Tensor& flat);

  causal_lm(causal_lm&&) noexcept;
  causal_lm& operator=(causal_lm&&) noexcept;
  ~causal_lm();

  const causal_lm_config& config() const noexcept;

  /// Where each HF tensor lies in the flat buffer; fp32. A tied head has no entry of its own.
  const manifest& layout() const noexcept;
  static manifest layout(const causal_lm_config& config);

  /// All parameters: fp32, one-dimensional, contiguous. Writing to it changes the model.
  const at::Tensor& flat() const noexcept;

  /// Copies the parameters, from whichever device, to `host`, rounded to `type` (to nearest, ties to even). `host` has
  /// layout().bytes bytes for fp32 and half as many for the others; offsets are halved as well.
  void copy_to(std::span<std::byte> host, dtype type = dtype::f32) const;

  /// The gradient of `flat`, same shape; allocated and zeroed at the first call. `evaluate(...)`'s backward adds to it.
  const at::Tensor& flat_grad();

  /// Takes other parameters by pointer. `flat` as for `bind`.
  void rebind(const at::Tensor& flat);

  /// Does now what the next `extend` would have to do first for the parameters of `bind` or `rebind`.
  void prepare();

  /// Writes an HF directory: config.json, generation_config.json, model.safetensors (in `config().type`); other files
  /// there, such as a tokenizer, are left alone. Each file is written beside, synced and renamed.
  result<void> save(const std::filesystem::path& directory) const;

  /// Logits [N, vocab], fp32, without gradient: for checks.
  at::Tensor logits(const packed_sequences& batch);

  /// For training, differentiable. `targets` holds indices i into batch.tokens, ascending, none the first of its
  /// sequence. Returns for each the log-probability of tokens[i] given what stands before it, at `temperature` (> 0),
  /// and the entropy (nats) of that distribution: both [targets.size()], fp32. The entropy carries a gradient only if
  /// asked for.
  lm_evaluation evaluate(const packed_sequences& batch, std::span<const std::int64_t> targets, float temperature,
                         bool entropy_gradient = false);

  /// Appends chunks to the cache (prefill and decode alike, several sequences of different lengths in one call) and
  /// returns the logits that follow each chunk's last token: [chunks, vocab], fp32, valid until the next call. Slots
  /// must be distinct. On the CPU a row does not depend on which other chunks are in the call, bit for bit.
  at::Tensor extend(kv_cache& cache, std::span<const sequence_chunk> chunks);

 private:
  struct state;
  explicit causal_lm(std::unique_ptr<state> s);
  static causal_lm own(const causal_lm_config& config, const at::Tensor& flat);
  std::unique_ptr<state> state_;
};

}  // namespace weir

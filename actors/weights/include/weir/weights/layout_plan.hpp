#pragma once
// From the layout in which weights are published to the one that an engine computes in: fused projections, tied heads,
// the row and column shards of a tensor-parallel engine, another element type, some of the tensors only. Worked out
// once, as a list of copies; applied to every version. Bytes: no actor, no tensor library.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weir/actors/manifest.hpp"
#include "weir/transport/result.hpp"

namespace weir {

/// Part of a published tensor: all of it, or from `begin` to before `end` along one dimension.
struct tensor_slice {
  std::string tensor;
  std::size_t dimension = 0;
  std::int64_t begin = 0;
  std::int64_t end = -1;  ///< -1: to its end
};

/// One tensor of an engine: slices laid one after the other along a dimension.
struct tensor_recipe {
  std::string name;
  std::vector<tensor_slice> slices;
  std::size_t dimension = 0;
};

/// How an engine divides a model of the Qwen3, Llama or similar architecture, by the names of its HF checkpoint.
struct shard_settings {
  std::int64_t rank = 0;  ///< from 0
  std::int64_t ranks = 1;
  std::int64_t head_dim = 0;
  /// self_attn.qkv_proj instead of q_proj, k_proj, v_proj, and mlp.gate_up_proj instead of gate_proj, up_proj, as
  /// inference engines have them.
  bool fuse = true;
  /// A head that is tied to the embedding becomes a tensor of its own.
  bool untie = true;
};

/// The recipes of one rank (Shoeybi et al. 2019, arXiv:1909.08053): q, k, v, gate and up by rows (q by whole heads; key
/// and value heads are shared by neighbours where there are fewer of them than ranks), o and down by columns, embedding
/// and head by rows of the vocabulary, all else whole.
/// Errors: invalid_argument (a rank out of range), invalid_data (names the tensor that cannot be divided so).
result<std::vector<tensor_recipe>> shard_recipes(const manifest& published, const shard_settings& settings);

/// The tensors of `whole` whose names match one of `patterns`, packed: what is published when only they change. A `*`
/// in a pattern stands for any characters. Error: invalid_config, names a pattern that nothing matches.
result<manifest> select_tensors(const manifest& whole, std::span<const std::string> patterns);

/// The same tensors in elements of `type`, each at its place: offsets and sizes scale.
manifest retyped(const manifest& m, dtype type);

/// What a plan between layouts of equal names may leave out.
enum class layout_fit : std::uint8_t {
  exact,    ///< nothing
  partial,  ///< wanted tensors that are not published stay as they are in the engine's memory
  subset,   ///< published tensors that are not wanted are passed over
};

class layout_plan {
 public:
  /// Engines' tensors of `type`, one after the other, each at a multiple of `alignment` bytes.
  /// Error: invalid_data: names the recipe or tensor that does not fit.
  static result<layout_plan> make(const manifest& published, std::span<const tensor_recipe> recipes, dtype type,
                                  std::uint64_t alignment = 64);

  /// To a layout with the same names and shapes. Error: invalid_data: names the tensor that one of them lacks, or that
  /// has another shape.
  static result<layout_plan> make(const manifest& published, const manifest& wanted, layout_fit fit);

  const manifest& target() const noexcept { return target_; }
  std::uint64_t published_bytes() const noexcept { return published_; }

  /// The published bytes are the engine's: they can be read where they lie.
  bool in_place() const noexcept { return in_place_; }

  /// All elements have the engine's places and one type: the buffer as a whole can be converted, wherever it is.
  std::optional<dtype> as_a_whole() const noexcept { return as_a_whole_; }

  /// Some of the engine's memory is written by no version: it has to hold a base.
  bool leaves_some() const noexcept { return leaves_some_; }

  /// Copies, and converts where types differ: to a narrower type by rounding to the nearest, ties to even. `published`
  /// and `engine` have the sizes of their manifests and do not overlap. Allocates nothing.
  /// Throws std::invalid_argument for other sizes.
  void apply(std::span<const std::byte> published, std::span<std::byte> engine) const;

 private:
  /// `rows` runs of `elements`, each `*_step` bytes after the one before.
  struct copy {
    std::uint64_t from = 0, to = 0, elements = 0, rows = 1, from_step = 0, to_step = 0;
    dtype from_type = dtype::f32, to_type = dtype::f32;
  };
  void add(const tensor_spec& source, const tensor_slice& slice, const tensor_spec& target, std::size_t dimension,
           std::int64_t at);
  void finish(const manifest& published);

  manifest target_;
  std::uint64_t published_ = 0;
  bool in_place_ = false, leaves_some_ = false;
  std::optional<dtype> as_a_whole_;
  std::vector<copy> copies_;
};

}  // namespace weir

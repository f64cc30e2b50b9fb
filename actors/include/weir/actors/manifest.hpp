#pragma once
// How the tensors of a model lie in one flat buffer: what a snapshot is read by, on any node, without libtorch.

#include <cstdint>
#include <string>
#include <vector>

namespace weir {

/// Element types by their safetensors names.
enum class dtype : std::uint8_t { f32, f16, bf16 };

inline std::size_t size_of(dtype type) noexcept { return type == dtype::f32 ? 4 : 2; }

/// One tensor: row-major, contiguous, `offset` bytes from the start of the buffer.
struct tensor_spec {
  std::string name;  ///< as the HF checkpoint names it, such as "model.layers.0.mlp.up_proj.weight"
  dtype type = dtype::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const tensor_spec&) const = default;
};

/// All tensors of a model, by ascending offset, and the size of the buffer, padding included.
struct manifest {
  std::vector<tensor_spec> tensors;
  std::uint64_t bytes = 0;
  bool operator==(const manifest&) const = default;
};

}  // namespace weir

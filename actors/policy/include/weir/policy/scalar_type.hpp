#pragma once
// Element types in libtorch's words.

#include "weir/actors/manifest.hpp"
#include "weir/policy/torch.hpp"

namespace weir {

inline at::ScalarType scalar_type(dtype type) {
  return type == dtype::f32 ? at::kFloat : type == dtype::f16 ? at::kHalf : at::kBFloat16;
}

}  // namespace weir

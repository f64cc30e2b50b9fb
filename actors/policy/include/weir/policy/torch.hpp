#pragma once
// The part of libtorch that Weir uses: tensors and autograd functions, no torch::nn. Include this and nothing of torch/
// directly: it is precompiled for every target that may see libtorch (weir_library(... TORCH)).

#if defined(__GNUC__)
#pragma GCC system_header
#endif
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/types.h>

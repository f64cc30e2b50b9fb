#pragma once
#include <cstdint>
#include <span>
#include <utility>

#include "weir/policy/torch.hpp"

namespace weir {

struct adamw_settings {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

/// AdamW with decoupled weight decay and bias correction (Loshchilov, Hutter 2019; the order of operations is that of
/// torch.optim.AdamW), over one flat fp32 buffer. Every parameter decays.
class adamw {
 public:
  explicit adamw(const at::Tensor& flat) : first_(at::zeros_like(flat)), second_(at::zeros_like(flat)) {}

  /// Elements, from the first to before the second.
  using range = std::pair<std::int64_t, std::int64_t>;

  /// Changes `flat` by one step along `grad`, both fp32, contiguous, of the size given at construction; of it,
  /// `ranges`.
  void step(const at::Tensor& flat, const at::Tensor& grad, const adamw_settings& settings,
            std::span<const range> ranges);
  void step(const at::Tensor& flat, const at::Tensor& grad, const adamw_settings& settings) {
    const range all{0, flat.numel()};
    step(flat, grad, settings, {&all, 1});
  }

  const at::Tensor& first_moment() const noexcept { return first_; }
  const at::Tensor& second_moment() const noexcept { return second_; }
  std::int64_t steps() const noexcept { return steps_; }
  /// Takes the state up again; moments are copied.
  void restore(const at::Tensor& first, const at::Tensor& second, std::int64_t steps);

 private:
  at::Tensor first_, second_;
  std::int64_t steps_ = 0;
};

}  // namespace weir

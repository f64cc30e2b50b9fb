#include "weir/policy/adamw.hpp"

#include <cmath>

#include "kernels.hpp"

namespace weir {

void adamw::step(const at::Tensor& flat, const at::Tensor& grad, const adamw_settings& s,
                 std::span<const range> ranges) {
  at::NoGradGuard none;
  ++steps_;
  const double correction1 = 1 - std::pow(s.beta1, static_cast<double>(steps_));
  const double correction2 = 1 - std::pow(s.beta2, static_cast<double>(steps_));
  if (flat.device().is_cpu()) {
    auto narrow = [](double x) { return static_cast<float>(x); };
    const kernels::adamw_factors f{narrow(1 - s.lr * s.weight_decay),
                                   narrow(s.beta1),
                                   narrow(s.beta2),
                                   narrow(1 - s.beta1),
                                   narrow(1 - s.beta2),
                                   narrow(s.lr / correction1),
                                   narrow(1 / std::sqrt(correction2)),
                                   narrow(s.eps)};
    for (const auto& [from, to] : ranges)
      at::parallel_for(from, to, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
        kernels::best().adamw(flat.data_ptr<float>(), grad.data_ptr<float>(), first_.data_ptr<float>(),
                              second_.data_ptr<float>(), begin, end, f);
      });
    return;
  }
  for (const auto& [from, to] : ranges) {
    const auto part = [from = from, to = to](const at::Tensor& t) { return t.detach().narrow(0, from, to - from); };
    auto weights = part(flat), first = part(first_), second = part(second_);
    const auto gradient = part(grad);
    weights.mul_(1 - s.lr * s.weight_decay);
    first.mul_(s.beta1).add_(gradient, 1 - s.beta1);
    second.mul_(s.beta2).addcmul_(gradient, gradient, 1 - s.beta2);
    const auto denominator = second.sqrt().div_(std::sqrt(correction2)).add_(s.eps);
    weights.addcdiv_(first, denominator, -s.lr / correction1);
  }
}

void adamw::restore(const at::Tensor& first, const at::Tensor& second, std::int64_t steps) {
  at::NoGradGuard none;
  first_.copy_(first);
  second_.copy_(second);
  steps_ = steps;
}

}  // namespace weir

#include "weir/policy/adamw.hpp"

#include <cmath>

#include "kernels.hpp"

namespace weir {

void adamw::step(const at::Tensor& flat, const at::Tensor& grad, const adamw_settings& s) {
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
    at::parallel_for(0, flat.numel(), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      kernels::best().adamw(flat.data_ptr<float>(), grad.data_ptr<float>(), first_.data_ptr<float>(),
                            second_.data_ptr<float>(), begin, end, f);
    });
    return;
  }
  flat.detach().mul_(1 - s.lr * s.weight_decay);
  first_.mul_(s.beta1).add_(grad, 1 - s.beta1);
  second_.mul_(s.beta2).addcmul_(grad, grad, 1 - s.beta2);
  const auto denominator = second_.sqrt().div_(std::sqrt(correction2)).add_(s.eps);
  flat.detach().addcdiv_(first_, denominator, -s.lr / correction1);
}

void adamw::restore(const at::Tensor& first, const at::Tensor& second, std::int64_t steps) {
  at::NoGradGuard none;
  first_.copy_(first);
  second_.copy_(second);
  steps_ = steps;
}

}  // namespace weir

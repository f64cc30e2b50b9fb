// AdamW: held against the update rule written out in double precision.
#include "weir/policy/adamw.hpp"

#include <cmath>

#include "catch.hpp"
#include "policy_support.hpp"

using namespace weir::testing;

namespace {

/// One parameter's moments and value, by the paper's algorithm 2.
struct scalar_adamw {
  double w, m = 0, v = 0;
  void step(double g, int t, const weir::adamw_settings& s) {
    w -= s.lr * s.weight_decay * w;
    m = s.beta1 * m + (1 - s.beta1) * g;
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(s.beta1, t)), v_hat = v / (1 - std::pow(s.beta2, t));
    w -= s.lr * m_hat / (std::sqrt(v_hat) + s.eps);
  }
};

}  // namespace

TEST_CASE("five steps equal the rule written out") {
  // The second moment of beta2 = 0.999 weighs a gradient by 0.001, which is not 1 - float(0.999).
  const auto s =
      GENERATE(weir::adamw_settings{1e-2, 0.9, 0.95, 1e-8, 0.01}, weir::adamw_settings{3e-3, 0.8, 0.999, 1e-3, 0.0},
               weir::adamw_settings{1e-1, 0.0, 0.5, 1e-6, 0.5});
  constexpr std::int64_t n = 37;
  auto flat = gaussian({n}, 1);
  std::vector<scalar_adamw> reference;
  for (std::int64_t i = 0; i < n; ++i) reference.push_back({flat[i].item<double>()});
  weir::adamw optimizer(flat);
  for (int t = 1; t <= 5; ++t) {
    auto grad = gaussian({n}, 10 + static_cast<std::uint64_t>(t));
    grad[3] = 0.0F;  // a parameter without gradient still decays
    optimizer.step(flat, grad, s);
    for (std::int64_t i = 0; i < n; ++i) {
      auto& r = reference[static_cast<std::size_t>(i)];
      r.step(grad[i].item<double>(), t, s);
      CHECK(flat[i].item<double>() == Approx(r.w).epsilon(2e-6).margin(1e-7));
      CHECK(optimizer.first_moment()[i].item<double>() == Approx(r.m).epsilon(2e-6).margin(1e-7));
      CHECK(optimizer.second_moment()[i].item<double>() == Approx(r.v).epsilon(2e-6).margin(1e-9));
    }
  }
  CHECK(optimizer.steps() == 5);
}

TEST_CASE("a first step moves each parameter by the learning rate, against its gradient's sign") {
  auto flat = at::zeros({4});
  weir::adamw optimizer(flat);
  optimizer.step(flat, at::tensor({5.0F, -5.0F, 1e-3F, 0.0F}), {0.1, 0.9, 0.95, 1e-12, 0.01});
  CHECK(flat[0].item<float>() == Approx(-0.1F));
  CHECK(flat[1].item<float>() == Approx(0.1F));
  CHECK(flat[2].item<float>() == Approx(-0.1F));
  CHECK(flat[3].item<float>() == 0.0F);
}

TEST_CASE("a restored optimizer goes on bit for bit") {
  const weir::adamw_settings s{1e-2, 0.9, 0.95, 1e-8, 0.01};
  auto flat = gaussian({100}, 1);
  weir::adamw one(flat);
  for (std::uint64_t t = 0; t < 3; ++t) one.step(flat, gaussian({100}, 10 + t), s);
  auto copy = flat.clone();
  weir::adamw other(copy);
  other.restore(one.first_moment(), one.second_moment(), one.steps());
  one.step(flat, gaussian({100}, 20), s);
  CHECK_FALSE(same_bits(flat, copy));  // moments are copied: the other one did not follow
  other.step(copy, gaussian({100}, 20), s);
  CHECK(same_bits(flat, copy));
  CHECK(other.steps() == 4);
}

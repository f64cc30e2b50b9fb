// Every fused operation against its composite form in double precision: values and gradients.
#include "ops.hpp"

#include <functional>

#include "catch.hpp"
#include "policy_support.hpp"

using namespace weir::testing;
using weir::ops::form;

namespace {

using operation = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&, form)>;

/// Outputs and input gradients of both forms, for random gradients of the outputs.
void compare(const std::vector<at::Tensor>& inputs, const operation& compute, double tolerance = 3e-6) {
  std::vector<std::vector<at::Tensor>> outputs, gradients;
  for (auto how : {form::fused, form::composite}) {
    std::vector<at::Tensor> leaves;
    for (const auto& x : inputs)
      leaves.push_back(x.to(how == form::fused ? at::kFloat : at::kDouble).detach().clone().requires_grad_(true));
    outputs.push_back(compute(leaves, how));
    at::Tensor sum = at::zeros({}, leaves[0].options().requires_grad(false));
    for (std::size_t i = 0; i < outputs.back().size(); ++i) {
      const auto& y = outputs.back()[i];
      if (y.requires_grad()) sum = sum + (y * gaussian(y.sizes().vec(), 100 + i).to(y.scalar_type())).sum();
    }
    sum.backward();
    gradients.emplace_back();
    for (const auto& leaf : leaves) gradients.back().push_back(leaf.grad());
  }
  REQUIRE(outputs[0].size() == outputs[1].size());
  for (std::size_t i = 0; i < outputs[0].size(); ++i) {
    INFO("output " << i);
    REQUIRE(outputs[0][i].sizes() == outputs[1][i].sizes());
    CHECK(relative_difference(outputs[0][i], outputs[1][i]) < tolerance);
    CHECK(outputs[0][i].requires_grad() == outputs[1][i].requires_grad());
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    INFO("gradient of input " << i);
    // Against 1 at least: the norms of a sequence of one token have no gradient.
    const auto scale = std::max(1.0, gradients[1][i].norm().item<double>());
    CHECK((gradients[0][i] - gradients[1][i]).norm().item<double>() / scale < tolerance);
  }
}

weir::ops::packing packing_of(std::vector<std::int64_t> lengths, std::int64_t heads, std::int64_t kv_heads,
                              std::int64_t d) {
  weir::ops::packing p;
  p.offsets.push_back(0);
  for (auto n : lengths) {
    for (std::int64_t i = 0; i < n; ++i) p.positions.push_back(i);
    p.offsets.push_back(p.offsets.back() + n);
  }
  std::tie(p.cosine, p.sine) = weir::ops::rope_tables(64, d, 10000);
  p.heads = heads;
  p.kv_heads = kv_heads;
  return p;
}

}  // namespace

TEST_CASE("embedding adds the gradients of a token that occurs more than once") {
  const auto tokens = at::tensor({3, 0, 3, 3, 9}, at::kLong);
  compare({gaussian({10, 7}, 1)},
          [&](const auto& in, form how) { return std::vector<at::Tensor>{weir::ops::embed(in[0], tokens, how)}; });
}

TEST_CASE("RMS norm, fused and composite") {
  const auto rows = GENERATE(as<std::int64_t>{}, 1, 5, 600);  // the last is shared by threads, where there are several
  compare({gaussian({rows, 33}, 1) * 3, gaussian({33}, 2)}, [](const auto& in, form how) {
    return std::vector<at::Tensor>{weir::ops::rms_norm(in[0], in[1], 1e-6, how)};
  });
}

TEST_CASE("a row of zeros survives the norm") {
  const auto x = at::zeros({2, 8}).requires_grad_(true);
  const auto y = weir::ops::rms_norm(x, at::ones({8}), 1e-6, form::fused);
  y.sum().backward();
  CHECK(largest_difference(y, at::zeros({2, 8})) == 0);
  CHECK(x.grad().isfinite().all().item<bool>());
}

TEST_CASE("attention, fused and composite, over sequences of different lengths") {
  const auto d = GENERATE(as<std::int64_t>{}, 10, 16);
  const auto lengths = GENERATE(std::vector<std::int64_t>{1}, std::vector<std::int64_t>{9},
                                std::vector<std::int64_t>{4, 1, 13, 2}, std::vector<std::int64_t>(40, 3));
  std::int64_t rows = 0;
  for (auto n : lengths) rows += n;
  const auto p = packing_of(lengths, 6, 2, d);
  compare({gaussian({rows, 10 * d}, 1), gaussian({d}, 2), gaussian({d}, 3)}, [&](const auto& in, form how) {
    return std::vector<at::Tensor>{weir::ops::attention(in[0], in[1], in[2], p, how)};
  });
}

TEST_CASE("a token attends to nothing after it and to no other sequence") {
  const auto p = packing_of({5, 4}, 2, 1, 16);
  auto qkv = gaussian({9, 64}, 1);
  const auto w = gaussian({16}, 2);
  const auto before = weir::ops::attention(qkv, w, w, p, form::fused);
  qkv.narrow(0, 3, 2).mul_(-2.0F);  // the first sequence's last two tokens
  const auto after = weir::ops::attention(qkv, w, w, p, form::fused);
  CHECK(same_bits(before.narrow(0, 0, 3), after.narrow(0, 0, 3)));
  CHECK(same_bits(before.narrow(0, 5, 4), after.narrow(0, 5, 4)));
  CHECK_FALSE(same_bits(before.narrow(0, 3, 2), after.narrow(0, 3, 2)));
}

TEST_CASE("SwiGLU, fused and composite") {
  compare({gaussian({6, 26}, 1) * 4},
          [](const auto& in, form how) { return std::vector<at::Tensor>{weir::ops::swiglu(in[0], how)}; });
}

TEST_CASE("log-probability and entropy, fused and composite, with and without the entropy's gradient") {
  const auto with_entropy = GENERATE(false, true);
  const auto temperature = GENERATE(0.5, 1.0, 2.5);
  const auto targets = at::tensor({0, 30, 7, 7}, at::kLong);
  compare({gaussian({4, 31}, 1) * 3}, [&](const auto& in, form how) {
    auto [logp, entropy] = weir::ops::log_prob(in[0], targets, temperature, with_entropy, how);
    return std::vector<at::Tensor>{logp, entropy};
  });
}

TEST_CASE("large logits neither overflow nor lose the certain token") {
  const auto z = at::tensor({1e4F, -1e4F, 0.0F, 1e4F}).view({1, 4});
  const auto [logp, entropy] = weir::ops::log_prob(z, at::tensor({0}, at::kLong), 1.0, false, form::fused);
  CHECK(logp.item<float>() == Approx(-std::log(2.0F)));
  CHECK(entropy.item<float>() == Approx(std::log(2.0F)));
}

TEST_CASE("the automatic form is fused for fp32 and composite otherwise") {
  const auto x = gaussian({3, 8}, 1), w = gaussian({8}, 2);
  CHECK(same_bits(weir::ops::rms_norm(x, w, 1e-6), weir::ops::rms_norm(x, w, 1e-6, form::fused)));
  const auto wide = weir::ops::rms_norm(x.to(at::kDouble), w.to(at::kDouble), 1e-6);
  CHECK(wide.scalar_type() == at::kDouble);
}

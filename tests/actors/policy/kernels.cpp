// The instruction sets against each other: what one processor computes, another one must.
#include "kernels.hpp"

#include <cmath>
#include <functional>
#include <limits>

#include "catch.hpp"
#include "ops.hpp"
#include "policy_support.hpp"

using namespace weir::testing;
using weir::kernels::table;

namespace {

std::vector<const table*> sets() {
  std::int64_t count = 0;
  const auto* const* all = weir::kernels::available(count);
  return {all, all + count};
}

float* data(const at::Tensor& t) { return t.data_ptr<float>(); }

/// Runs `compute` on every set and holds the tensors it returns against the baseline's.
void compare(const std::function<std::vector<at::Tensor>(const table&)>& compute) {
  const auto expected = compute(*sets()[0]);
  for (const auto* set : sets()) {
    INFO(set->name);
    const auto found = compute(*set);
    for (std::size_t i = 0; i < found.size(); ++i) {
      INFO("output " << i);
      CHECK(relative_difference(found[i], expected[i]) < 2e-6);
    }
  }
}

}  // namespace

TEST_CASE("the baseline is there, and the best set is one of those available") {
  REQUIRE_FALSE(sets().empty());
  CHECK(std::string(sets()[0]->name) == "baseline");
  CHECK(&weir::kernels::best() == sets().back());
}

TEST_CASE("exp is right to 2e-7 in its range and keeps NaN") {
  for (const auto* set : sets()) {
    INFO(set->name);
    std::vector<float> x, y;
    for (int i = 0; i < 175'000; ++i) x.push_back(-87.0F + static_cast<float>(i) * 1e-3F);
    y.resize(x.size());
    set->exponential(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      worst = std::max(worst, std::abs(y[i] / std::exp(static_cast<double>(x[i])) - 1));
    CHECK(worst < 2e-7);
    const float edge[4]{0.0F, std::numeric_limits<float>::quiet_NaN(), -1e30F, 1e30F};
    float out[4];
    set->exponential(edge, out, 4);
    CHECK(out[0] == 1.0F);
    CHECK(std::isnan(out[1]));
    CHECK((out[2] >= 0.0F && out[2] < 1e-37F));
    CHECK(out[3] > 1e38F);
  }
}

TEST_CASE("all sets norm, gate and score alike") {
  const auto x = gaussian({5, 44}, 1), w = gaussian({22}, 2), g = gaussian({5, 22}, 3), a = gaussian({5, 22}, 4);
  const std::vector<std::int64_t> targets{0, 21, 3, 3, 7};
  compare([&](const table& k) {
    auto y = at::zeros({5, 22}), inv = at::zeros({5}), da = at::zeros({5, 22}), dw = at::zeros({22});
    k.rms_norm(data(a), data(w), data(y), data(inv), 0, 5, 22, 1e-6F);
    k.rms_norm_backward(data(a), data(w), data(inv), data(g), data(da), data(dw), 0, 5, 22);
    auto gated = at::zeros({5, 22}), dx = at::zeros({5, 44});
    k.swiglu(data(x), data(gated), 0, 5, 22);
    k.swiglu_backward(data(x), data(g), data(dx), 0, 5, 22);
    auto logp = at::zeros({5}), entropy = at::zeros({5}), lse = at::zeros({5}), dz = at::zeros({5, 22});
    k.log_prob(data(a), targets.data(), 0.7F, data(logp), data(entropy), data(lse), 0, 5, 22);
    k.log_prob_backward(data(a), targets.data(), 0.7F, data(lse), data(entropy), data(g), data(w), data(dz), 0, 5, 22);
    return std::vector<at::Tensor>{y, inv, da, dw, gated, dx, logp, entropy, lse, dz};
  });
}

TEST_CASE("all sets attend alike, with the head sizes that are unrolled and one that is not") {
  const auto d = GENERATE(as<std::int64_t>{}, 10, 16, 24, 32, 64, 128);
  const weir::kernels::heads_shape shape{4, 2, d};
  const std::int64_t n = 7, width = 8 * d;
  const auto qkv = gaussian({n, width}, 1), qw = gaussian({d}, 2), kw = gaussian({d}, 3), g = gaussian({n, 4 * d}, 4);
  const auto [cosine, sine] = weir::ops::rope_tables(n, d, 10000);
  const weir::kernels::rope_table rope{data(cosine), data(sine)};
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < n; ++i) positions.push_back(i);
  compare([&](const table& kernel) {
    auto q = at::zeros({n, 4 * d}), k = at::zeros({n, 2 * d}), inv = at::zeros({n, 6}), o = at::zeros({n, 4 * d}),
         lse = at::zeros({n, 4});
    auto dq = at::zeros_like(q), dk = at::zeros_like(k), dqkv = at::zeros_like(qkv), dqw = at::zeros({d}),
         dkw = at::zeros({d});
    std::vector<float> scratch(static_cast<std::size_t>(n));
    kernel.norm_rope(data(qkv), data(qw), data(kw), rope, positions.data(), data(q), data(k), data(inv), 0, n, shape,
                     1e-6F);
    const float* v = data(qkv) + 6 * d;
    kernel.attention(data(q), data(k), v, width, data(o), data(lse), n, shape, scratch.data());
    kernel.attention_backward(data(q), data(k), v, width, data(o), data(lse), data(g), data(dq), data(dk),
                              data(dqkv) + 6 * d, n, shape);
    kernel.norm_rope_backward(data(qkv), data(qw), data(kw), rope, positions.data(), data(inv), data(dq), data(dk),
                              data(dqkv), data(dqw), data(dkw), 0, n, shape);
    // The last token once more, from a cache that has room for more.
    const auto keys = at::zeros({2, n + 3, d}), values = at::zeros({2, n + 3, d});
    keys.narrow(1, 0, n).copy_(k.view({n, 2, d}).transpose(0, 1));
    values.narrow(1, 0, n).copy_(qkv.narrow(1, 6 * d, 2 * d).view({n, 2, d}).transpose(0, 1));
    auto last = at::zeros({4 * d});
    kernel.attention_cached(data(q) + (n - 1) * 4 * d, data(keys), data(values), n + 3, n, data(last), shape,
                            scratch.data());
    CHECK(largest_difference(last, o[n - 1]) < 1e-6);
    return std::vector<at::Tensor>{q, k, inv, o, lse, dq, dk, dqkv, dqw, dkw, last};
  });
}

TEST_CASE("the packed product is the matrix product, a row's bits in any company") {
  using weir::kernels::panel_width;
  const std::int64_t outputs = GENERATE(as<std::int64_t>{}, 1, 16, 37, 64),
                     inputs = GENERATE(as<std::int64_t>{}, 1, 24, 130);
  const std::int64_t rows = 3 * weir::kernels::row_multiple, panels = (outputs + panel_width - 1) / panel_width;
  const auto x = gaussian({rows, inputs}, 1), w = gaussian({outputs, inputs}, 2), base = gaussian({rows, outputs}, 3);
  const auto expected = at::mm(x.to(at::kDouble), w.to(at::kDouble).t());
  for (const auto* set : sets()) {
    INFO(set->name);
    const auto packed = at::full({panels * panel_width * inputs}, 7.0F);
    set->pack(data(w), data(packed), outputs, inputs);
    auto y = at::full({rows, outputs}, 9.0F);
    set->product(data(x), data(packed), data(y), rows, outputs, inputs, 0, panels, false);
    CHECK(relative_difference(y, expected) < 1e-6);
    auto added = base.clone();
    set->product(data(x), data(packed), data(added), rows, outputs, inputs, 0, panels, true);
    CHECK(relative_difference(added - base, expected) < 1e-5);
    // Panels one by one, and the last rows alone.
    auto apart = at::full({rows, outputs}, 9.0F);
    for (std::int64_t p = 0; p < panels; ++p)
      set->product(data(x), data(packed), data(apart), rows, outputs, inputs, p, p + 1, false);
    CHECK(same_bits(apart, y));
    const auto last = weir::kernels::row_multiple, first = rows - last;
    auto alone = at::full({last, outputs}, 9.0F);
    set->product(data(x) + first * inputs, data(packed), data(alone), last, outputs, inputs, 0, panels, false);
    CHECK(same_bits(alone, y.narrow(0, first, last)));
  }
}

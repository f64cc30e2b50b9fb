// Advantages: by hand, and exactly nothing where there is nothing to learn.
#include "weir/trainer/advantages.hpp"

#include <cmath>
#include <numeric>

#include "catch.hpp"

using weir::advantage_kind;
using weir::group_advantages;

namespace {
constexpr advantage_kind kinds[]{advantage_kind::grpo, advantage_kind::grpo_population, advantage_kind::dr_grpo,
                                 advantage_kind::rloo};
using list = std::vector<double>;
}  // namespace

TEST_CASE("four rewards, by hand") {
  const list rewards{1, 0, 0, 3};  // mean 1, squared deviations 0 + 1 + 1 + 4
  const auto check = [&](advantage_kind kind, double eps, const list& expected) {
    const auto found = group_advantages(rewards, kind, eps);
    REQUIRE(found.size() == 4);
    for (std::size_t i = 0; i < 4; ++i) CHECK(found[i] == Approx(expected[i]));
  };
  const double s = std::sqrt(2.0) + 0.5, p = std::sqrt(1.5) + 0.5;
  check(advantage_kind::grpo, 0.5, {0, -1 / s, -1 / s, 2 / s});
  check(advantage_kind::grpo_population, 0.5, {0, -1 / p, -1 / p, 2 / p});
  check(advantage_kind::dr_grpo, 0.5, {0, -1, -1, 2});
  check(advantage_kind::rloo, 0.5, {0, -4.0 / 3, -4.0 / 3, 8.0 / 3});
}

TEST_CASE("equal rewards give exactly 0, also those whose mean is not exact") {
  for (auto kind : kinds)
    for (double r : {0.0, 1.0, 0.1, -1.0 / 3, 1e300})
      for (std::size_t n : {1, 2, 3, 7, 10}) CHECK(group_advantages(list(n, r), kind, 1e-4) == list(n, 0.0));
}

TEST_CASE("a group of one, and an empty one") {
  for (auto kind : kinds) {
    CHECK(group_advantages(list{5}, kind, 1e-4) == list{0});
    CHECK(group_advantages({}, kind, 1e-4).empty());
  }
}

TEST_CASE("advantages sum to 0 and keep the order of the rewards") {
  const list rewards{0.1, 0.7, 0.2, 0.2, 1.3};
  for (auto kind : kinds) {
    const auto a = group_advantages(rewards, kind, 1e-4);
    CHECK(std::accumulate(a.begin(), a.end(), 0.0) == Approx(0.0).margin(1e-12));
    CHECK(a[0] < a[2]);
    CHECK(a[2] == a[3]);
    CHECK(a[1] < a[4]);
  }
}

TEST_CASE("rewards that hardly differ do not blow up") {
  const auto a = group_advantages(list{1, 1 + 1e-12}, advantage_kind::grpo, 1e-4);
  CHECK(std::abs(a[0]) < 1e-7);
  CHECK(std::abs(a[1]) < 1e-7);
}

// The arithmetic of broadcast plans.
#include "weir/weights/broadcast_plan.hpp"

#include <cmath>

#include "catch.hpp"

using namespace weir;

TEST_CASE("predictions are the formulas'") {
  const link_costs costs{1e8, 1e-3};  // a chunk of 1,000,000 bytes: 11 ms
  CHECK(predict_seconds(broadcast_shape::direct, 100'000'000, 1'000'000, 8, costs) == Approx(8 * 100 * 0.011));
  CHECK(predict_seconds(broadcast_shape::chain, 100'000'000, 1'000'000, 8, costs) == Approx(107 * 0.011));
  CHECK(predict_seconds(broadcast_shape::tree, 100'000'000, 1'000'000, 8, costs) ==
        Approx(2 * 103 * 0.011));  // height 4
  const link_costs slow_hops{1e8, 1e-3, 3};
  CHECK(predict_seconds(broadcast_shape::chain, 100'000'000, 1'000'000, 8, slow_hops) == Approx(121 * 0.011));
  CHECK(best_chunk(broadcast_shape::chain, 2'000'000'000, 8, {1e9, 1e-3, 3}) == Approx(9.76e6).epsilon(0.01));
  CHECK(predict_seconds(broadcast_shape::chain, 0, 1'000'000, 8, costs) == 0);
  // At the best chunk the chain takes (sqrt(S/B) + sqrt((N-1) a))^2: 2.1 and 6.4 % above S/B for 8 and 64 receivers of
  // 16 GB at 12.5 GB/s, a = 20 us.
  const link_costs fast{12.5e9, 20e-6};
  for (std::size_t receivers : {8, 64}) {
    const auto root = std::sqrt(16e9 / 12.5e9) + std::sqrt(static_cast<double>(receivers - 1) * 20e-6);
    CHECK(choose_plan({}, 16'000'000'000, receivers, fast).seconds == Approx(root * root).epsilon(0.001));
  }
}

TEST_CASE("the chain's chunk is the one at which its time is least, within bounds") {
  const link_costs costs{1e9, 1e-3};
  const auto best = best_chunk(broadcast_shape::chain, 2'000'000'000, 21, costs);
  CHECK(best == Approx(10e6).epsilon(0.01));  // sqrt(2e9 * 1e9 * 1e-3 / 20)
  const auto at = [&](std::uint64_t chunk) {
    return predict_seconds(broadcast_shape::chain, 2'000'000'000, chunk, 21, costs);
  };
  CHECK(at(best) < at(best * 3 / 2));
  CHECK(at(best) < at(best * 2 / 3));
  CHECK(best_chunk(broadcast_shape::chain, 1'000, 8, costs) == smallest_chunk);
  CHECK(best_chunk(broadcast_shape::chain, 1ULL << 45, 2, costs) == largest_chunk);
}

TEST_CASE("one receiver is read from directly, few by a chain, very many of a small payload by a tree") {
  const link_costs costs{1e9, 1e-4};
  CHECK(choose_plan({}, 1 << 28, 1, costs).shape == broadcast_shape::direct);
  CHECK(choose_plan({}, 1 << 28, 8, costs).shape == broadcast_shape::chain);
  CHECK(choose_plan({}, 8 << 20, 1000, costs).shape == broadcast_shape::tree);
  CHECK(choose_plan(broadcast_shape::direct, 8 << 20, 1000, costs).shape == broadcast_shape::direct);
}

TEST_CASE("ancestors lead from a receiver to the source's own reader") {
  using list = std::vector<std::size_t>;
  CHECK(ancestors(broadcast_shape::direct, 5) == list{});
  CHECK(ancestors(broadcast_shape::chain, 3) == list{2, 1, 0});
  CHECK(ancestors(broadcast_shape::tree, 12) == list{5, 2, 0});
  CHECK(ancestors(broadcast_shape::tree, 0) == list{});
}

TEST_CASE("plans have names") {
  CHECK(read_shape("chain").value() == broadcast_shape::chain);
  CHECK_FALSE(read_shape("auto").value().has_value());
  CHECK(read_shape("ring").error().message.find("auto, direct, chain, tree") != std::string::npos);
}

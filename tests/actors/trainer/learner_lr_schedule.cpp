// Learning rates, step by step.
#include "catch.hpp"
#include "weir/trainer/lr_schedule.hpp"

using weir::lr_decay;

TEST_CASE("the rate rises linearly, reaching its full value with the last step of the warm-up") {
  const weir::lr_schedule s{1.0, 4, 10, lr_decay::constant};
  CHECK(s.at(0) == Approx(0.25));
  CHECK(s.at(3) == Approx(1.0));
  CHECK(s.at(4) == 1.0);
  CHECK(s.at(1000) == 1.0);
  CHECK(weir::lr_schedule{2.0, 0, 10, lr_decay::constant}.at(0) == 2.0);
}

TEST_CASE("linear and cosine decay reach 0 at the end and stay there") {
  const weir::lr_schedule linear{1.0, 2, 10, lr_decay::linear}, cosine{1.0, 2, 10, lr_decay::cosine};
  CHECK(linear.at(2) == Approx(1.0));
  CHECK(linear.at(6) == Approx(0.5));
  CHECK(cosine.at(2) == Approx(1.0));
  CHECK(cosine.at(4) == Approx(0.5 * (1 + std::sqrt(0.5))));
  CHECK(cosine.at(6) == Approx(0.5));
  for (std::uint64_t done : {10, 11, 1'000'000}) {
    CHECK(linear.at(done) == Approx(0.0).margin(1e-15));
    CHECK(cosine.at(done) == Approx(0.0).margin(1e-15));
  }
}

TEST_CASE("a warm-up longer than the run never divides by 0") {
  const weir::lr_schedule s{1.0, 10, 5, lr_decay::cosine};
  CHECK(s.at(4) == Approx(0.5));
  CHECK(s.at(20) == 1.0);
}

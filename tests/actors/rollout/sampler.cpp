// Drawing tokens: the distribution, its log-probabilities, and the edges of both.
#include "weir/rollout/sampler.hpp"

#include <cmath>
#include <limits>
#include <map>

#include "catch.hpp"

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
const std::vector<float> logits{1.0F, 3.0F, 2.0F, 3.0F, -1.0F};

/// The share of a fine grid of uniforms that each token gets, with its log-probability: the distribution itself.
std::map<weir::token, std::pair<double, float>> distribution(const std::vector<float>& from,
                                                             const weir::sampling_params& params) {
  weir::sampler s;
  std::map<weir::token, std::pair<double, float>> out;
  constexpr int n = 200'000;
  for (int i = 0; i < n; ++i) {
    const auto drawn = s.draw(from, params, (i + 0.5) / n);
    REQUIRE(drawn);
    auto& entry = out[drawn->id];
    entry.first += 1.0 / n;
    entry.second = drawn->logprob;
  }
  return out;
}

void check_consistent(const std::map<weir::token, std::pair<double, float>>& d) {
  for (const auto& [id, entry] : d) CHECK(entry.first == Approx(std::exp(entry.second)).margin(2e-5));
}

weir::sampling_params with(float temperature, float top_p, std::int32_t top_k) {
  weir::sampling_params p;
  p.temperature = temperature;
  p.top_p = top_p;
  p.top_k = top_k;
  return p;
}

double softmax(std::size_t i, double temperature) {
  double sum = 0;
  for (auto l : logits) sum += std::exp(l / temperature);
  return std::exp(logits[i] / temperature) / sum;
}

}  // namespace

TEST_CASE("tokens come with the probability that the log-probability says") {
  for (float temperature : {0.5F, 1.0F, 3.0F}) {
    const auto d = distribution(logits, with(temperature, 1, 0));
    REQUIRE(d.size() == 5);
    check_consistent(d);
    for (std::size_t i = 0; i < 5; ++i)
      CHECK(std::exp(d.at(static_cast<weir::token>(i)).second) == Approx(softmax(i, temperature)).epsilon(1e-5));
  }
}

TEST_CASE("top-k keeps the k likeliest, the smaller id first among equals, renormalised") {
  const auto one = distribution(logits, with(1, 1, 1));
  REQUIRE(one.size() == 1);
  CHECK(one.begin()->first == 1);
  CHECK(one.begin()->second.second == Approx(0).margin(1e-6));
  const auto three = distribution(logits, with(1, 1, 3));
  REQUIRE(three.size() == 3);
  CHECK((three.contains(1) && three.contains(3) && three.contains(2)));
  check_consistent(three);
  CHECK(distribution(logits, with(1, 1, 100)).size() == 5);
}

TEST_CASE("top-p keeps the smallest set that reaches the probability, after temperature and top-k") {
  const double two = softmax(1, 1) + softmax(3, 1);
  CHECK(distribution(logits, with(1, static_cast<float>(two - 1e-3), 0)).size() == 2);
  CHECK(distribution(logits, with(1, static_cast<float>(two + 1e-3), 0)).size() == 3);
  CHECK(distribution(logits, with(1, 1e-6F, 0)).size() == 1);
  const auto both = distribution(logits, with(2, 0.7F, 3));
  check_consistent(both);
  CHECK(both.size() == 2);  // of the three kept, the first two have 0.77
}

TEST_CASE("temperature 0 takes the largest logit and says its log-probability at temperature 1") {
  weir::sampler s;
  for (double u : {0.0, 0.5, 0.999}) {
    const auto drawn = s.draw(logits, with(0, 1, 0), u);
    REQUIRE(drawn);
    CHECK(drawn->id == 1);
    CHECK(std::exp(drawn->logprob) == Approx(softmax(1, 1)).epsilon(1e-5));
  }
  CHECK(s.draw(logits, with(0, 0.1F, 2), 0.5)->id == 1);
}

TEST_CASE("huge, tiny and infinite logits") {
  weir::sampler s;
  CHECK(s.draw(std::vector<float>{1e30F, -1e30F, 0.0F}, with(0.01F, 1, 0), 0.9999999)->id == 0);
  const std::vector<float> masked{-infinity, 0.0F, -infinity, 0.0F, -infinity};
  for (const auto& p : {with(1, 1, 0), with(1, 0.9F, 0), with(1, 1, 4)})
    for (double u : {0.0, 0.499, 0.501, 1.0 - 1e-16}) CHECK(s.draw(masked, p, u)->id % 2 == 1);
  CHECK(s.draw(std::vector<float>{0.0F, std::nanf(""), 0.0F}, with(1, 1, 0), 0).error().code == weir::errc::numeric);
  CHECK(s.draw(std::vector<float>{-infinity, -infinity}, with(1, 1, 0), 0).error().code == weir::errc::numeric);
  CHECK(s.draw(std::vector<float>{infinity, 0.0F}, with(1, 1, 0), 0).error().code == weir::errc::numeric);
}

TEST_CASE("parameters out of range are named") {
  auto refused = [](const weir::sampling_params& p, const char* name) {
    const auto checked = weir::check_sampling(p, 17);
    return !checked && checked.error().message.find(name) != std::string::npos;
  };
  CHECK(weir::check_sampling(with(1, 1, 0), 17));
  CHECK(weir::check_sampling(with(0, 0.5F, 3), 17));
  CHECK(refused(with(-1, 1, 0), "temperature"));
  CHECK(refused(with(std::nanf(""), 1, 0), "temperature"));
  CHECK(refused(with(infinity, 1, 0), "temperature"));
  CHECK(refused(with(1, 0, 0), "top_p"));
  CHECK(refused(with(1, 1.5F, 0), "top_p"));
  CHECK(refused(with(1, 1, -1), "top_k"));
  auto p = with(1, 1, 0);
  p.max_tokens = 0;
  CHECK(refused(p, "max_tokens"));
  p.max_tokens = 1;
  p.stop_tokens = {16, 17};
  CHECK(refused(p, "stop token"));
}

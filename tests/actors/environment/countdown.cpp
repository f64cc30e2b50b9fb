// Countdown: rewards, demonstrations, and that the held-back tasks are not trained on in another order.
#include "weir/environment/countdown.hpp"

#include <algorithm>
#include <set>

#include "catch.hpp"

namespace {

std::unique_ptr<weir::environment> made() {
  auto e = weir::countdown().make(nlohmann::json::object());
  REQUIRE(e);
  return std::move(*e);
}

weir::step_result answered(const char* text) {
  auto e = made();
  auto prompt = e->reset({{"digits", {3, 7, 5}}, {"target", 38}}, 0);
  REQUIRE(prompt);
  CHECK(std::get<std::string>(*prompt) == "375=38:");
  auto outcome = e->step({{}, text});
  REQUIRE(outcome);
  CHECK(outcome->terminated);
  return *outcome;
}

}  // namespace

TEST_CASE("a right expression is worth 1, a well-formed wrong one 0.1, anything else nothing") {
  for (const char* right : {"5*7+3;", "7*5+3;", "3+5*7;", "3+7*5;"}) {
    CHECK(answered(right).reward == 1.0);
    CHECK(answered(right).success);
  }
  for (const char* wrong : {"5+7*3;", "5*7-3;", "3*7+5;", "9*9+9;", "5*7*3;"}) {
    CHECK(answered(wrong).reward == 0.1);
    CHECK_FALSE(answered(wrong).success);
  }
  for (const char* malformed : {"", ";", "5*7+3", "5*7+33", "57+*3;", "5*7+0;", "5*7+3;;", "5 *7+3;", "5*7=3;"}) {
    CHECK(answered(malformed).reward == 0.0);
    CHECK_FALSE(answered(malformed).success);
  }
}

TEST_CASE("multiplication binds tighter on either side") {
  auto e = made();
  REQUIRE(e->reset({{"digits", {2, 3, 4}}, {"target", 14}}, 0));
  CHECK(e->step({{}, "2+3*4;"})->success);
  CHECK(e->step({{}, "3*4+2;"})->success);
  REQUIRE(e->reset({{"digits", {2, 9, 3}}, {"target", 4}}, 0));
  CHECK(e->step({{}, "9-2-3;"})->success);  // from the left
}

TEST_CASE("a malformed task is an error that shows it") {
  auto e = made();
  for (auto task :
       {nlohmann::json{{"digits", {1, 2}}, {"target", 3}}, nlohmann::json{{"digits", {1, 2, 0}}, {"target", 3}},
        nlohmann::json{{"target", 3}}, nlohmann::json("375"), nlohmann::json{{"digits", {1, 2, 3}}}}) {
    auto outcome = e->reset(task, 0);
    REQUIRE_FALSE(outcome);
    CHECK(outcome.error().code == weir::errc::invalid_data);
  }
  auto refused = weir::countdown().make({{"size", 4}});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("environment.settings") != std::string::npos);
}

TEST_CASE("every task has a demonstration that solves it, and no held-back one is trained on") {
  auto tasks = weir::countdown().generate_tasks(nlohmann::json::object(), 512, 7);
  REQUIRE(tasks);
  CHECK(tasks->eval.size() == 512);
  CHECK(std::set<nlohmann::json>(tasks->eval.begin(), tasks->eval.end()).size() == 512);
  CHECK(tasks->train.size() > 5000);
  std::set<nlohmann::json> trained;
  auto e = made();
  for (std::size_t i = 0; i < tasks->train.size(); ++i) {
    trained.insert(tasks->train[i]);
    if (i % 10 != 0) continue;
    REQUIRE(e->reset(tasks->train[i], 0));
    auto answer = e->demonstration(i);
    REQUIRE(answer);
    CHECK(e->step({{}, *answer})->success);
  }
  CHECK(std::none_of(tasks->eval.begin(), tasks->eval.end(), [&](const auto& t) { return trained.contains(t); }));
  auto again = weir::countdown().generate_tasks(nlohmann::json::object(), 512, 7);
  CHECK(again->eval == tasks->eval);
  CHECK(weir::countdown().generate_tasks(nlohmann::json::object(), 512, 8)->eval != tasks->eval);
  CHECK_FALSE(weir::countdown().generate_tasks(nlohmann::json::object(), 1'000'000, 7));
}

// Countdown: a complete environment, meant to be copied.
//
// A task is {"digits": [3, 7, 5], "target": 38}. The prompt is "375=38:", and "5*7+3;" is a right answer: an expression
// over + - * (with their usual precedence) that uses each digit once and has the target's value, ended by a semicolon.
// The reward is 1 for a right expression, 0.1 for a well-formed wrong one, 0 for anything else. One turn, then the
// episode is over. TinyZero made the task known; this is its smallest form.
//
// To write your own: copy this file, implement reset and step, and register it by name (see builtin.cpp, or the
// `environment_registry` that you hand to the app). Everything else here is optional: `demonstration` is what a
// supervised warm start learns from, `generate_tasks` replaces a task file.

#include "weir/environment/countdown.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "weir/runtime/random.hpp"

namespace weir {

namespace {

using digits = std::array<int, 3>;

/// All that can be written with three digits in this order: two operators out of three.
constexpr std::array<char, 3> operators{'+', '-', '*'};

int apply(int a, char op, int b) { return op == '+' ? a + b : op == '-' ? a - b : a * b; }

int value_of(const digits& d, char first, char second) {
  const bool second_binds_tighter = second == '*' && first != '*';
  return second_binds_tighter ? apply(d[0], first, apply(d[1], second, d[2]))
                              : apply(apply(d[0], first, d[1]), second, d[2]);
}

/// The expressions that solve a task, each once. An answer of the model's is judged by the same arithmetic.
std::vector<std::string> solutions(digits given, int target) {
  std::vector<std::string> found;
  std::sort(given.begin(), given.end());
  do {
    for (char first : operators)
      for (char second : operators)
        if (value_of(given, first, second) == target) {
          std::string text{static_cast<char>('0' + given[0]), first, static_cast<char>('0' + given[1]), second,
                           static_cast<char>('0' + given[2]), ';'};
          found.push_back(std::move(text));
        }
  } while (std::next_permutation(given.begin(), given.end()));
  return found;
}

class countdown_environment final : public environment {
 public:
  // One episode: remember the task, return the prompt. An error here fails the episode and names what is wrong.
  result<observation> reset(const nlohmann::json& task, std::uint64_t) override {
    const auto list = task.find("digits");
    const auto target = task.find("target");
    if (list == task.end() || !list->is_array() || list->size() != 3 || target == task.end() ||
        !target->is_number_integer())
      return fail(errc::invalid_data,
                  R"(a countdown task is {"digits": [d, d, d], "target": n}, found )" + task.dump());
    for (std::size_t i = 0; i < 3; ++i) {
      if (!(*list)[i].is_number_integer() || (*list)[i] < 1 || (*list)[i] > 9)
        return fail(errc::invalid_data, "countdown's digits are 1 to 9, found " + (*list)[i].dump());
      digits_[i] = (*list)[i].get<int>();
    }
    target_ = target->get<int>();
    std::string prompt;
    for (int d : digits_) prompt += static_cast<char>('0' + d);
    return observation(prompt + "=" + std::to_string(target_) + ":");
  }

  // One turn of the model: judge it. The episode is over, so there is no next observation.
  result<step_result> step(const action& turn) override {
    step_result outcome;
    outcome.terminated = true;
    const auto text = turn.text;
    auto is_digit = [&](std::size_t i) { return text[i] >= '1' && text[i] <= '9'; };
    auto is_operator = [&](std::size_t i) {
      return std::find(operators.begin(), operators.end(), text[i]) != operators.end();
    };
    if (text.size() != 6 || text[5] != ';' || !is_digit(0) || !is_operator(1) || !is_digit(2) || !is_operator(3) ||
        !is_digit(4))
      return outcome;
    const digits used{text[0] - '0', text[2] - '0', text[4] - '0'};
    outcome.success =
        std::is_permutation(used.begin(), used.end(), digits_.begin()) && value_of(used, text[1], text[3]) == target_;
    outcome.reward = outcome.success ? 1.0 : 0.1;
    return outcome;
  }

  // Optional: an answer to learn from before reinforcement learning begins, drawn by the seed.
  std::optional<std::string> demonstration(std::uint64_t seed) override {
    const auto all = solutions(digits_, target_);
    if (all.empty()) return std::nullopt;
    return all[random_stream(seed).below(all.size())];
  }

 private:
  digits digits_{};
  int target_ = 0;
};

/// Optional: every prompt with a target from 0 to 99 that has an answer, in an order that the seed decides; the first
/// are held back. The same digits in another order are another prompt, which may be trained on.
task_split every_task(std::size_t eval_count, std::uint64_t seed) {
  std::vector<nlohmann::json> all;
  for (int a = 1; a <= 9; ++a)
    for (int b = 1; b <= 9; ++b)
      for (int c = 1; c <= 9; ++c)
        for (int target = 0; target <= 99; ++target)
          if (!solutions({a, b, c}, target).empty()) all.push_back({{"digits", {a, b, c}}, {"target", target}});
  random_stream random(derive_seed(seed, "countdown tasks"));
  for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.below(i)]);
  const auto held_back = all.begin() + static_cast<std::ptrdiff_t>(std::min(eval_count, all.size()));
  return {{held_back, all.end()}, {all.begin(), held_back}};
}

}  // namespace

environment_type countdown() {
  return {[](const nlohmann::json& settings) -> result<std::unique_ptr<environment>> {
            if (!settings.empty())
              return fail(errc::invalid_config, "environment.settings: countdown has none, found " + settings.dump());
            return std::unique_ptr<environment>(std::make_unique<countdown_environment>());
          },
          [](const nlohmann::json&, std::size_t eval_count, std::uint64_t seed) -> result<task_split> {
            auto tasks = every_task(eval_count, seed);
            if (tasks.eval.size() < eval_count || tasks.train.empty())
              return fail(errc::invalid_config, "tasks.eval_count: countdown has " + std::to_string(tasks.eval.size()) +
                                                    " tasks, and some must be left to train on");
            return tasks;
          },
          true};
}

}  // namespace weir

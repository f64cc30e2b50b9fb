#pragma once
// What an author of an environment implements. Gymnasium's meaning of reset, step, terminated and truncated; a turn of
// the language model is a step. See countdown.cpp for a commented one that is meant to be copied.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "weir/actors/types.hpp"
#include "weir/transport/result.hpp"

namespace weir {

/// What the model is given next: text, which the sandbox tokenizes, or tokens, which go to the model as they are.
using observation = std::variant<std::string, std::vector<token>>;

/// What the model produced in this turn. `text` is its decoding without special tokens; a stop token that ended the
/// turn is in `tokens` and, unless it is special, in `text`.
struct action {
  std::span<const token> tokens;
  std::string_view text;
};

/// The outcome of a step. If neither `terminated` nor `truncated` is set, `next` goes to the model as the next turn.
struct step_result {
  observation next;
  double reward = 0;  ///< finite, in fp32's range: another fails the episode
  bool terminated = false;
  bool truncated = false;
  bool success = false;  ///< the task is solved: what `solved fraction` and accuracy count
};

/// One environment: one episode at a time, `reset` before the first `step` of each. Never called from two threads at
/// once, but not always from the same one. A returned error (or an exception) fails the episode, not the run.
class environment {
 public:
  virtual ~environment() = default;

  /// Starts an episode. `task` is one line of the task file (or one of `generate_tasks`); `seed` is the source of any
  /// randomness. Returns the prompt.
  virtual result<observation> reset(const nlohmann::json& task, std::uint64_t seed) = 0;

  virtual result<step_result> step(const action& turn) = 0;

  /// An answer that solves the task just reset to, if the environment knows one: what a supervised warm start trains
  /// on. Includes whatever ends a turn. Drawn at random, from `seed`, where there are several.
  virtual std::optional<std::string> demonstration(std::uint64_t seed) {
    static_cast<void>(seed);
    return std::nullopt;
  }
};

/// Tasks that an environment makes itself, in a fixed order that depends on the seed alone; train and eval share none.
struct task_split {
  std::vector<nlohmann::json> train;
  std::vector<nlohmann::json> eval;
};

/// A kind of environment: how to make one, and its tasks if it brings any.
struct environment_type {
  /// `settings` is the config's `environment.settings`. An error names the setting and what is allowed.
  std::function<result<std::unique_ptr<environment>>(const nlohmann::json& settings)> make;
  /// Empty if tasks come from a file. `eval_count` tasks are held back.
  std::function<result<task_split>(const nlohmann::json& settings, std::size_t eval_count, std::uint64_t seed)>
      generate_tasks;
  /// Its calls take microseconds and never wait: its sandboxes then share threads with other actors. All others have a
  /// thread each, so that one that is slow, or hangs, holds up nobody.
  bool quick = false;
};

/// Environments by name. A value: two runs in one process can know different ones.
class environment_registry {
 public:
  /// Adds or replaces. `name` is what the config's `environment.name` says.
  void add(std::string name, environment_type type) { types_.insert_or_assign(std::move(name), std::move(type)); }

  /// Adds an environment that is made without settings and has its tasks in a file.
  template <class Environment>
  void add(std::string name) {
    add(std::move(name), {[](const nlohmann::json&) -> result<std::unique_ptr<environment>> {
                            return std::unique_ptr<environment>(std::make_unique<Environment>());
                          },
                          {},
                          false});
  }

  /// Null if there is none of this name.
  const environment_type* find(const std::string& name) const {
    auto found = types_.find(name);
    return found == types_.end() ? nullptr : &found->second;
  }

  std::vector<std::string> names() const;

 private:
  std::map<std::string, environment_type> types_;
};

/// The environments that come with Weir.
environment_registry builtin_environments();

}  // namespace weir

#include "weir/sandbox/in_process_sandbox.hpp"

#include <cmath>
#include <limits>
#include <utility>

#include "weir/environment/guarded.hpp"
#include "weir/runtime/random.hpp"

namespace weir {

in_process_sandbox::in_process_sandbox(caf::actor_config& config, sandbox_pool_actor pool,
                                       std::function<result<std::unique_ptr<environment>>()> make,
                                       std::shared_ptr<const tokenizer> text, std::shared_ptr<lost_text> lost)
    : sandbox_actor::base(config),
      pool_(std::move(pool)),
      make_(std::move(make)),
      text_(std::move(text)),
      lost_(std::move(lost)) {}

sandbox_actor::behavior_type in_process_sandbox::make_behavior() {
  return {[this](const run_episode& order) { begin(order); },
          [this](const cancel_episode& which) {
            const auto& spec = order_.spec;
            if (busy_ && spec.group == which.group && spec.sample == which.sample && spec.attempt == which.attempt) {
              busy_ = false;
              ++episode_;
            }
          }};
}

void in_process_sandbox::on_exit() {
  pool_ = nullptr;
  order_ = {};
}

void in_process_sandbox::begin(const run_episode& order) {
  order_ = order;
  busy_ = true;
  ++episode_;
  recorder_.start(order_.spec);
  auto task = nlohmann::json::parse(order_.spec.task, nullptr, false);
  if (task.is_discarded()) return fail_episode("its task is no JSON: " + order_.spec.task.substr(0, 100));
  if (auto have = have_environment(); !have)
    return fail_episode("the environment could not be made: " + have.error().message);
  auto first = guarded("reset", [&] { return environment_->reset(task, order_.spec.seed); });
  if (!first) return fail_episode(first.error().message);
  auto given = give(*first);
  if (!given) return fail_episode(given.error().message);
  if (recorder_.context().empty()) return fail_episode("the environment's reset gave an empty prompt");
  ask();
}

result<void> in_process_sandbox::have_environment() {
  if (environment_) return {};
  auto made = guarded("constructor", make_);
  if (!made) return fail(made.error());
  if (!*made) return fail(errc::internal, "its maker returned none");
  environment_ = std::move(*made);
  return {};
}

result<void> in_process_sandbox::give(const observation& next) {
  if (const auto* tokens = std::get_if<std::vector<token>>(&next)) {
    recorder_.given(*tokens);
    return {};
  }
  if (!text_) return fail(errc::invalid_argument, "the environment answers in text, and there is no tokenizer");
  const bool prompt = recorder_.context().empty();
  recorder_.given(lost_->encode(*text_, std::get<std::string>(next), [&] {
    return (prompt ? "the environment's prompt for the task " : "an observation of the environment's at the task ") +
           order_.spec.task;
  }));
  return {};
}

// No timeout of its own: the pool gives the whole episode a deadline and cancels it then.
void in_process_sandbox::ask() {
  generate_request turn{recorder_.context(), order_.sampling, derive_seed(order_.spec.seed, "turn", recorder_.turns())};
  request(order_.engine, caf::infinite, std::move(turn))
      .then(
          [this, number = episode_](const generation& answer) {
            if (number == episode_) answered(answer);
          },
          [this, number = episode_](const caf::error& e) {
            if (number == episode_) refused(from_caf(e));
          });
}

// A context that has no room for another turn ends the episode as a step limit does; a prompt that never had is a
// failure.
void in_process_sandbox::refused(const error& reason) {
  if (reason.code == errc::invalid_argument && recorder_.turns() > 0) return complete(false, true, false);
  fail_episode("generation failed: " + reason.message);
}

void in_process_sandbox::answered(const generation& turn) {
  recorder_.produced(turn);
  const auto text = text_ ? text_->decode(turn.tokens, true) : std::string{};
  auto outcome = guarded("step", [&] { return environment_->step(action{turn.tokens, text}); });
  if (!outcome) return fail_episode(outcome.error().message);
  if (!(std::abs(outcome->reward) <= std::numeric_limits<float>::max()))
    return fail_episode("the environment's step gave a reward of " + std::to_string(outcome->reward) +
                        ", which is no number that fp32 holds");
  recorder_.rewarded(outcome->reward);
  if (outcome->terminated || outcome->truncated)
    return complete(outcome->terminated, outcome->truncated, outcome->success);
  if (recorder_.turns() >= order_.max_turns) return complete(false, true, outcome->success);
  auto given = give(outcome->next);
  if (!given) return fail_episode(given.error().message);
  ask();
}

void in_process_sandbox::complete(bool terminated, bool truncated, bool success) {
  busy_ = false;
  const auto& spec = order_.spec;
  send(order_.records, episode_record{spec, recorder_.finish(terminated, truncated, success)});
  send(pool_, episode_ended{spec.group, spec.sample, spec.attempt, {}});
}

void in_process_sandbox::fail_episode(const std::string& reason) {
  busy_ = false;
  const auto& spec = order_.spec;
  send(pool_, episode_ended{spec.group, spec.sample, spec.attempt, reason.empty() ? "it failed" : reason});
}

sandbox_factory in_process_sandboxes(environment_type type, nlohmann::json settings,
                                     std::shared_ptr<const tokenizer> text, std::shared_ptr<lost_text> lost) {
  if (!lost) lost = std::make_shared<lost_text>();
  return [type = std::move(type), settings = std::move(settings), text = std::move(text), lost = std::move(lost)](
             caf::actor_system& system, const sandbox_pool_actor& pool) -> sandbox_actor {
    auto make = [make = type.make, settings] { return make(settings); };
    if (type.quick) return system.spawn<in_process_sandbox>(pool, std::move(make), text, lost);
    return system.spawn<in_process_sandbox, caf::detached>(pool, std::move(make), text, lost);
  };
}

}  // namespace weir

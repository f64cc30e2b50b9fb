#include "run.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stop_token>
#include <thread>
#include <utility>

#include "checkpoint.hpp"
#include "evaluation.hpp"
#include "learner_parts.hpp"
#include "memory_estimate.hpp"
#include "run_files.hpp"
#include "training.hpp"
#include "weir/actors/interfaces.hpp"
#include "weir/environment/guarded.hpp"
#include "weir/policy/threads.hpp"
#include "weir/runtime/files.hpp"
#include "weir/sandbox/demonstrations.hpp"
#include "weir/trainer/lr_schedule.hpp"

namespace weir::app {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

constexpr const char* warm_start_step = "warm_start_step";  ///< as the metrics count them

/// The run that a command is at: what its phases share.
struct session {
  run_parts parts;
  run_files& files;
  const interrupt& stop;
  std::optional<std::uint64_t> steps = {};  ///< of the command line, instead of the config's
  actor_runtime actors = actor_runtime::with<caf::id_block::weir_actors>(1);

  void say(const std::string& text) const { files.log.info(text); }
  void warn_of_lost_text(bool eval) const {
    if (const auto lost = news_of_lost_text(parts, eval)) files.log.warn(*lost);
  }
};

/// Hands a signal on to what this thread is at, in one step or in the code of an environment. If that does not end in
/// time the program does, as promised, without a checkpoint.
class impatience {
 public:
  impatience(const session& s, std::string what)
      : watcher_([this, &s, what = std::move(what)](const std::stop_token& done) {
          while (!s.stop.wait_for(20ms))
            if (done.stop_requested()) return;
          source_.request_stop();
          for (auto waited = 0ms; waited < patience; waited += 20ms) {
            if (done.stop_requested()) return;
            std::this_thread::sleep_for(20ms);
          }
          s.files.log.error(what +
                            " does not stop; the run goes on from its last checkpoint (weir resume). A smaller "
                            "trainer.micro_batch_tokens makes it stop sooner");
          s.files.screen.finish();
          std::_Exit(s.stop.exit_code());
        }) {}
  std::stop_token token() const { return source_.get_token(); }

 private:
  static constexpr auto patience = 4000ms;
  std::stop_source source_;
  std::jthread watcher_;
};

/// Supervised steps on demonstrations. False if interrupted; then a checkpoint says how far it came.
result<bool> warm_start(session& s, learner& trained, run_state& state) {
  const auto& c = s.parts.config.warm_start;
  auto place = guarded("maker", [&] { return s.parts.environment.make(s.parts.config.environment.settings); });
  if (!place) return fail(place.error());
  auto tasks = std::make_shared<task_stream>(s.parts.train_tasks, s.parts.config.seed, true);
  demonstration_source source(std::move(*place), s.parts.text, tasks, s.parts.config.seed,
                              s.parts.config.rollout.max_context, s.parts.lost);
  const lr_schedule schedule{c.lr, c.lr_warmup_steps, c.steps, lr_decay::constant};
  eta remaining(static_cast<double>(c.steps));
  const auto began = std::chrono::steady_clock::now();
  double loss = 0;
  const impatience on_signal(s, "the warm start's step");
  for (; state.warm_start_steps < c.steps; ++state.warm_start_steps) {
    if (s.stop.requested()) return false;
    auto batch = source.take(state.warm_start_steps * c.batch, c.batch, on_signal.token());
    if (!batch && s.stop.requested()) return false;
    if (!batch) return fail(batch.error());
    s.warn_of_lost_text(false);
    auto step = trained.supervised_step(*batch, schedule.at(state.warm_start_steps), on_signal.token());
    if (!step && s.stop.requested()) return false;
    if (!step) return fail(step.error());
    loss = *step;
    const auto done = state.warm_start_steps + 1;
    remaining.update(static_cast<double>(done),
                     std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    const auto left = remaining.remaining();
    if (auto written = s.files.metrics.append({{warm_start_step, done}, {"loss", loss}}); !written)
      return fail(written.error());
    s.files.screen.status(fmt::format("warm start {}/{}  loss {:.3f}{}", done, c.steps, loss,
                                      left ? "  " + format_duration(*left) + " left" : ""));
  }
  s.say(fmt::format("warm start: {} supervised steps, loss {:.3f}", c.steps, loss));
  trained.reset_optimizer();
  state.warm_start_done = true;
  return true;
}

/// Evaluates, says so, and writes it down. False if interrupted.
result<bool> evaluation_phase(session& s, const causal_lm& model, weight_version version, const char* when) {
  if (s.parts.eval_tasks.empty()) return true;
  auto r = evaluate(s.actors.system(), s.parts, model, s.stop);
  s.warn_of_lost_text(true);
  if (!r && s.stop.requested()) return false;
  if (!r) return fail(r.error());
  s.say(std::string(when) + ": " + summary(*r));
  auto written = s.files.metrics.append(
      {{"step", version},
       {"evaluation",
        {{"accuracy", r->accuracy()}, {"tasks", r->tasks}, {"failed", r->failed}, {"reward", r->reward}}}});
  if (!written) return fail(written.error());
  return true;
}

/// All phases that are left. True if it came to its end, false if it was interrupted.
result<bool> go_on(session& s, learner trained, run_state state) {
  const auto& c = s.parts.config;
  set_intra_op_threads(c.trainer.threads);
  if (!state.warm_start_done) {
    const bool needed = c.warm_start.steps > 0;
    auto done = needed ? warm_start(s, trained, state) : result<bool>(true);
    if (!done) return done;
    if (!needed) state.warm_start_done = true;
    if (needed)
      if (auto kept = save_checkpoint(s.files.directory, s.parts, trained, state); !kept) return fail(kept.error());
    if (!*done) return false;
    if (c.evaluation.at_start) {
      auto evaluated = evaluation_phase(s, trained.model(), 0, "before");
      if (!evaluated || !*evaluated) return evaluated;
    }
  }
  s.say(fmt::format("training: {} steps of {} tasks x {} samples, max_staleness {}, {}", c.trainer.steps,
                    c.trainer.batch_groups, c.trainer.group_size, c.trainer.max_staleness, c.trainer.objective));
  auto outcome = run_training(s.actors.system(), s.parts, std::move(trained), state, s.files, s.stop);
  s.warn_of_lost_text(false);
  if (!outcome) return fail(outcome.error());
  s.say(fmt::format("trained to version {} in {}: {:.0f} samples/s", outcome->version,
                    format_duration(outcome->seconds), static_cast<double>(outcome->samples) / outcome->seconds));
  if (outcome->interrupted) return false;
  if (!c.evaluation.at_end) return true;
  const auto last = s.files.directory.latest_checkpoint();
  if (!last) return fail(last.error());
  if (!*last) return fail(errc::internal, "the run left no checkpoint");
  auto model = causal_lm::load((*last)->path, c.model.device);
  if (!model) return fail(model.error());
  return evaluation_phase(s, *model, outcome->version, "after");
}

/// Ends the program's side of a run. Actors in code that never returns would keep the process for ever.
int end(session& s, const result<bool>& how) {
  int code = 0;
  const auto last = s.files.directory.latest_checkpoint();
  const bool has_checkpoint = last && *last;
  if (const auto lost = all_lost_text(s.parts)) s.files.log.warn(*lost);
  if (!how) {
    s.files.log.error(how.error().message);
    code = how.error().code == errc::invalid_config ? 2 : 1;
  } else if (!*how) {
    code = s.stop.exit_code();
    s.files.log.warn("interrupted; " + (has_checkpoint
                                            ? "go on with: weir resume " + s.files.directory.path().string() +
                                                  (s.steps ? " --steps " + std::to_string(*s.steps) : "")
                                            : std::string("there was nothing to keep yet")));
  }
  if (has_checkpoint) s.say("checkpoint: " + (*last)->path.string());
  s.files.screen.finish();
  if (!s.actors.wait_until_idle(1s)) std::_Exit(code);
  return code;
}

fs::path next_run_directory(const std::string& name) {
  for (int i = 1;; ++i) {
    auto path = fs::path("runs") / (name + "-" + std::to_string(i));
    if (std::error_code none; !fs::exists(path, none)) return path;
  }
}

/// For one who names a checkpoint, or the folder of them: the run that it belongs to.
std::string nearest_run(const fs::path& folder) {
  std::error_code none;
  auto at = (fs::absolute(folder, none) / "").lexically_normal();
  for (int up = 0; up < 3; ++up) {
    at = at.parent_path();
    if (fs::exists(at / "lock", none) && fs::exists(at / "config.json", none))
      return "; did you mean weir resume " + at.string() + "?";
  }
  return {};
}

/// The config of a run. A model's config.json, with a lock that something left beside it, is none.
result<app_config> config_of(const run_directory& directory) {
  const auto file = (directory.path() / "config.json").string();
  auto root = directory.config();
  if (!root) return fail(root.error());
  if (!root->contains("trainer") && !root->contains("environment"))
    return fail(errc::not_found,
                directory.path().string() + " is no run directory: its config.json is not that of a run");
  return read_config<app_config>(*root, file);
}

/// The metrics of a run that goes on, without what came after its checkpoint: that is done again. Without one, all is.
result<metrics_log> metrics_from(const run_directory& directory, const std::optional<run_state>& kept) {
  std::error_code failed;
  if (!kept && !fs::remove(directory.metrics_path(), failed) && failed)
    return fail(os_error("cannot begin anew " + directory.metrics_path().string(), failed.value()));
  const auto state = kept.value_or(run_state{});
  return metrics_log::open(directory.metrics_path(), std::array{metrics_mark{warm_start_step, state.warm_start_steps},
                                                                metrics_mark{"step", state.version}});
}

}  // namespace

int printed(int code) {
  errno = 0;
  std::cout.flush();
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout;
  const int reason = errno;
  std::clearerr(stdout);
  std::cout.clear();
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  const bool reader_left = ::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
  if (!lost || reader_left) return code;
  const std::string what = "cannot write all of the output";
  report(reason != 0 ? os_error(what, reason) : error{errc::io, what});
  return code != 0 ? code : 1;
}

result<void> look_at_memory(const run_parts& parts, bool training, bool shown) {
  const auto needs = memory_needs(parts, training);
  const auto limits = read_memory_limits();
  auto checked = check_memory(needs, limits);
  if (!checked) return fail(checked.error());
  console screen(STDERR_FILENO);
  if (*checked)
    screen.line("weir: warning: " + **checked);
  else if (shown)
    screen.line(describe(needs, limits));
  return {};
}

int report(const error& e) {
  console(STDERR_FILENO).line("weir: " + e.message);
  return e.code == errc::invalid_config ? 2 : 1;
}

int refuse(const error& e) {
  report(e);
  return 2;
}

int start_run(const app_config& given, const std::string& name, const environment_registry& known) {
  auto config = given;
  if (config.run_dir.empty()) config.run_dir = next_run_directory(name).string();
  auto parts = prepare(config, known);
  if (!parts) return refuse(parts.error());
  if (auto fits = look_at_memory(*parts, true); !fits) return refuse(fits.error());
  auto model = first_model(*parts);
  if (!model) return report(model.error());
  auto directory = run_directory::create(config.run_dir, config_to_json(config));
  if (!directory) return report(directory.error());
  auto metrics = metrics_log::open(directory->metrics_path());
  if (!metrics) return report(metrics.error());
  const interrupt stop;
  console screen(STDOUT_FILENO);
  auto log = logger::open(screen, directory->log_path());
  if (!log) return report(log.error());
  run_files files{std::move(*directory), std::move(*metrics), screen, *log};
  session s{std::move(*parts), files, stop};
  s.say("run directory: " + files.directory.path().string());
  return end(s, go_on(s, make_learner(config, std::move(*model)), {}));
}

int resume_run(const fs::path& folder, std::optional<std::uint64_t> steps, const environment_registry& known) {
  auto directory = run_directory::open(folder);
  if (!directory)
    return report({directory.error().code,
                   directory.error().message + (directory.error().code == errc::not_found ? nearest_run(folder) : "")});
  auto config = config_of(*directory);
  if (!config) return report(config.error());
  config->run_dir = folder.string();
  if (steps) config->trainer.steps = *steps;
  auto parts = prepare(*config, known);
  if (!parts) return refuse(parts.error());
  if (auto fits = look_at_memory(*parts, true); !fits) return refuse(fits.error());
  auto model = first_model(*parts);
  if (!model) return report(model.error());
  auto trained = make_learner(*config, std::move(*model));
  run_state state;
  const auto last = directory->latest_checkpoint();
  if (!last) return report(last.error());
  if (*last) {
    auto loaded = load_checkpoint((*last)->path, trained);
    if (!loaded)
      return report({loaded.error().code, loaded.error().message + "; remove " + (*last)->path.string() +
                                              " to go on from the checkpoint before it"});
    state = *loaded;
  }
  if (steps && *steps <= state.version)
    return refuse({errc::invalid_config,
                   fmt::format("--steps {}: the run is at step {} already; name a later one", *steps, state.version)});
  auto metrics = metrics_from(*directory, *last ? std::optional(state) : std::nullopt);
  if (!metrics) return report(metrics.error());
  const interrupt stop;
  console screen(STDOUT_FILENO);
  auto log = logger::open(screen, directory->log_path());
  if (!log) return report(log.error());
  run_files files{std::move(*directory), std::move(*metrics), screen, *log};
  session s{std::move(*parts), files, stop};
  s.steps = steps;
  s.say(*last ? fmt::format("resumed from {}", (*last)->path.string())
              : "there is no checkpoint yet: from the beginning");
  if (state.version >= s.parts.config.trainer.steps)
    s.say("the run is at its last step already; --steps N goes on to step N");
  return end(s, go_on(s, std::move(trained), state));
}

int evaluate_model(const app_config& config, const environment_registry& known, bool json) {
  auto parts = prepare(config, known);
  if (!parts) return refuse(parts.error());
  if (auto fits = look_at_memory(*parts, false); !fits) return refuse(fits.error());
  auto model = first_model(*parts);
  if (!model) return report(model.error());
  const interrupt stop;
  set_intra_op_threads(config.rollout.threads);
  auto actors = actor_runtime::with<caf::id_block::weir_actors>(1);
  auto r = evaluate(actors.system(), *parts, *model, stop);
  for (const auto& lost : {news_of_lost_text(*parts, true), all_lost_text(*parts)})
    if (lost) console(STDERR_FILENO).line("weir: warning: " + one_line(*lost));
  int code = 0;
  if (!r)
    code = stop.requested() ? stop.exit_code() : report(r.error());
  else if (json)
    std::printf("%s\n", nlohmann::ordered_json{{"model", config.model.path},
                                               {"tasks", r->tasks},
                                               {"solved", r->solved},
                                               {"accuracy", r->accuracy()},
                                               {"failed", r->failed},
                                               {"reward", r->reward},
                                               {"seconds", r->seconds}}
                            .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                            .c_str());
  else
    std::printf("%s: %s\n", config.model.path.c_str(), summary(*r).c_str());
  code = printed(code);
  if (!actors.wait_until_idle(1s)) std::_Exit(code);
  return code;
}

}  // namespace weir::app

#include "training.hpp"

#include <chrono>
#include <cstdlib>
#include <future>
#include <stop_token>
#include <thread>
#include <utility>

#include "graph_parts.hpp"
#include "step_report.hpp"
#include "weight_path.hpp"
#include "weir/buffer/group_assembly.hpp"
#include "weir/policy/torch.hpp"
#include "weir/sandbox/in_process_sandbox.hpp"
#include "weir/trainer/trainer.hpp"

namespace weir::app {

using namespace std::chrono_literals;

namespace {

// On Ctrl-C the program is gone within five seconds: a step under way gets the first of them.
constexpr auto step_grace = 1500ms;
constexpr auto drain_deadline = 2700ms;
constexpr auto end_grace = 500ms;

trainer_settings trainer_settings_of(const app_config& config) {
  const auto& c = config.trainer;
  const auto decay = c.lr_decay == "linear"   ? lr_decay::linear
                     : c.lr_decay == "cosine" ? lr_decay::cosine
                                              : lr_decay::constant;
  return {c.steps, config.checkpoints.every, {c.lr, c.lr_warmup_steps, c.steps, decay}, c.most_failed_steps, c.threads};
}

/// The run's graph. Members are named for what they do; the wires are all in `connect`.
class training_graph {
 public:
  training_graph(caf::actor_system& system, const run_parts& parts, learner trained, const run_state& start,
                 run_files& files, weight_path weights)
      : files_(files), reporter_(parts, files, parts.config.rollout.engines, start.version), graph_(system) {
    const auto& c = parts.config;
    auto* report = &reporter_;
    buffer_ = graph_.add<trajectory_buffer>(
        "trajectory buffer", staleness_settings{c.trainer.batch_groups, c.trainer.max_staleness, c.trainer.steps},
        [report](const buffer_fill& fill) { report->buffer(fill); });
    assembly_ = graph_.add<group_assembly>("group assembly", c.trainer.group_size);
    pool_ = graph_.add<sandbox_pool>(
        "sandboxes", pool_settings_of(parts, parts.sampling),
        std::make_shared<task_stream>(parts.train_tasks, c.seed, c.tasks.shuffle),
        in_process_sandboxes(parts.environment, c.environment.settings, parts.text, parts.lost), start.data,
        [report](const sandbox_pool_counts& counts) { report->pool(counts); });
    store_ = graph_.add<weight_store>("weight store", weight_store_settings{},
                                      [report](const weight_store_state& s) { report->weights(s); });
    node_store_ = store_;
    if (weights.sender) {
      uplink_ = graph_.add<weight_uplink>("weight uplink", weights.sender, weights.written);
      weight_downlink_observer told;
      told.on_arrived = [report](const arrived_weights& w) { report->arrived(w); };
      told.on_notice = [report](const std::string& text) { report->notice(text); };
      downlink_ = graph_.add<weight_downlink>("weight downlink", weights.maker, weights.receiver, weights.read,
                                              std::move(told));
      node_store_ = graph_.add<weight_store>("engines' weight store");
    }
    // Where versions hold some tensors only, the others are the model's that the run begins with.
    std::shared_ptr<const causal_lm> base;
    if (!c.trainer.tensors.empty())
      base = std::make_shared<const causal_lm>(causal_lm::bind(parts.model, trained.model().flat().detach().clone()));
    for (std::size_t i = 0; i < c.rollout.engines; ++i)
      engines_.push_back(graph_.add_with_thread<rollout_engine>(
          "rollout engine " + std::to_string(i), parts.model, engine_settings_of(c), weights.read,
          [report, i](const rollout_activity& a) { report->engine(i, a); }, base));
    trainer_hooks hooks;
    hooks.on_step = [report](const training_step& step) { report->step(step); };
    hooks.checkpoint = [&parts, &files, start](const learner& l, weight_version version,
                                               const data_position& data) -> result<void> {
      auto kept = save_checkpoint(files.directory, parts, l, {true, start.warm_start_steps, version, data});
      if (kept) return {};
      files.log.error("no checkpoint at step " + std::to_string(version) + ": " + kept.error().message);
      return fail(kept.error());
    };
    hooks.on_end = [this](const result<weight_version>& how) { ended_.set_value(how); };
    trainer_ = graph_.add_with_thread<trainer>("trainer", std::move(trained), trainer_settings_of(c),
                                               std::move(weights.writer), training_position{start.version, start.data},
                                               std::move(hooks), stop_step_.get_token());
    connect();
  }

  /// Runs until training ends, an actor fails, or `stop`; then stops the graph.
  result<training_outcome> run(const interrupt& stop) {
    const auto begin = std::chrono::steady_clock::now();
    graph_.tell(trainer_, start_training{});
    auto end = ended_.get_future();
    training_outcome outcome;
    std::optional<error> lost;
    for (int round = 1;
         end.wait_for(20ms) != std::future_status::ready && !graph_.failure() && !outcome.interrupted && !lost;
         ++round) {
      outcome.interrupted = stop.requested();
      lost = reporter_.lost_cause();
      if (round % 50 == 0) reporter_.warn_of_losses();
    }
    {
      std::jthread impatience([this](const std::stop_token& done) {
        for (auto waited = 0ms; waited < step_grace && !done.stop_requested(); waited += 20ms)
          std::this_thread::sleep_for(20ms);
        if (!done.stop_requested()) stop_step_.request_stop();
      });
      leave_if_stuck(graph_.stop(drain_deadline, end_grace), outcome.interrupted ? stop.exit_code() : 1);
    }
    outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    outcome.samples = reporter_.samples();
    if (auto failed = graph_.failure())
      return fail(failed->reason.code, "the " + failed->node + " ended: " + failed->reason.message);
    if (end.wait_for(0s) != std::future_status::ready)
      return fail(errc::timeout,
                  "the trainer did not stop in time; the run goes on from its last checkpoint (weir resume)");
    auto how = end.get();
    if (!how) return fail(how.error());
    if (lost) return fail(*lost);
    outcome.version = *how;
    return outcome;
  }

 private:
  /// An actor whose thread never returns still uses what this object owns: there is no way out but to leave.
  void leave_if_stuck(const stop_report& report, int code) {
    if (report.stuck.empty()) return;
    files_.log.error("the " + report.stuck.front() +
                     " does not stop; the run goes on from its last checkpoint (weir resume)");
    files_.screen.finish();
    std::_Exit(code);
  }

  void connect() {
    for (const auto& engine : engines_) {
      graph_.connect(pool_, sandbox_pool::engines, engine);
      graph_.connect(node_store_, weight_store::engines, engine);
    }
    if (uplink_.handle) {
      graph_.connect(store_, weight_store::engines, uplink_);
      graph_.connect(downlink_, weight_downlink::versions, node_store_);
      graph_.connect(node_store_, weight_store::listeners, downlink_);
    }
    graph_.connect(pool_, sandbox_pool::records, assembly_);
    graph_.connect(assembly_, group_assembly::groups, buffer_);
    graph_.connect(buffer_, trajectory_buffer::admission, pool_);
    graph_.connect(store_, weight_store::listeners, buffer_);
    graph_.connect(trainer_, trainer::batches, buffer_);
    graph_.connect(trainer_, trainer::versions, store_);
  }

  // Actors hold pointers to these, so they outlive the graph.
  run_files& files_;
  step_reporter reporter_;
  std::stop_source stop_step_;
  std::promise<result<weight_version>> ended_;
  graph graph_;
  placed<trajectory_buffer> buffer_;
  placed<group_assembly> assembly_;
  placed<sandbox_pool> pool_;
  placed<weight_store> store_, node_store_;  ///< the same where weights cross no transport
  placed<weight_uplink> uplink_;
  placed<weight_downlink> downlink_;
  std::vector<placed<rollout_engine>> engines_;
  placed<trainer> trainer_;
};

}  // namespace

result<training_outcome> run_training(caf::actor_system& system, const run_parts& parts, learner trained,
                                      const run_state& start, run_files& files, const interrupt& stop) {
  auto weights = make_weight_path(parts.config, trained.model().layout(), files.log);
  if (!weights) return fail(weights.error());
  training_graph graph(system, parts, std::move(trained), start, files, std::move(*weights));
  return graph.run(stop);
}

}  // namespace weir::app

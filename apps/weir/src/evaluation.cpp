#include "evaluation.hpp"

#include <fmt/format.h>

#include <chrono>
#include <future>
#include <numeric>
#include <utility>

#include "graph_parts.hpp"
#include "weir/buffer/episode_collector.hpp"
#include "weir/runtime/console.hpp"
#include "weir/sandbox/in_process_sandbox.hpp"
#include "weir/transport/inproc.hpp"
#include "weir/weights/weight_store.hpp"

namespace weir::app {

using namespace std::chrono_literals;

result<evaluation_result> evaluate(caf::actor_system& system, const run_parts& parts, const causal_lm& model,
                                   const interrupt& stop, const std::function<void(std::uint64_t)>& progress) {
  const auto begin = std::chrono::steady_clock::now();
  if (parts.eval_tasks.empty()) return fail(errc::invalid_config, "tasks.eval: there are no held-back tasks");
  const auto layout = retyped(model.layout(), published_type(parts.config));
  auto shelf = std::make_shared<weight_shelf>(std::make_shared<const manifest>(layout));
  auto weights = snapshot_writer::make(shelf, layout.bytes, 1);
  if (!weights) return fail(weights.error());
  model.copy_to(weights->next(), published_type(parts.config));

  auto finished = std::make_shared<std::promise<collected_episodes>>();
  auto outcome = finished->get_future();
  graph g(system);
  auto pool_settings = pool_settings_of(parts, parts.greedy());
  pool_settings.group_size = 1;
  auto tasks = std::make_shared<task_stream>(parts.eval_tasks, 0, false);
  auto pool = g.add<sandbox_pool>(
      "sandboxes", pool_settings, tasks,
      in_process_sandboxes(parts.environment, parts.config.environment.settings, parts.text, parts.lost));
  auto engine =
      g.add_with_thread<rollout_engine>("rollout engine", parts.model, engine_settings_of(parts.config), shelf);
  auto store = g.add<weight_store>("weight store");
  auto collector = g.add<episode_collector>(
      "collector", parts.eval_tasks.size(), 1,
      [finished](collected_episodes all) { finished->set_value(std::move(all)); }, progress);
  g.connect(pool, sandbox_pool::engines, engine);
  g.connect(pool, sandbox_pool::records, collector);
  g.connect(store, weight_store::engines, engine);
  g.connect(collector, episode_collector::admission, pool);
  g.tell(store, weights->publish(0));

  while (outcome.wait_for(20ms) != std::future_status::ready) {
    if (stop.requested()) return fail(errc::unavailable, "interrupted");
    if (auto failed = g.failure()) return fail(failed->reason.code, failed->node + ": " + failed->reason.message);
  }
  const auto all = outcome.get();
  g.stop(1s, 1s);

  evaluation_result r;
  r.tasks = parts.eval_tasks.size();
  r.failed = all.dropped.size();
  if (!all.dropped.empty()) r.first_failure = all.dropped.front().reason;
  for (const auto& t : all.records) {
    r.solved += t.success ? 1 : 0;
    r.reward += t.reward;
    r.tokens += static_cast<double>(std::accumulate(t.mask.begin(), t.mask.end(), std::uint64_t{0}));
  }
  r.reward /= static_cast<double>(r.tasks);
  if (!all.records.empty()) r.tokens /= static_cast<double>(all.records.size());
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return r;
}

std::string summary(const evaluation_result& r) {
  auto text = fmt::format("{:.1f} % of {} held-back tasks solved, greedy ({:.1f} tokens an answer, mean reward {:.3f})",
                          100 * r.accuracy(), r.tasks, r.tokens, r.reward);
  if (r.failed > 0)
    text += fmt::format("; {} episodes failed, the first because {}", r.failed, one_line(r.first_failure));
  return text;
}

}  // namespace weir::app

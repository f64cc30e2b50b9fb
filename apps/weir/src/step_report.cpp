#include "step_report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

namespace weir::app {

using namespace std::chrono_literals;

namespace {

// Where nobody watches a terminal, a run has as many lines, whatever the number of its steps: at least so far apart,
// and at most.
constexpr std::uint64_t plain_lines = 20;
constexpr auto plain_least = 1s;
constexpr auto plain_most = 60s;
constexpr auto failure_least = 10s;  ///< between two lines on steps that failed

double resident_megabytes() {
  std::ifstream statm("/proc/self/statm");
  double total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e6;
}

}  // namespace

step_reporter::step_reporter(const run_parts& parts, run_files& files, std::size_t engines, weight_version start)
    : parts_(parts),
      config_(parts.config),
      files_(files),
      engines_(engines),
      remaining_(static_cast<double>(parts.config.trainer.steps)),
      start_(start) {
  remaining_.update(static_cast<double>(start), 0);
}

std::uint64_t step_reporter::samples() {
  std::lock_guard lock(mutex_);
  return samples_;
}

void step_reporter::step(const training_step& s) {
  const auto now = clock::now();
  const auto wall = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  const auto& l = s.learned;
  nlohmann::ordered_json line;
  double busy = 0, samples_per_second = 0;
  {
    std::lock_guard lock(mutex_);
    double busy_seconds = 0;
    std::uint64_t tokens = 0;
    for (const auto& e : engines_) {
      busy_seconds += e.busy_seconds;
      tokens += e.tokens;
    }
    // Engines report at the end of what they do, so a stretch may be heard of after the step that it fell into: what a
    // step cannot have held counts for the next.
    const auto most = wall * static_cast<double>(engines_.size());
    const auto heard = std::min(busy_seconds - last_busy_, most);
    last_busy_ += heard;
    busy = heard / most;
    samples_ += static_cast<std::uint64_t>(l.sequences);
    samples_per_second = static_cast<double>(l.sequences) / wall;
    line = {{"step", s.version},
            {"weight_version", s.version},
            {"reward", l.reward},
            {"solved", l.success},
            {"staleness_mean", s.staleness_mean},
            {"staleness_max", s.staleness_max},
            {"samples_per_s", samples_per_second},
            {"tokens_per_s", static_cast<double>(s.tokens) / wall},
            {"engine_tokens_per_s", static_cast<double>(tokens - std::exchange(last_engine_tokens_, tokens)) / wall},
            {"engine_busy", busy},
            {"seconds", wall},
            {"seconds_wait_batch", s.seconds.wait_batch},
            {"seconds_train", s.seconds.train},
            {"seconds_publish", s.seconds.publish},
            {"seconds_checkpoint", s.seconds.checkpoint},
            {"loss", l.loss},
            {"gradient_norm", l.gradient_norm},
            {"clip_fraction", l.off_policy.clip_fraction},
            {"kl_behaviour", l.off_policy.kl_behaviour},
            {"importance_weight_mean", l.off_policy.importance_weight_mean},
            {"effective_sample_size", l.off_policy.effective_sample_size},
            {"entropy", l.entropy},
            {"lr", s.lr},
            {"samples", l.sequences},
            {"groups_trained", l.groups_trained},
            {"samples_trained", l.sequences_trained},
            {"tokens_trained", l.tokens_trained},
            {"buffer_waiting", buffer_.waiting},
            {"buffer_under_way", buffer_.under_way},
            {"buffer_bound", buffer_.bound},
            {"episodes_live", pool_.live},
            {"episodes_queued", pool_.queued},
            {"episodes_retried", pool_.retried},
            {"groups_dropped", pool_.dropped_groups},
            {"groups_stale", buffer_.stale},
            {"texts_without_token", parts_.lost->so_far().texts},
            {"weights_live", weights_.live},
            {"weights_live_seconds", weights_.live_seconds},
            {"weights_transfer_seconds", transfer_seconds_},
            {"weights_wire_bytes", wire_bytes_},
            {"weights_ratio", weight_ratio_},
            {"failed_steps", s.failed_steps},
            {"resident_mb", resident_megabytes()}};
    if (!s.failure.empty()) line["failure"] = s.failure;
  }
  if (auto written = files_.metrics.append(line); !written) files_.log.error("metrics: " + written.error().message);
  if (!s.failure.empty())
    tell_failure(s);
  else
    warn_of_equal_rewards(s);
  warn_of_losses();
  show(s, busy, samples_per_second);
}

void step_reporter::arrived(const arrived_weights& w) {
  std::lock_guard lock(mutex_);
  transfer_seconds_ = w.seconds;
  wire_bytes_ = w.wire_bytes;
  if (lane_ != w.lane) files_.log.info("weights come by " + (lane_ = w.lane));
  weight_ratio_ = w.wire_bytes == 0 ? 0 : static_cast<double>(w.bytes.size()) / static_cast<double>(w.wire_bytes);
}

void step_reporter::warn_of_losses() {
  std::lock_guard lock(mutex_);
  if (pool_.dropped_groups > told_dropped_) {
    told_dropped_ = std::max<std::uint64_t>(pool_.dropped_groups, told_dropped_ * 2);
    files_.log.warn(fmt::format("{} groups dropped so far; the latest episode failed because {}", pool_.dropped_groups,
                                pool_.last_failure));
  }
  if (!pool_.shortage.empty() && !std::exchange(told_shortage_, true))
    files_.log.warn(pool_.shortage + " (environment.sandboxes)");
  if (const auto lost = news_of_lost_text(parts_, false)) files_.log.warn(*lost);
  if (weights_.failures > told_weights_) {
    told_weights_ = weights_.failures;
    files_.log.warn("weights not taken: " + weights_.last_failure);
  }
}

void step_reporter::pool(const sandbox_pool_counts& c) {
  std::lock_guard lock(mutex_);
  pool_ = c;
  if (std::exchange(finished_, c.finished) != c.finished) dropped_then_ = c.dropped_groups;
}

std::optional<error> step_reporter::lost_cause() {
  std::lock_guard lock(mutex_);
  const auto lost = pool_.dropped_groups - dropped_then_;
  if (lost < config_.environment.most_dropped_groups) return std::nullopt;
  return error{errc::unavailable, fmt::format("every episode fails: {} groups in a row were dropped "
                                              "(environment.most_dropped_groups), the latest because {}",
                                              lost, pool_.last_failure)};
}

void step_reporter::show(const training_step& s, double busy, double samples_per_second) {
  const auto all = config_.trainer.steps;
  remaining_.update(static_cast<double>(s.version), std::chrono::duration<double>(clock::now() - began_).count());
  const auto left = remaining_.remaining();
  const auto text = fmt::format(
      "step {}/{}  reward {:.3f}  solved {:.1f} %  staleness {:.1f} (max {})  {:.0f} samples/s  engine {:.0f} % busy{}",
      s.version, all, s.learned.reward, 100 * s.learned.success, s.staleness_mean, s.staleness_max, samples_per_second,
      100 * busy, left ? "  " + format_duration(*left) + " left" : std::string());
  if (files_.screen.is_live()) return files_.screen.status(text);
  if (due(s.version)) files_.screen.line(text);
}

/// Once, and again when it went on ten times as long: steps that learn nothing look like any others.
void step_reporter::warn_of_equal_rewards(const training_step& s) {
  equal_steps_ = s.learned.groups_trained > 0 ? 0 : equal_steps_ + 1;
  if (equal_steps_ < tell_equal_at_) return;
  tell_equal_at_ *= 10;
  files_.log.warn(
      fmt::format("nothing was learned from the rewards of the last {} steps: all episodes of each task had equal "
                  "rewards (mean {:.3f}, {:.1f} % solved). The tasks may be "
                  "too hard or too easy for the model, or trainer.group_size ({}) too small",
                  equal_steps_, s.learned.reward, 100 * s.learned.success, config_.trainer.group_size));
}

/// Whether a step has a line of its own on a pipe: the first and the last one do.
bool step_reporter::due(weight_version version) {
  const auto now = clock::now();
  const auto mark = version * plain_lines / std::max<std::uint64_t>(config_.trainer.steps, 1);
  const auto past = now - shown_at_;
  const bool ends = version == config_.trainer.steps || version == start_ + 1;
  if (!ends && past < plain_most && (mark == shown_ || past < plain_least)) return false;
  shown_ = mark;
  shown_at_ = now;
  return true;
}

/// All failures are in the metrics; of many in a short time the log has some.
void step_reporter::tell_failure(const training_step& s) {
  const auto now = clock::now();
  if (told_failed_ > 0 && now - told_failed_at_ < failure_least) return;
  const auto untold = s.failed_steps - std::exchange(told_failed_, s.failed_steps) - 1;
  told_failed_at_ = now;
  files_.log.error(fmt::format("step {} failed: {}{}", s.version, s.failure,
                               untold > 0 ? fmt::format(" ({} more failed before it)", untold) : ""));
}

}  // namespace weir::app

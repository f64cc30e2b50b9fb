#include "weir/trainer/trainer.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "weir/policy/threads.hpp"

namespace weir {

namespace {

/// Seconds since `began`, which moves to now: stages follow one another without a gap.
double lap(std::chrono::steady_clock::time_point& began) {
  const auto now = std::chrono::steady_clock::now();
  return std::chrono::duration<double>(now - std::exchange(began, now)).count();
}

void measure_staleness(const training_batch& batch, training_step& step) {
  double sum = 0;
  std::int64_t count = 0;
  for (const auto& group : batch.groups)
    for (const auto& t : group.trajectories) {
      const auto age = batch.version - std::min(oldest_version(t, batch.version), batch.version);
      sum += static_cast<double>(age);
      ++count;
      step.staleness_max = std::max(step.staleness_max, age);
      step.tokens += std::accumulate(t.mask.begin(), t.mask.end(), std::int64_t{0});
    }
  if (count > 0) step.staleness_mean = sum / static_cast<double>(count);
}

published_form form_of(const causal_lm& model, const snapshot_writer& snapshots) {
  auto form = published_form::make(model.layout(), snapshots.layout().get());
  if (!form) throw std::invalid_argument("the model cannot be published: " + form.error().message);
  return std::move(*form);
}

}  // namespace

trainer::trainer(caf::actor_config& config, learner what, trainer_settings settings, snapshot_writer snapshots,
                 training_position start, trainer_hooks hooks, std::stop_token stop)
    : node(config),
      learner_(std::move(what)),
      settings_(settings),
      snapshots_(std::move(snapshots)),
      form_(form_of(learner_.model(), snapshots_)),
      hooks_(std::move(hooks)),
      stop_(std::move(stop)),
      version_(start.version),
      position_(std::move(start.data)) {}

trainer::~trainer() = default;

trainer_actor::behavior_type trainer::make_behavior() {
  // From here on it is the trainer's own thread.
  set_intra_op_threads(settings_.threads);
  return behave(
      [this] {
        if (started_) finish(version_);
        return drained{};
      },
      [this](const start_training&) {
        if (std::exchange(started_, true)) return;
        stage_began_ = clock::now();
        advance();
      });
}

/// Goes on to the next step, as far as it can without waiting.
void trainer::advance() {
  if (ended_ || waiting_) return;
  const bool last = version_ >= settings_.steps;
  if (!last && published_ != version_ && !publish()) return;  // goes on when a region is released
  if (!last) request_batch();
  // A checkpoint at the start would be a copy of where the run began.
  const bool due = settings_.checkpoint_every > 0 && version_ % settings_.checkpoint_every == 0 && unreported_;
  if (unreported_) unreported_->seconds.publish += lap(stage_began_);
  // Reported before it is kept: who goes on from the checkpoint finds every step up to it in the report.
  if (unreported_) {
    unreported_->seconds.checkpoint = std::exchange(checkpoint_seconds_, 0);
    hooks_.on_step(*std::exchange(unreported_, std::nullopt));
  }
  if (due && !last) {
    static_cast<void>(keep_checkpoint());
    checkpoint_seconds_ = lap(stage_began_);
  }
  if (last) finish(version_);
}

bool trainer::publish() {
  const auto into = snapshots_.next();
  if (into.empty()) return false;
  form_.write(learner_.model(), into);
  // The answer comes when the region is free again, however long engines read it.
  request(*versions_, caf::infinite, snapshots_.publish(version_))
      .then(
          [this](const weights_released& free) {
            snapshots_.released(free);
            advance();
          },
          [this](const caf::error& e) { refused(from_caf(e)); });
  published_ = version_;
  return true;
}

void trainer::request_batch() {
  waiting_ = true;
  request(*batches_, caf::infinite, next_batch{version_})
      .then([this](const training_batch& batch) { train(batch); },
            [this](const caf::error& e) { refused(from_caf(e)); });
}

/// The buffer or the store ended. If that is because the graph stops, it is no error; if not, the graph knows why.
void trainer::refused(const error& why) {
  if (why.code == errc::unavailable)
    finish(version_);
  else
    finish(fail(why));
}

void trainer::train(const training_batch& batch) {
  if (ended_) return;
  waiting_ = false;
  training_step step;
  step.seconds.wait_batch = lap(stage_began_);
  step.lr = settings_.lr.at(version_);
  step.waiting = batch.waiting;
  step.dropped = batch.dropped.size();
  measure_staleness(batch, step);
  auto learned = learner_.step(batch.groups, version_, step.lr, stop_);
  step.seconds.train = lap(stage_began_);
  // Stopped: the batch counts as not seen, and is made again when the run is resumed.
  if (!learned && learned.error().code == errc::unavailable) return finish(version_);
  for (const auto& group : batch.groups) position_.done(group.group);
  for (auto group : batch.dropped) position_.done(group);
  if (learned) {
    step.learned = *learned;
    failed_in_a_row_ = 0;
  } else {
    report_failure(step, learned.error());
  }
  step.failed_steps = failed_;
  step.version = ++version_;
  unreported_ = step;
  if (failed_in_a_row_ >= std::max<std::uint32_t>(settings_.most_failed_steps, 1)) {
    hooks_.on_step(*std::exchange(unreported_, std::nullopt));
    return finish(
        fail(errc::numeric, std::to_string(failed_in_a_row_) + " steps in a row failed, the last: " + step.failure));
  }
  advance();
}

void trainer::report_failure(training_step& step, const error& why) {
  ++failed_;
  ++failed_in_a_row_;
  step.failure = why.message;
}

result<void> trainer::keep_checkpoint() {
  if (!hooks_.checkpoint || kept_ == version_) return {};
  auto kept = hooks_.checkpoint(learner_, version_, position_);
  if (kept) kept_ = version_;
  return kept;
}

void trainer::finish(result<weight_version> outcome) {
  if (std::exchange(ended_, true)) return;
  if (unreported_) hooks_.on_step(*std::exchange(unreported_, std::nullopt));
  auto kept = keep_checkpoint();
  if (outcome && !kept) outcome = fail(kept.error());
  if (hooks_.on_end) hooks_.on_end(outcome);
}

}  // namespace weir

#pragma once
// What a training step looks like from outside: a line in metrics.jsonl and one on the screen.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "run_files.hpp"
#include "setup.hpp"
#include "weir/buffer/trajectory_buffer.hpp"
#include "weir/rollout/rollout_engine.hpp"
#include "weir/sandbox/sandbox_pool.hpp"
#include "weir/trainer/trainer.hpp"
#include "weir/weights/weight_links.hpp"
#include "weir/weights/weight_store.hpp"

namespace weir::app {

/// Collects what the actors' observers say, on their threads, and writes it down with each step. Thread-safe.
class step_reporter {
 public:
  step_reporter(const run_parts& parts, run_files& files, std::size_t engines, weight_version start);

  void engine(std::size_t i, const rollout_activity& a) { set(engines_[i], a); }
  void buffer(const buffer_fill& f) { set(buffer_, f); }
  void pool(const sandbox_pool_counts& c);
  void weights(const weight_store_state& s) { set(weights_, s); }
  void arrived(const arrived_weights& w);
  void notice(const std::string& what) { files_.log.warn("weights: " + what); }

  /// On the trainer's thread.
  void step(const training_step& s);

  std::uint64_t samples();

  /// Says once, and again when it went on, that episodes fail: a broken environment otherwise looks like a slow one.
  /// Also what else is amiss. From any thread, now and then.
  void warn_of_losses();

  /// Why nothing will come of it any more, if that is so: only failed episodes for `environment.most_dropped_groups`.
  std::optional<error> lost_cause();

 private:
  static constexpr std::uint64_t equal_steps_least = 10;
  using clock = std::chrono::steady_clock;
  template <class T>
  void set(T& place, const T& value) {
    std::lock_guard lock(mutex_);
    place = value;
  }
  void show(const training_step& s, double busy, double samples_per_second);
  bool due(weight_version version);
  void tell_failure(const training_step& s);
  void warn_of_equal_rewards(const training_step& s);

  const run_parts& parts_;
  const app_config& config_;
  run_files& files_;
  std::mutex mutex_;
  std::vector<rollout_activity> engines_;
  buffer_fill buffer_;
  sandbox_pool_counts pool_;
  weight_store_state weights_;
  double transfer_seconds_ = 0, weight_ratio_ = 0;  ///< of the version that came last; 0 where none crosses a transport
  std::uint64_t wire_bytes_ = 0;
  std::string lane_;
  std::uint64_t samples_ = 0;
  std::uint64_t told_dropped_ = 0, told_weights_ = 0;
  bool told_shortage_ = false;
  std::uint64_t finished_ = 0, dropped_then_ = 0;  ///< groups dropped when an episode last ended well

  // Of the trainer's thread alone.
  eta remaining_;
  const clock::time_point began_ = clock::now();
  weight_version start_;
  clock::time_point last_ = clock::now();
  double last_busy_ = 0;
  std::uint64_t last_engine_tokens_ = 0;
  std::uint64_t shown_ = 0;
  clock::time_point shown_at_{};
  std::uint64_t told_failed_ = 0;
  clock::time_point told_failed_at_{};
  std::uint64_t equal_steps_ = 0, tell_equal_at_ = equal_steps_least;  ///< in a row
};

}  // namespace weir::app

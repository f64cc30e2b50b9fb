#pragma once
// The actor that owns the sandboxes: it spends admission credits on groups, starts their episodes in free sandboxes,
// and sees to it that each episode ends: with a record, a retry, or its group dropped.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "weir/actors/interfaces.hpp"
#include "weir/sandbox/task_stream.hpp"

namespace weir {

struct sandbox_pool_settings {
  std::uint32_t sandboxes = 64;  ///< episodes at once, at least 1
  std::uint32_t group_size = 8;  ///< episodes a task, at least 1
  std::uint32_t max_turns = 1;   ///< an episode with as many turns is truncated
  std::uint32_t retries = 1;     ///< a failed episode is started again so many times; then its group is dropped
  std::chrono::milliseconds episode_timeout{600'000};
  sampling_params sampling;
  std::uint64_t seed = 0;
};

/// Counts since the start; told after every change, on the actor's thread.
struct sandbox_pool_counts {
  std::uint64_t live = 0;
  std::uint64_t queued = 0;  ///< episodes admitted that wait for a sandbox
  std::uint64_t finished = 0;
  std::uint64_t retried = 0;
  std::uint64_t dropped_groups = 0;
  std::string last_failure;  ///< why the latest failed episode failed
  std::string shortage;      ///< why there are fewer sandboxes than were asked for, if so
};

/// Makes one sandbox, whose `episode_ended` go to `pool`. Called on the pool's thread, at most `sandboxes` times plus
/// once for each that was lost.
using sandbox_factory = std::function<sandbox_actor(caf::actor_system& system, const sandbox_pool_actor& pool)>;

class sandbox_pool : public node<sandbox_pool_actor> {
 public:
  /// Whom the sandboxes ask for turns. Several engines share the episodes: each new one goes to the least loaded. One
  /// that ended gets no more; the episodes that it had fail, and are retried elsewhere.
  static constexpr port<sandbox_pool, generator_actor> engines{"engines"};
  /// Where episodes' records and the news of dropped groups go.
  static constexpr port<sandbox_pool, episode_sink> records{"records"};

  /// Groups that are done at `position` are passed over: a resumed run's data position.
  sandbox_pool(caf::actor_config& config, sandbox_pool_settings settings, std::shared_ptr<task_stream> tasks,
               sandbox_factory factory, data_position position = {},
               std::function<void(const sandbox_pool_counts&)> observer = {});

  sandbox_pool_actor::behavior_type make_behavior() override;
  void on_exit() override;

 protected:
  void connected(const std::string& port) override;

 private:
  using clock = std::chrono::steady_clock;
  struct running {
    episode_spec spec;
    std::size_t engine = 0;
    clock::time_point deadline;
  };
  struct group_state {
    std::uint32_t unfinished = 0;  ///< episodes not ended for good
    std::uint32_t live = 0;        ///< of those, in a sandbox
    weight_version admitted = 0;
    bool failed = false;
    std::string reason;
  };

  void admit(std::uint64_t groups, weight_version live);
  void start_waiting();
  bool make_sandbox();
  void start(episode_spec spec, std::size_t engine);
  std::optional<std::size_t> least_loaded() const;
  void ended(caf::actor_id sandbox, const std::string& failure);
  void give_up(group_state& group, const std::string& failure);
  void settle(std::uint64_t number);
  void lost(const caf::actor_addr& address);
  void check_deadlines();
  void observe();

  sandbox_pool_settings settings_;
  std::shared_ptr<task_stream> tasks_;
  sandbox_factory factory_;
  data_position done_;
  std::function<void(const sandbox_pool_counts&)> observer_;
  sandbox_pool_counts counts_;
  std::uint64_t next_group_ = 0;
  std::deque<episode_spec> waiting_;
  std::map<std::uint64_t, group_state> groups_;
  std::map<caf::actor_id, sandbox_actor> sandboxes_;
  std::vector<sandbox_actor> idle_;
  std::map<caf::actor_id, running> running_;
  struct engine_state {
    std::uint32_t load = 0;
    bool gone = false;
    bool suspect = false;  ///< its last episode failed: a retry goes elsewhere first, as its end may not be known yet
    std::pair<bool, std::uint32_t> rank() const noexcept { return {suspect, load}; }
  };
  std::vector<engine_state> engine_states_;  ///< as engines_.all()
  bool draining_ = false;
  promise<drained> drain_answer_;
  edge<generator_actor> engines_{*this, engines};
  edge<episode_sink> records_{*this, records};
};

}  // namespace weir

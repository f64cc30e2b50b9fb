#pragma once
// The bounded off-policy store between rollouts and trainer. It owns the admission credits: what it holds and what is
// under way together never exceed (max_staleness + 1) batches.

#include <functional>
#include <optional>

#include "weir/actors/interfaces.hpp"
#include "weir/buffer/staleness_ledger.hpp"

namespace weir {

/// What the buffer holds, told after every change; called on the actor's thread.
struct buffer_fill {
  std::uint64_t waiting = 0;    ///< complete groups
  std::uint64_t under_way = 0;  ///< groups admitted and not complete
  std::uint64_t bound = 0;      ///< what both together may reach
  std::uint64_t stale = 0;      ///< groups refused so far because they broke the staleness bound: a fault
};

class trajectory_buffer : public node<trajectory_buffer_actor> {
 public:
  /// Where admission credits go: the sandbox pool.
  static constexpr port<trajectory_buffer, admission_sink> admission{"admission"};

  trajectory_buffer(caf::actor_config& config, staleness_settings settings,
                    std::function<void(const buffer_fill&)> observer = {});

  trajectory_buffer_actor::behavior_type make_behavior() override;
  void on_exit() override;

 protected:
  void connected(const std::string& port) override;

 private:
  void grant(std::uint64_t groups);
  void serve();
  void observe();
  void stop_serving();

  staleness_ledger ledger_;
  std::function<void(const buffer_fill&)> observer_;
  weight_version live_ = 0;
  std::uint64_t ungranted_ = 0;  ///< credits that wait for the pool to be connected
  std::uint64_t stale_ = 0;
  std::vector<std::uint64_t> dropped_;
  std::optional<weight_version> asked_;
  promise<training_batch> answer_;
  bool draining_ = false;
  edge<admission_sink> admission_{*this, admission};
};

}  // namespace weir

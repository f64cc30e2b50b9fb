#pragma once
// Tells engines of new weight versions, knows which one each of them holds, and gives regions back to the trainer.
// The weights themselves never pass here.

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "weir/actors/interfaces.hpp"

namespace weir {

struct weight_store_settings {
  /// An engine that could not take a version tries again, later each time; after so many failures in a row it is ended.
  std::uint32_t attempts = 5;
  std::chrono::milliseconds first_retry{50};
};

/// What the store knows, told after every change, on the actor's thread.
struct weight_store_state {
  weight_version published = 0;
  weight_version live = 0;     ///< what every engine holds, or newer
  std::uint64_t failures = 0;  ///< adoptions that failed
  std::string last_failure;
  double live_seconds = 0;  ///< from when `live` was published until every engine had adopted it
};

/// Each engine is sent one version at a time, always the newest: an engine that is slow skips those between. A
/// version's region is released once no engine holds it, takes it, or could still be sent it.
class weight_store : public node<weight_store_actor> {
 public:
  /// The rollout engines. One that is connected late is sent the newest version.
  static constexpr port<weight_store, weight_reader> engines{"engines"};
  /// Who hears that every engine holds a version: the trajectory buffer.
  static constexpr port<weight_store, weight_listener> listeners{"listeners"};

  explicit weight_store(caf::actor_config& config, weight_store_settings settings = {},
                        std::function<void(const weight_store_state&)> observer = {});

  weight_store_actor::behavior_type make_behavior() override;
  void on_exit() override;

 protected:
  void connected(const std::string& port) override;

 private:
  struct reader {
    weight_reader handle;
    std::optional<weight_version> holds;
    std::optional<weight_version> taking;
    std::uint32_t failures = 0;
  };
  struct version_state {
    promise<weights_released> answer;
    bool spoiled = false;
    std::chrono::steady_clock::time_point published{};
  };
  void offer(caf::actor_id id);
  void adopted(caf::actor_id id, const weights_adopted& news);
  void refused(caf::actor_id id, weight_version version, const error& why);
  void settle();

  weight_store_settings settings_;
  std::function<void(const weight_store_state&)> observer_;
  weight_store_state state_;
  bool live_known_ = false;
  std::map<caf::actor_id, reader> readers_;
  std::map<weight_version, version_state> versions_;
  edge<weight_reader> engines_{*this, engines};
  edge<weight_listener> listeners_{*this, listeners};
};

}  // namespace weir

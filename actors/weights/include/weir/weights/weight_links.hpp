#pragma once
// The actors at the two ends of a broadcast. Beside the trainer, a `weight_uplink` stands at the weight store as one
// more reader: it has a version when every receiver elsewhere reads it. Where engines are, a `weight_downlink` brings
// versions onto the process's shelf and publishes them to a weight store of that process, as the trainer does to its
// own.
//
// The bytes are moved by a thread of each actor's own, which waits on the transport; the actor itself only answers.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weir/actors/interfaces.hpp"
#include "weir/weights/broadcast.hpp"
#include "weir/weights/snapshots.hpp"

namespace weir {

/// A broadcast's source with the thread that runs it. Made before the actor, since the trainer's regions come from it.
class broadcast_sender {
 public:
  struct handlers {
    std::function<void(const broadcast_report&)> on_delivered;  ///< from the thread
    std::function<void(const std::string&)> on_notice;          ///< from the thread
  };
  static result<std::shared_ptr<broadcast_sender>> make(const transport_maker& maker, broadcast_settings settings,
                                                        handlers h = {});
  ~broadcast_sender();
  const std::string& address() const noexcept;
  /// From any thread; the memory stays usable after this object.
  result<std::shared_ptr<region>> allocate();

 private:
  friend class weight_uplink;
  struct state;
  explicit broadcast_sender(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

class weight_uplink : public node<weight_uplink_actor> {
 public:
  /// `shelf` is the trainer's, with regions that `from` allocated.
  weight_uplink(caf::actor_config& config, std::shared_ptr<broadcast_sender> from,
                std::shared_ptr<const weight_shelf> shelf);
  weight_uplink_actor::behavior_type make_behavior() override;
  void on_exit() override;

 private:
  void moved(const weights_moved& news);
  void answer_if_done();
  std::shared_ptr<broadcast_sender> sender_;
  std::shared_ptr<const weight_shelf> shelf_;
  std::optional<weight_version> taking_;
  promise<weights_adopted> answer_;
  std::vector<weight_version> unreleased_, spoiled_;
  bool adopted_ = false;
};

struct weight_downlink_observer {
  std::function<void(const arrived_weights&)>
      on_arrived;  ///< from the actor's thread for bytes; the content is not to be kept
  std::function<void(const std::string&)> on_notice;  ///< from that thread
};

class weight_downlink : public node<weight_downlink_actor> {
 public:
  /// The weight store of this process. Its listener port leads back here: it says what the engines read.
  static constexpr port<weight_downlink, weight_sink> versions{"versions"};

  /// Connects to the source of settings.source when it starts; an error there ends the actor with it.
  weight_downlink(caf::actor_config& config, transport_maker maker, receiver_settings settings,
                  std::shared_ptr<weight_shelf> shelf, weight_downlink_observer observer = {});
  ~weight_downlink() override;
  weight_downlink_actor::behavior_type make_behavior() override;
  void on_exit() override;

 private:
  struct state;
  std::unique_ptr<state> state_;
  edge<weight_sink> versions_{*this, versions};
};

}  // namespace weir

#pragma once
// The typed interfaces of all of Weir's actors, and the registration of their message types. What each message means
// stands in messages.hpp. An interface that is only a part of an actor's (`..._sink`) is what an output port asks for:
// an actor of one's own that answers it can stand in the place of ours.

#include "weir/actors/messages.hpp"

namespace weir {

// What ports ask for.
using generator_actor = interface<on<generation(generate_request)>>;
using admission_sink = interface<on<void(grant_admission)>>;
using episode_sink = interface<on<void(episode_record)>, on<void(group_dropped)>>;
using group_sink = interface<on<void(trajectory_group)>, on<void(group_dropped)>>;
using batch_source = interface<on<training_batch(next_batch)>>;
using weight_reader = interface<on<weights_adopted(adopt_weights)>>;
using weight_sink = interface<on<weights_released(publish_weights)>>;
using weight_listener = interface<on<void(weights_live)>>;

// The actors.
using rollout_engine_actor = node_interface<on<generation(generate_request)>, on<weights_adopted(adopt_weights)>,
                                            on<void(weights_prepared)>, on<void(tick)>>;
using sandbox_pool_actor = node_interface<on<void(grant_admission)>, on<void(episode_ended)>, on<void(tick)>>;
using group_assembly_actor = node_interface<on<void(episode_record)>, on<void(group_dropped)>>;
using trajectory_buffer_actor = node_interface<on<void(trajectory_group)>, on<void(group_dropped)>,
                                               on<training_batch(next_batch)>, on<void(weights_live)>>;
using weight_store_actor = node_interface<on<weights_released(publish_weights)>, on<void(tick)>>;
using weight_uplink_actor = node_interface<on<weights_adopted(adopt_weights)>, on<void(weights_moved)>>;
using weight_downlink_actor = node_interface<on<void(weights_live)>, on<void(weights_moved)>>;
using trainer_actor = node_interface<on<void(start_training)>>;

/// Sandbox pool -> sandbox: run this episode. The sandbox asks `engine` for the model's turns, sends the record to
/// `records` and `episode_ended` to the pool, whatever happens. One at a time. A sandbox whose environment is isolated
/// in another process is another actor with this interface.
struct run_episode {
  episode_spec spec;
  sampling_params sampling;
  std::uint32_t max_turns = 1;
  generator_actor engine;
  episode_sink records;
};

/// Sandbox pool -> sandbox: the episode's deadline has passed. The sandbox stops as soon as it can; what it still sends
/// of that episode is ignored.
struct cancel_episode {
  std::uint64_t group = 0;
  std::uint32_t sample = 0;
  std::uint32_t attempt = 0;
};

template <class Inspector>
auto inspect(Inspector& f, run_episode& x) {
  return inspect_fields(f, "run_episode", x.spec, x.sampling, x.max_turns, x.engine, x.records);
}
template <class Inspector>
auto inspect(Inspector& f, cancel_episode& x) {
  return inspect_fields(f, "cancel_episode", x.group, x.sample, x.attempt);
}

using sandbox_actor = interface<on<void(run_episode)>, on<void(cancel_episode)>>;

}  // namespace weir

CAF_BEGIN_TYPE_ID_BLOCK(weir_actors, caf::first_custom_type_id + 50)
CAF_ADD_TYPE_ID(weir_actors, (weir::sampling_params))
CAF_ADD_TYPE_ID(weir_actors, (weir::episode_spec))
CAF_ADD_TYPE_ID(weir_actors, (weir::trajectory))
CAF_ADD_TYPE_ID(weir_actors, (weir::trajectory_group))
CAF_ADD_TYPE_ID(weir_actors, (weir::generate_request))
CAF_ADD_TYPE_ID(weir_actors, (weir::generation))
CAF_ADD_TYPE_ID(weir_actors, (weir::grant_admission))
CAF_ADD_TYPE_ID(weir_actors, (weir::episode_record))
CAF_ADD_TYPE_ID(weir_actors, (weir::episode_ended))
CAF_ADD_TYPE_ID(weir_actors, (weir::group_dropped))
CAF_ADD_TYPE_ID(weir_actors, (weir::next_batch))
CAF_ADD_TYPE_ID(weir_actors, (weir::training_batch))
CAF_ADD_TYPE_ID(weir_actors, (weir::start_training))
CAF_ADD_TYPE_ID(weir_actors, (weir::publish_weights))
CAF_ADD_TYPE_ID(weir_actors, (weir::weights_released))
CAF_ADD_TYPE_ID(weir_actors, (weir::adopt_weights))
CAF_ADD_TYPE_ID(weir_actors, (weir::weights_adopted))
CAF_ADD_TYPE_ID(weir_actors, (weir::weights_live))
CAF_ADD_TYPE_ID(weir_actors, (weir::run_episode))
CAF_ADD_TYPE_ID(weir_actors, (weir::cancel_episode))
CAF_ADD_TYPE_ID(weir_actors, (weir::tick))
CAF_ADD_TYPE_ID(weir_actors, (weir::weights_prepared))
CAF_ADD_TYPE_ID(weir_actors, (weir::weights_moved))
CAF_END_TYPE_ID_BLOCK(weir_actors)

#pragma once
// How weights come from the trainer to the engines of a run, by the config's section `weights`.

#include <optional>

#include "app_config.hpp"
#include "run_files.hpp"
#include "weir/actors/manifest.hpp"
#include "weir/transport/load.hpp"
#include "weir/weights/weight_links.hpp"

namespace weir::app {

/// Versions in the trainer's memory where they are sent on: one that is read, one that a delta starts from, one that
/// waits, and one that is written.
inline constexpr std::size_t snapshots_at_trainer = 4;

/// The transport of `weights.transport`, with its options; none for "inproc". Errors name the field.
result<std::optional<known_transport>> weight_transport(const app_config& config);

struct weight_path {
  std::shared_ptr<weight_shelf> written;  ///< what the trainer publishes
  std::shared_ptr<weight_shelf> read;     ///< what engines read: the same, or what came over the transport
  snapshot_writer writer;
  std::shared_ptr<broadcast_sender> sender;  ///< null where engines read the trainer's memory
  transport_maker maker;
  receiver_settings receiver;
};

/// `layout` is the model's, in fp32. Errors name the config's field.
result<weight_path> make_weight_path(const app_config& config, const manifest& layout, logger& log);

}  // namespace weir::app

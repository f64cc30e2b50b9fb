#pragma once
// How weights come from the trainer to the engines of a run, by the config's section `weights`.

#include "app_config.hpp"
#include "run_files.hpp"
#include "weir/actors/manifest.hpp"
#include "weir/weights/weight_links.hpp"

namespace weir::app {

struct weight_path {
  std::shared_ptr<weight_shelf> written;       ///< what the trainer publishes
  std::shared_ptr<weight_shelf> read;          ///< what engines read: the same, or what came over the transport
  snapshot_writer writer;
  std::shared_ptr<broadcast_sender> sender;    ///< null where engines read the trainer's memory
  transport_maker maker;
  receiver_settings receiver;
};

/// `layout` is the model's, in fp32. Errors name the config's field.
result<weight_path> make_weight_path(const app_config& config, const manifest& layout, logger& log);

}  // namespace weir::app

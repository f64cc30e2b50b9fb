#pragma once
#include "setup.hpp"
#include "weir/trainer/learner.hpp"

namespace weir::app {

/// A learner for `model` with the config's settings.
learner make_learner(const app_config& config, causal_lm model);

}  // namespace weir::app

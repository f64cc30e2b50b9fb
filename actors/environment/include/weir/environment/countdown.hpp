#pragma once
// Countdown, small enough for one core: write an expression that uses each of three digits once and hits a target.

#include "weir/environment/environment.hpp"

namespace weir {

/// The environment "countdown"; see countdown.cpp, which is meant to be copied.
environment_type countdown();

}  // namespace weir

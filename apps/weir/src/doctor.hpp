#pragma once

namespace weir::app {

/// Says what of this machine Weir can use for moving weights, how fast, and what to do about what is amiss. Exit code: 1 if
/// a transport that is there does not work.
int doctor(bool json);

}  // namespace weir::app

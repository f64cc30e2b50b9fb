#pragma once
// The same bytes as plain CAF messages over its middleman, to one process.

#include <cstdint>
#include <string>
#include <vector>

#include "weir/transport/result.hpp"

namespace weir::bench {

/// Seconds of the best of `rounds` rounds in which `bytes` went as messages of 8 MiB, each answered.
result<double> measure_caf(const std::string& program, std::uint64_t bytes, int rounds);

/// The receiving process.
int run_caf_receiver();

}  // namespace weir::bench

#pragma once
// What others do with the same bytes on this machine, where they are installed. Each runs in processes of its own and
// prints seconds.

#include <cstdint>
#include <optional>
#include <string>

#include "weir/transport/result.hpp"

namespace weir::bench {

/// "gloo", "mpi", "caf": seconds of the best round. Error: not_found, with what to install.
result<double> measure_peer(const std::string& peer, const std::string& program, std::uint64_t bytes,
                            std::size_t receivers, int rounds);

/// Bytes a second that iperf3 moves over loopback with so many streams.
result<double> measure_iperf(std::size_t streams);

/// Bytes a second of ucx_perftest over loopback, the better of its tag and active-message bandwidth tests, messages of
/// `bytes`, under UCX's variables as they are set now.
result<double> measure_ucx_perftest(std::uint64_t bytes);

}  // namespace weir::bench

#pragma once
// The transport within one process: regions are mapped, so that "sending" weights costs nothing.

#include <memory>

#include "weir/transport/transport.hpp"

namespace weir {

/// What transports of one process share to see one another; no global. Thread-safe.
class inproc_fabric;

std::shared_ptr<inproc_fabric> make_inproc_fabric();

/// Another transport on the fabric. Each belongs to its own thread; the fabric connects them.
std::unique_ptr<transport> make_inproc_transport(std::shared_ptr<inproc_fabric> fabric,
                                                 transport_handlers handlers = {});

/// The same as a maker.
transport_maker inproc_maker(std::shared_ptr<inproc_fabric> fabric);

}  // namespace weir

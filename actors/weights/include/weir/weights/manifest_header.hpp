#pragma once
// A manifest as text, to be sent ahead of the bytes that it describes: the JSON header of the safetensors format
// (github.com/huggingface/safetensors), so that any reader of that format knows what it finds.

#include <string>

#include "weir/actors/manifest.hpp"
#include "weir/transport/result.hpp"

namespace weir {

/// The size of the whole buffer, which may be longer than its last tensor, stands in `__metadata__` as "bytes".
std::string to_header(const manifest& m);

/// Error: invalid_data (no such JSON, an unknown type, a place that does not fit the shape, lies outside the buffer, or
/// overlaps another).
result<manifest> read_header(const std::string& text);

}  // namespace weir

#pragma once
#include <filesystem>

#include "weir/actors/verification.hpp"
#include "weir/transport/result.hpp"

namespace weir {

/// Holds objectives, advantages and diagnostics against reference values in float64, in the form of the file
/// tests/fixtures/objectives/golden.json. Tolerance 1e-10, on losses and gradients.
result<verification> verify_objectives(const std::filesystem::path& golden_json);

}  // namespace weir

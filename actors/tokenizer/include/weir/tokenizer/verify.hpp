#pragma once
#include <filesystem>

#include "weir/actors/verification.hpp"
#include "weir/transport/result.hpp"

namespace weir {

/// Holds a tokenizer against reference values: a JSON array of {"text", "ids", "decoded", "decoded_skip_special"}.
result<verification> verify_tokenizer(const std::filesystem::path& tokenizer_json,
                                      const std::filesystem::path& golden_json);

}  // namespace weir

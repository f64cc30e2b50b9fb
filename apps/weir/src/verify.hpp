#pragma once
#include <string>

#include "weir/actors/verification.hpp"
#include "weir/transport/result.hpp"

namespace weir::app {

/// Prints each check with its difference and tolerance. Exit code: 0 if all hold, 1 if one does not or files can't be
/// read.
int show_verification(const result<verification>& outcome);

result<verification> verify_policy_files(const std::string& directory);
result<verification> verify_tokenizer_files(const std::string& tokenizer_json, const std::string& golden_json);
result<verification> verify_objectives_file(const std::string& golden_json);

}  // namespace weir::app

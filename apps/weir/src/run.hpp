#pragma once
// A run from beginning to end: warm start, evaluation, training, evaluation.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "setup.hpp"

namespace weir::app {

/// `weir train`: a new run of `config`, whose file is called `name` (for the run directory). Returns the exit code.
int start_run(const app_config& config, const std::string& name, const environment_registry& known);

/// `weir resume`: goes on with the run in `folder`, with more steps if `steps` says so.
int resume_run(const std::filesystem::path& folder, std::optional<std::uint64_t> steps,
               const environment_registry& known);

/// `weir eval`: the greedy accuracy of a model directory, a checkpoint, or a run directory's newest checkpoint.
int evaluate_model(const app_config& config, const environment_registry& known, bool json);

/// `code`, if all that was printed has arrived; else 1 at least, and stderr says why. A reader that went away
/// (weir train --fields | head) had what it wanted.
int printed(int code);

/// Says on stderr what memory a run, or an evaluation, will hold if that may be more than there is, or in any case if
/// it is to be `shown`. An error if it is more than there is at all.
result<void> look_at_memory(const run_parts& parts, bool training, bool shown = false);

/// Prints what went wrong to stderr; the exit code for it.
int report(const error& e);

/// The same for what is wrong with the command line or the config: 2, whatever the kind of the error.
int refuse(const error& e);

}  // namespace weir::app

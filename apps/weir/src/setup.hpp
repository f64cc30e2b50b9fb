#pragma once
// From a config to what a run is made of, everything checked that can be before the first step.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app_config.hpp"
#include "weir/actors/types.hpp"
#include "weir/environment/environment.hpp"
#include "weir/policy/causal_lm.hpp"
#include "weir/tokenizer/lost_text.hpp"
#include "weir/tokenizer/tokenizer.hpp"

namespace weir::app {

/// Reads a config file, then `overrides` of the form a.b=value. model.path and the task files are relative to the
/// config's folder, unless an override gave them: then to the working directory.
result<app_config> read_app_config(const std::filesystem::path& file, const std::vector<std::string>& overrides);

/// What does not change during a run.
struct run_parts {
  app_config config;
  causal_lm_config model;
  std::shared_ptr<const tokenizer> text;
  std::shared_ptr<lost_text> lost = std::make_shared<lost_text>();  ///< what the tokenizer could not say; this grows
  environment_type environment;
  std::vector<std::string> train_tasks;
  std::vector<std::string> eval_tasks;  ///< may be empty
  sampling_params sampling;             ///< for training

  sampling_params greedy() const {
    auto params = sampling;
    params.temperature = 0;
    params.top_p = 1;
    params.top_k = 0;
    return params;
  }
};

/// Errors name the field or the file.
result<run_parts> prepare(const app_config& config, const environment_registry& known);

/// A warning, once, that text was left out: what, and of which task. `eval`: it was at work on the held-back ones.
std::optional<std::string> news_of_lost_text(const run_parts& parts, bool eval);

/// In the end: how much it was. Nothing if it was no more than the first text.
std::optional<std::string> all_lost_text(const run_parts& parts);

/// The model as a run begins: random, or from its files.
result<causal_lm> first_model(const run_parts& parts);

}  // namespace weir::app

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "bench.hpp"
#include "doctor.hpp"
#include "run.hpp"
#include "verify.hpp"
#include "weir/app/main.hpp"
#include "weir/policy/threads.hpp"
#include "weir/runtime/names.hpp"

namespace weir::app {

namespace {

/// What the command line gave; each command reads its own.
struct arguments {
  std::string config;
  std::vector<std::string> set;
  std::string run_dir;
  std::string path, golden;
  std::uint64_t steps = 0;
  bool dry_run = false, fields = false, json = false;
};

int train(const arguments& a, const environment_registry& known) {
  if (a.fields) {
    std::fputs(document_config<app_config>().c_str(), stdout);
    return 0;
  }
  if (a.config.empty())
    return report({errc::invalid_config, "train: name a config file, such as apps/weir/configs/countdown.json"});
  auto config = read_app_config(a.config, a.set);
  if (!config) return refuse(config.error());
  if (!a.run_dir.empty()) config->run_dir = a.run_dir;
  if (a.dry_run) {
    auto parts = prepare(*config, known);
    if (!parts) return refuse(parts.error());
    if (auto fits = look_at_memory(*parts, true, true); !fits) return refuse(fits.error());
    // A path of the command line may be no UTF-8.
    std::printf("%s\n",
                config_to_json(*config).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    return 0;
  }
  return start_run(*config, std::filesystem::path(a.config).stem().string(), known);
}

int evaluate(const arguments& a, const environment_registry& known) {
  auto config = read_app_config(a.config, a.set);
  if (!config) return refuse(config.error());
  if (!a.path.empty()) {
    config->model.path = a.path;
    config->model.random_init = false;
  }
  return evaluate_model(*config, known, a.json);
}

void add_config(CLI::App* command, arguments& a, bool required) {
  auto* file = command->add_option("config", a.config, "JSON config file");
  if (required) file->required();
  command->add_option("--set", a.set, "override a field: --set trainer.lr=1e-4 (may be repeated)")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

std::string list_of(const std::vector<std::string>& names) {
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

/// The first word that a command line has and no command takes, with what may have been meant. The parser itself says
/// that a command is missing where one is mistyped.
std::optional<std::string> unknown_word(const CLI::App& app) {
  const auto* level = &app;
  std::string command = app.get_name();
  while (!level->get_subcommands().empty()) {
    level = level->get_subcommands().front();
    command += " " + level->get_name();
  }
  const auto left = level->remaining();
  if (left.empty()) return std::nullopt;
  const auto word = left.front().substr(0, left.front().starts_with("-") ? left.front().find('=') : std::string::npos);
  std::vector<std::string> names;
  if (word.starts_with("-")) {
    for (const auto* option : level->get_options())
      for (const auto& name : option->get_lnames()) names.push_back(name);
    const auto meant = nearest_name(
        word.substr(word.find_first_not_of('-') == std::string::npos ? 0 : word.find_first_not_of('-')), names);
    return command + " has no option " + word +
           (meant ? "; did you mean --" + *meant + "?" : "; " + command + " --help lists what it has");
  }
  for (const auto* one : level->get_subcommands([](const CLI::App*) { return true; })) names.push_back(one->get_name());
  if (names.empty()) return command + " takes no further argument, found \"" + word + "\"";
  const auto meant = nearest_name(word, names);
  return "unknown command \"" + word + "\"" +
         (meant ? "; did you mean " + *meant + "?" : "; " + command + " has " + list_of(names));
}

/// The exit code of a command line that runs nothing: help was asked for, or it is wrong.
int end_parse(const CLI::App& app, const CLI::ParseError& e) {
  const auto code = static_cast<CLI::ExitCodes>(e.get_exit_code());
  const bool looked_for = code == CLI::ExitCodes::RequiredError || code == CLI::ExitCodes::ExtrasError;
  if (const auto unknown = looked_for ? unknown_word(app) : std::nullopt)
    return refuse({errc::invalid_argument, *unknown});
  return app.exit(e) == 0 ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv, const environment_registry& known) {
  // A reader that goes away (weir train | head) is no reason to end a run.
  std::signal(SIGPIPE, SIG_IGN);
  keep_freed_memory();
  arguments a;
  CLI::App app("Weir: asynchronous reinforcement learning of language models");
  app.name("weir");
  app.set_version_flag("--version", WEIR_VERSION);
  app.require_subcommand(1);

  auto* train_command = app.add_subcommand("train", "train a model as a config says");
  add_config(train_command, a, false);
  train_command->add_option("--run-dir", a.run_dir, "where the run leaves its files (default: runs/NAME-N)");
  train_command->add_flag(
      "--dry-run", a.dry_run,
      "check everything, print the whole resolved config (and to stderr an estimate of its memory), and stop");
  train_command->add_flag("--fields", a.fields, "list every config field with its default, bounds and meaning");

  auto* resume_command = app.add_subcommand("resume", "go on with a run that was stopped");
  resume_command->add_option("run", a.path, "run directory")->required();
  auto* steps = resume_command->add_option("--steps", a.steps, "train until this step instead of the config's")
                    ->check(CLI::PositiveNumber);

  auto* eval_command = app.add_subcommand("eval", "greedy accuracy of a model on a config's held-back tasks");
  add_config(eval_command, a, true);
  eval_command->add_option("--model", a.path, "HF directory or checkpoint (default: the config's model.path)");
  eval_command->add_flag("--json", a.json, "for machines");

  auto* verify_command = app.add_subcommand("verify", "hold Weir's results against reference values");
  verify_command->require_subcommand(1);
  auto* policy = verify_command->add_subcommand("policy", "a model directory with golden.safetensors and golden.json");
  policy->add_option("directory", a.path)->required();
  auto* text = verify_command->add_subcommand("tokenizer", "a tokenizer.json");
  text->add_option("tokenizer_json", a.path)->required();
  text->add_option("golden_json", a.golden)->required();
  auto* objectives = verify_command->add_subcommand("objectives", "losses, gradients and advantages");
  objectives->add_option("golden_json", a.golden)->required();

  auto* bench_command =
      app.add_subcommand("bench", "run a benchmark: weir bench NAME [OPTIONS]; without a name, list them");
  bench_command->prefix_command();  // what follows is the benchmark's
  bench_command->footer(
      "Every benchmark takes --json (for machines), --check (exit 1 and name the figures that fall short of their\n"
      "targets) and --quick (shorter, less exact). weir bench NAME --help lists what else one takes.");

  auto* doctor_command = app.add_subcommand("doctor", "what of this machine weights can move by, and what is amiss");
  doctor_command->add_flag("--json", a.json, "for machines");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return printed(end_parse(app, e));
  }
  const auto chosen = [&]() -> int {
    if (train_command->parsed()) return train(a, known);
    if (resume_command->parsed())
      return resume_run(a.path, steps->count() > 0 ? std::optional(a.steps) : std::nullopt, known);
    if (eval_command->parsed()) return evaluate(a, known);
    if (policy->parsed()) return show_verification(verify_policy_files(a.path));
    if (text->parsed()) return show_verification(verify_tokenizer_files(a.path, a.golden));
    if (objectives->parsed()) return show_verification(verify_objectives_file(a.golden));
    if (doctor_command->parsed()) return doctor(a.json);
    return bench(bench_command->remaining());
  };
  try {
    return printed(chosen());
  } catch (const std::exception& e) {  // no memory, or a fault of libtorch's outside any actor
    return report({errc::internal, first_line(e.what())});
  }
}

}  // namespace weir::app

#pragma once
// What the tests of the program `weir` share.

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "child.hpp"
#include "weir/policy/safetensors.hpp"
#include "weir/runtime/files.hpp"

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using weir::testing::child;

inline const std::string countdown = std::string(WEIR_CONFIGS) + "/countdown.json";

/// A folder of its own, gone at the end.
struct scratch {
  fs::path path;
  scratch() {
    static int count = 0;
    path = fs::temp_directory_path() / ("weir-app-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
    fs::create_directories(path);
  }
  ~scratch() { fs::remove_all(path); }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
};

struct outcome {
  int code = 0;
  std::string output;
  bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
};

/// `output` has stderr too, unless that goes to a file of its own.
inline outcome weir_run(const scratch& place, std::vector<std::string> words, const std::string& errors = {}) {
  words.insert(words.begin(), WEIR_PROGRAM);
  child c(std::move(words), place / "output.txt", errors);
  const int code = c.wait(120s);
  return {code, c.output()};
}

/// A script of the shell, in the place's folder; its "$0" is the program.
inline outcome shell_run(const scratch& place, const std::string& script) {
  child c({"/bin/sh", "-c", "cd '" + place.path.string() + "' && " + script, WEIR_PROGRAM}, place / "output.txt");
  const int code = c.wait(60s);
  return {code, c.output()};
}

/// `weir train` on Countdown, small enough for a test; further overrides come last.
inline std::vector<std::string> small_run(const std::string& run_dir, const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> words{"train", countdown, "--run-dir", run_dir};
  for (const char* o :
       {"warm_start.steps=60", "warm_start.batch=64", "warm_start.lr=5e-3", "warm_start.lr_warmup_steps=5",
        "trainer.steps=6", "trainer.batch_groups=4", "trainer.group_size=4", "trainer.max_staleness=0",
        "trainer.lr_decay=constant", "tasks.eval_count=16", "checkpoints.every=0"}) {
    words.emplace_back("--set");
    words.emplace_back(o);
  }
  for (const auto& o : overrides) {
    words.emplace_back("--set");
    words.push_back(o);
  }
  return words;
}

inline std::vector<nlohmann::json> metrics(const std::string& run_dir) {
  std::vector<nlohmann::json> lines;
  auto read = weir::read_jsonl_file(fs::path(run_dir) / "metrics.jsonl");
  REQUIRE(read);
  for (const auto& line : *read) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// The lines of training steps, without what depends on the clock.
inline std::vector<nlohmann::json> steps(const std::string& run_dir) {
  std::vector<nlohmann::json> out;
  for (auto line : metrics(run_dir)) {
    if (!line.contains("reward")) continue;
    CHECK(line["engine_busy"].get<double>() <= 1);
    CHECK(line["engine_busy"].get<double>() >= 0);
    for (const char* key : {"loss", "gradient_norm", "reward", "solved", "entropy", "kl_behaviour"})
      REQUIRE(line.contains(key));
    nlohmann::json kept;
    for (const char* key : {"step", "loss", "gradient_norm", "reward", "solved", "entropy", "kl_behaviour",
                            "tokens_trained", "staleness_max"})
      kept[key] = line[key];
    out.push_back(kept);
  }
  return out;
}

inline std::string newest_checkpoint(const std::string& run_dir) {
  std::vector<std::string> all;
  for (const auto& entry : fs::directory_iterator(fs::path(run_dir) / "checkpoints"))
    all.push_back(entry.path().string());
  REQUIRE_FALSE(all.empty());
  return *std::max_element(all.begin(), all.end());
}

/// The bytes of every tensor of a learner's state.
inline std::map<std::string, std::string> learner_state(const std::string& checkpoint) {
  auto file = weir::safetensors_file::open(fs::path(checkpoint) / "learner.safetensors");
  REQUIRE(file);
  std::map<std::string, std::string> out;
  for (const auto& [name, e] : file->entries())
    out[name] = {reinterpret_cast<const char*>(e.bytes.data()), e.bytes.size()};
  out["step"] = file->metadata().at("step");
  return out;
}

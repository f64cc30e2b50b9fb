// The program `weir` from outside: what its users do, and what they do wrong.
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

namespace {

const std::string countdown = std::string(WEIR_CONFIGS) + "/countdown.json";

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

outcome weir_run(const scratch& place, std::vector<std::string> words, std::chrono::milliseconds longest = 120s) {
  words.insert(words.begin(), WEIR_PROGRAM);
  child c(std::move(words), place / "output.txt");
  const int code = c.wait(longest);
  return {code, c.output()};
}

/// `weir train` on Countdown, small enough for a test; further overrides come last.
std::vector<std::string> small_run(const std::string& run_dir, const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> words{"train", countdown, "--run-dir", run_dir};
  for (const char* o : {"warm_start.steps=60", "warm_start.batch=64", "warm_start.lr=5e-3", "warm_start.lr_warmup_steps=5", "trainer.steps=6", "trainer.batch_groups=4", "trainer.group_size=4",
                        "trainer.max_staleness=0", "trainer.lr_decay=constant", "tasks.eval_count=16", "checkpoints.every=0"}) {
    words.emplace_back("--set");
    words.emplace_back(o);
  }
  for (const auto& o : overrides) {
    words.emplace_back("--set");
    words.push_back(o);
  }
  return words;
}

std::vector<nlohmann::json> metrics(const std::string& run_dir) {
  std::vector<nlohmann::json> lines;
  auto read = weir::read_jsonl_file(fs::path(run_dir) / "metrics.jsonl");
  REQUIRE(read);
  for (const auto& line : *read) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// The lines of training steps, without what depends on the clock.
std::vector<nlohmann::json> steps(const std::string& run_dir) {
  std::vector<nlohmann::json> out;
  for (auto line : metrics(run_dir)) {
    if (!line.contains("reward")) continue;
    CHECK(line["engine_busy"].get<double>() <= 1);
    CHECK(line["engine_busy"].get<double>() >= 0);
    for (const char* key : {"loss", "gradient_norm", "reward", "solved", "entropy", "kl_behaviour"}) REQUIRE(line.contains(key));
    nlohmann::json kept;
    for (const char* key : {"step", "loss", "gradient_norm", "reward", "solved", "entropy", "kl_behaviour", "tokens_trained", "staleness_max"}) kept[key] = line[key];
    out.push_back(kept);
  }
  return out;
}

std::string newest_checkpoint(const std::string& run_dir) {
  std::vector<std::string> all;
  for (const auto& entry : fs::directory_iterator(fs::path(run_dir) / "checkpoints")) all.push_back(entry.path().string());
  REQUIRE_FALSE(all.empty());
  return *std::max_element(all.begin(), all.end());
}

/// The bytes of every tensor of a learner's state.
std::map<std::string, std::string> learner_state(const std::string& checkpoint) {
  auto file = weir::safetensors_file::open(fs::path(checkpoint) / "learner.safetensors");
  REQUIRE(file);
  std::map<std::string, std::string> out;
  for (const auto& [name, e] : file->entries()) out[name] = {reinterpret_cast<const char*>(e.bytes.data()), e.bytes.size()};
  out["step"] = file->metadata().at("step");
  return out;
}

}  // namespace

TEST_CASE("a run leaves config, metrics and a checkpoint that another run can start from") {
  scratch place;
  const auto run = weir_run(place, small_run(place / "run"));
  INFO(run.output);
  REQUIRE(run.code == 0);
  CHECK(run.says("before:"));
  CHECK(run.says("after:"));
  const auto config = weir::read_json_file(place / "run/config.json");
  REQUIRE(config);
  CHECK((*config)["trainer"]["steps"] == 6);
  CHECK((*config)["trainer"]["clip_high"] == 0.28);
  const auto lines = steps(place / "run");
  REQUIRE(lines.size() == 6);
  for (std::size_t i = 0; i < 6; ++i) CHECK(lines[i]["step"] == i + 1);

  const auto checkpoint = newest_checkpoint(place / "run");
  for (const char* file : {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors", "learner.safetensors", "state.json"})
    CHECK(fs::exists(fs::path(checkpoint) / file));
  const auto next = weir_run(place, small_run(place / "next", {"model.path=" + checkpoint, "model.random_init=false", "warm_start.steps=0", "trainer.steps=1"}));
  INFO(next.output);
  CHECK(next.code == 0);
  const auto eval = weir_run(place, {"eval", countdown, "--model", checkpoint, "--json", "--set", "tasks.eval_count=16"});
  INFO(eval.output);
  REQUIRE(eval.code == 0);
  CHECK(nlohmann::json::parse(eval.output)["tasks"] == 16);
}

TEST_CASE("two synchronous runs with one seed are equal bit for bit, and another seed is another run") {
  scratch place;
  REQUIRE(weir_run(place, small_run(place / "a")).code == 0);
  REQUIRE(weir_run(place, small_run(place / "b")).code == 0);
  REQUIRE(weir_run(place, small_run(place / "c", {"seed=1"})).code == 0);
  CHECK(steps(place / "a") == steps(place / "b"));
  CHECK(learner_state(newest_checkpoint(place / "a")) == learner_state(newest_checkpoint(place / "b")));
  CHECK(steps(place / "a") != steps(place / "c"));
}

TEST_CASE("a resumed synchronous run equals one that was not stopped, bit for bit") {
  scratch place;
  REQUIRE(weir_run(place, small_run(place / "whole")).code == 0);
  REQUIRE(weir_run(place, small_run(place / "half", {"trainer.steps=3"})).code == 0);
  for (const char* steps : {"3", "0", "-1"}) {
    const auto refused = weir_run(place, {"resume", place / "half", "--steps", steps});
    CHECK(refused.code == 2);
    CHECK(refused.says("--steps"));
  }
  const auto resumed = weir_run(place, {"resume", place / "half", "--steps", "6"});
  INFO(resumed.output);
  REQUIRE(resumed.code == 0);
  const auto whole = steps(place / "whole");
  CHECK(whole == steps(place / "half"));
  // Else the equality would mean nothing.
  CHECK(std::any_of(whole.begin(), whole.end(), [](const auto& line) { return line["tokens_trained"] > 0; }));
  CHECK(learner_state(newest_checkpoint(place / "whole")) == learner_state(newest_checkpoint(place / "half")));
}

TEST_CASE("Ctrl-C leaves a checkpoint and exit code 130 within five seconds, in every phase, and the run goes on from there") {
  scratch place;
  for (const char* phase : {"warm start 1/", "step 1/"}) {
    const auto dir = place / (std::string("run-") + (phase[0] == 'w' ? "warm" : "train"));
    auto words = small_run(dir, {"warm_start.steps=" + std::string(phase[0] == 'w' ? "100000" : "60"), "trainer.steps=100000"});
    words.insert(words.begin(), WEIR_PROGRAM);
    child c(words, place / "output.txt");
    for (int i = 0; i < 6000 && c.output().find(phase) == std::string::npos; ++i) std::this_thread::sleep_for(10ms);
    INFO(c.output());
    const auto begin = std::chrono::steady_clock::now();
    c.signal(SIGINT);
    CHECK(c.wait(20s) == 130);
    CHECK(std::chrono::steady_clock::now() - begin < 5s);
    CHECK(c.output().find("weir resume") != std::string::npos);
    CHECK(fs::exists(fs::path(newest_checkpoint(dir)) / "state.json"));
  }
  const auto before = steps(place / "run-train");
  const auto resumed = weir_run(place, {"resume", place / "run-train", "--steps", std::to_string(before.size() + 2)});
  INFO(resumed.output);
  CHECK(resumed.code == 0);
  const auto after = steps(place / "run-train");
  REQUIRE(after.size() >= before.size());
  CHECK(std::equal(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(std::min(before.size(), after.size())), after.begin()));
}

TEST_CASE("a run in which every episode fails says why and ends") {
  scratch place;
  const auto run = weir_run(place, small_run(place / "run", {"rollout.max_context=2", "warm_start.steps=0", "environment.most_dropped_groups=8"}));
  INFO(run.output);
  CHECK(run.code == 1);
  CHECK(run.says("every episode fails"));
  CHECK(run.says("environment.most_dropped_groups"));
  CHECK(run.says("leaves no room"));
}

TEST_CASE("an asynchronous run keeps to its staleness bound, with one engine and with two") {
  scratch place;
  for (const char* engines : {"1", "2"}) {
    const auto dir = place / (std::string("run") + engines);
    const auto run = weir_run(place, small_run(dir, {"trainer.max_staleness=2", "trainer.steps=30", std::string("rollout.engines=") + engines, "environment.sandboxes=11"}));
    INFO(run.output);
    REQUIRE(run.code == 0);
    const auto lines = steps(dir);
    CHECK(lines.size() == 30);
    std::uint64_t most = 0;
    for (const auto& line : lines) most = std::max(most, line["staleness_max"].get<std::uint64_t>());
    CHECK(most <= 2);
    CHECK(most >= 1);
  }
}

TEST_CASE("a wrong config names every wrong field, what was found, what is allowed, and the nearest right name") {
  scratch place;
  REQUIRE(weir::write_file_atomically(place / "bad.json",
                                      R"({"model": {"path": "x"}, "environment": {"name": "countdown"},
                                          "trainer": {"learning_rate": 1, "lr": -1, "objective": "ppo", "group_size": 2.5}, "rolout": {}})"));
  const auto bad = weir_run(place, {"train", place / "bad.json"});
  INFO(bad.output);
  CHECK(bad.code == 2);
  for (const char* text : {"bad.json", "trainer.learning_rate", "trainer.lr", "-1", "trainer.objective", "ppo_clip", "trainer.group_size", "2.5", "rolout", "rollout"})
    CHECK(bad.says(text));
  CHECK_FALSE(fs::exists("runs"));

  CHECK(weir_run(place, {"train", place / "none.json"}).says("none.json"));
  const auto typo = weir_run(place, small_run(place / "run", {"trainer.stps=5"}));
  CHECK(typo.code == 2);
  CHECK(typo.says("trainer.steps"));
  const auto environment = weir_run(place, small_run(place / "run", {"environment.name=countdwn"}));
  CHECK(environment.code == 2);
  CHECK(environment.says("countdown"));
  const auto context = weir_run(place, small_run(place / "run", {"rollout.max_context=65"}));
  CHECK(context.code == 2);
  CHECK(context.says("max_position_embeddings"));
  const auto model = weir_run(place, small_run(place / "run", {"model.path=/nowhere"}));
  CHECK(model.code != 0);
  CHECK(model.says("/nowhere"));
  CHECK(weir_run(place, small_run(place / "run", {"model.random_init=false"})).says("random_init"));
  for (const char* none : {"foo", "meta"}) {
    const auto device = weir_run(place, small_run(place / "run", {std::string("model.device=") + none}));
    CHECK(device.code == 2);
    CHECK(device.says("model.device"));
    CHECK_FALSE(device.says("frame #"));
  }
  CHECK_FALSE(fs::exists(place / "run"));
  CHECK(weir_run(place, {"frobnicate"}).code == 2);
  CHECK(weir_run(place, {"train", place / "none.json"}).code == 2);
}

TEST_CASE("--dry-run prints the whole resolved config, which is a config itself") {
  scratch place;
  const auto dry = weir_run(place, {"train", countdown, "--dry-run", "--set", "trainer.lr=1e-4"});
  INFO(dry.output);
  REQUIRE(dry.code == 0);
  const auto resolved = nlohmann::json::parse(dry.output);
  CHECK(resolved["trainer"]["lr"] == 1e-4);
  CHECK(resolved["trainer"]["beta2"] == 0.95);
  REQUIRE(weir::write_file_atomically(place / "again.json", dry.output));
  CHECK(weir_run(place, {"train", place / "again.json", "--dry-run"}).output == dry.output);
  CHECK(weir_run(place, {"train", "--fields"}).says("trainer.max_staleness"));
}

TEST_CASE("a run directory is used once, by one process, and resumed only if it is one") {
  scratch place;
  REQUIRE(weir_run(place, small_run(place / "run", {"trainer.steps=1"})).code == 0);
  const auto again = weir_run(place, small_run(place / "run"));
  CHECK(again.code != 0);
  CHECK(again.says("resume"));
  fs::create_directories(place / "empty");
  CHECK(weir_run(place, {"resume", place / "empty"}).code != 0);
  CHECK(weir_run(place, {"resume", place / "nothing"}).says("nothing"));
  fs::resize_file(fs::path(newest_checkpoint(place / "run")) / "learner.safetensors", 100);
  const auto damaged = weir_run(place, {"resume", place / "run", "--steps", "2"});
  CHECK(damaged.code == 1);
  CHECK(damaged.says("learner.safetensors"));
}

TEST_CASE("verify checks against the reference values, and exits with 1 beyond the tolerance") {
  scratch place;
  const std::string fixtures = WEIR_FIXTURES;
  for (const char* model : {"qwen3-tiny", "qwen3-tiny-untied"}) {
    const auto policy = weir_run(place, {"verify", "policy", fixtures + "/" + model});
    INFO(policy.output);
    CHECK(policy.code == 0);
  }
  CHECK(weir_run(place, {"verify", "tokenizer", fixtures + "/tokenizer-small/tokenizer.json", fixtures + "/tokenizer-small/golden.json"}).code == 0);
  CHECK(weir_run(place, {"verify", "objectives", fixtures + "/objectives/golden.json"}).code == 0);
  auto golden = *weir::read_json_file(fixtures + "/tokenizer-small/golden.json");
  golden[3]["ids"].push_back(1);
  REQUIRE(weir::write_file_atomically(place / "golden.json", golden.dump()));
  const auto wrong = weir_run(place, {"verify", "tokenizer", fixtures + "/tokenizer-small/tokenizer.json", place / "golden.json"});
  CHECK(wrong.code == 1);
  CHECK(wrong.says("FAIL"));
  CHECK(weir_run(place, {"verify", "policy", place / "nowhere"}).code == 1);
}

TEST_CASE("benchmarks are found beside the program") {
  scratch place;
  CHECK(weir_run(place, {"bench", "no-such-benchmark"}).code == 2);
}

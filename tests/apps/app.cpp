// The program `weir` from outside: runs, and what they leave.
#include "support.hpp"

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
  for (const char* file : {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors",
                           "learner.safetensors", "state.json"})
    CHECK(fs::exists(fs::path(checkpoint) / file));
  const auto next = weir_run(place, small_run(place / "next", {"model.path=" + checkpoint, "model.random_init=false",
                                                               "warm_start.steps=0", "trainer.steps=1"}));
  INFO(next.output);
  CHECK(next.code == 0);
  const auto eval =
      weir_run(place, {"eval", countdown, "--model", checkpoint, "--json", "--set", "tasks.eval_count=16"});
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

TEST_CASE(
    "Ctrl-C leaves a checkpoint and exit code 130 within five seconds, in every phase, and the run goes on from "
    "there") {
  scratch place;
  for (const char* phase : {"warm start 1/", "step 1/"}) {
    const auto dir = place / (std::string("run-") + (phase[0] == 'w' ? "warm" : "train"));
    auto words =
        small_run(dir, {"warm_start.steps=" + std::string(phase[0] == 'w' ? "100000" : "60"), "trainer.steps=100000"});
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
  CHECK(std::equal(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(std::min(before.size(), after.size())),
                   after.begin()));
}

TEST_CASE("Ctrl-C in one long step of the warm start is heard within it") {
  scratch place;
  auto words = small_run(place / "run", {"warm_start.steps=3", "warm_start.batch=100000"});
  words.insert(words.begin(), WEIR_PROGRAM);
  for (const auto after : {100ms, 4000ms}) {  // in the demonstrations, and in what is learned from them
    child c(words, place / "output.txt");
    for (int i = 0; i < 3000 && !fs::exists(place / "run/run.log"); ++i) std::this_thread::sleep_for(10ms);
    std::this_thread::sleep_for(after);
    const auto begin = std::chrono::steady_clock::now();
    c.signal(SIGINT);
    CHECK(c.wait(60s) == 130);
    CHECK(std::chrono::steady_clock::now() - begin < 5s);
    INFO(c.output());
    CHECK(c.output().find("weir resume") != std::string::npos);
    CHECK((*weir::read_json_file(newest_checkpoint(place / "run") + "/state.json"))["warm_start_steps"] == 0);
    words = {WEIR_PROGRAM, "resume", place / "run"};
  }
}

TEST_CASE(
    "the metrics of a run that was killed and resumed have every step of the warm start once, and one evaluation "
    "before") {
  scratch place;
  const auto dir = place / "run";
  auto words = small_run(dir, {"warm_start.steps=200", "trainer.steps=1"});
  auto count = [&] {
    const auto text = weir::read_file(dir + "/metrics.jsonl");
    return text ? std::count(text->begin(), text->end(), '\n') : 0;
  };
  for (const int signal : {SIGKILL, SIGINT, SIGKILL, 0}) {
    words.insert(words.begin(), WEIR_PROGRAM);
    child c(words, place / "output.txt");
    for (int i = 0; i < 3000 && c.output().find("warm start") == std::string::npos; ++i)
      std::this_thread::sleep_for(10ms);
    const auto enough = count() + 5;
    for (int i = 0; i < 3000 && signal != 0 && count() < enough; ++i) std::this_thread::sleep_for(2ms);
    if (signal != 0) c.signal(signal);
    INFO(c.output());
    CHECK(c.wait(60s) == (signal == 0 ? 0 : 128 + signal));
    words = {"resume", dir};
  }
  std::vector<int> warm;
  int evaluations = 0;
  for (const auto& line : metrics(dir)) {
    if (line.contains("warm_start_step")) warm.push_back(line["warm_start_step"]);
    if (line.contains("evaluation") && line["step"] == 0) ++evaluations;
  }
  REQUIRE(warm.size() == 200);
  for (int i = 0; i < 200; ++i) CHECK(warm[static_cast<std::size_t>(i)] == i + 1);
  CHECK(evaluations == 1);
}

TEST_CASE("a run in which every episode fails says why and ends") {
  scratch place;
  const auto run = weir_run(place, small_run(place / "run", {"rollout.max_context=2", "warm_start.steps=0",
                                                             "environment.most_dropped_groups=8"}));
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
    const auto run =
        weir_run(place, small_run(dir, {"trainer.max_staleness=2", "trainer.steps=30",
                                        std::string("rollout.engines=") + engines, "environment.sandboxes=11"}));
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

TEST_CASE("on a pipe fast steps have a line a second at most, besides the first and the last") {
  scratch place;
  const auto begin = std::chrono::steady_clock::now();
  const auto run = weir_run(place, small_run(place / "run", {"warm_start.steps=0", "trainer.steps=300",
                                                             "trainer.batch_groups=1", "trainer.group_size=2",
                                                             "evaluation.at_start=false", "evaluation.at_end=false"}));
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  INFO(run.output);
  REQUIRE(run.code == 0);
  CHECK(run.says("\nstep 1/300 "));
  CHECK(run.says("\nstep 300/300 "));
  int lines = 0;
  for (auto at = run.output.find("\nstep "); at != std::string::npos; at = run.output.find("\nstep ", at + 1)) ++lines;
  CHECK(lines <= 2 + seconds);
}

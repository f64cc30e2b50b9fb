// The program `weir` from outside: what its users get wrong, and what they are told.
#include "support.hpp"

TEST_CASE("a wrong config names every wrong field, what was found, what is allowed, and the nearest right name") {
  scratch place;
  REQUIRE(weir::write_file_atomically(place / "bad.json",
                                      R"({"model": {"path": "x"}, "environment": {"name": "countdown"},
                                          "trainer": {"learning_rate": 1, "lr": -1, "objective": "ppo", "group_size": 2.5}, "rolout": {}})"));
  const auto bad = weir_run(place, {"train", place / "bad.json"});
  INFO(bad.output);
  CHECK(bad.code == 2);
  for (const char* text : {"bad.json", "trainer.learning_rate", "trainer.lr", "-1", "trainer.objective", "ppo_clip",
                           "trainer.group_size", "2.5", "rolout", "rollout"})
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

TEST_CASE("--dry-run prints the whole resolved config, which is a config itself, and beside it what memory it takes") {
  scratch place;
  const auto errors = place / "errors.txt";
  const auto dry = weir_run(place, {"train", countdown, "--dry-run", "--set", "trainer.lr=1e-4"}, errors);
  INFO(dry.output);
  REQUIRE(dry.code == 0);
  const auto resolved = nlohmann::json::parse(dry.output);
  CHECK(resolved["trainer"]["lr"] == 1e-4);
  CHECK(resolved["trainer"]["beta2"] == 0.95);
  REQUIRE(weir::write_file_atomically(place / "again.json", dry.output));
  CHECK(weir_run(place, {"train", place / "again.json", "--dry-run"}, errors).output == dry.output);
  CHECK(weir_run(place, {"train", "--fields"}).says("trainer.max_staleness"));
  const auto memory = *weir::read_file(errors);
  INFO(memory);
  CHECK(memory.starts_with("memory, estimated: "));
  // 512 x 24 x 3 layers x 2 heads x 24 numbers x 2 x 4 bytes; 306,576 parameters, and what aligns them.
  for (const char* part : {"  keys and values        14.2 MB  rollout.engines 1 x rollout.slots 512 x "
                           "rollout.max_context 24 x 1152 bytes a token",
                           "  engines' weights        2.5 MB", "  weight snapshots        3.7 MB",
                           "  trainer                 4.9 MB", "  activations, at most"})
    CHECK(memory.find(part) != std::string::npos);
}

TEST_CASE("a config that needs more memory than there is is refused with its numbers, before any is taken") {
  scratch place;
  for (const auto& words :
       {small_run(place / "run", {"rollout.slots=1000000", "rollout.max_context=64", "rollout.engines=1024"}),
        {"train", countdown, "--dry-run", "--set", "rollout.slots=1000000", "--set", "rollout.engines=1024"}}) {
    const auto run = weir_run(place, words);
    INFO(run.output);
    CHECK(run.code == 2);
    CHECK(run.output.starts_with("weir: the config needs more memory than there is"));
    CHECK(run.says("rollout.slots 1000000"));
    CHECK(run.says("TB"));
  }
  CHECK_FALSE(fs::exists(place / "run"));
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
  fs::copy(fs::path(WEIR_CONFIGS) / "countdown-model", place / "model");
  const auto files = std::distance(fs::directory_iterator(place / "model"), fs::directory_iterator());
  const auto model = weir_run(place, {"resume", place / "model"});
  CHECK(model.code == 1);
  CHECK(model.output.starts_with("weir: " + place / "model" + " is no run directory: it holds a config.json, but"));
  CHECK(std::count(model.output.begin(), model.output.end(), '\n') == 1);
  CHECK(std::distance(fs::directory_iterator(place / "model"), fs::directory_iterator()) == files);
  REQUIRE(weir::write_file_atomically(place / "model/lock", ""));
  CHECK(
      weir_run(place, {"resume", place / "model"}).says("is no run directory: its config.json is not that of a run\n"));
  CHECK(weir_run(place, {"resume", newest_checkpoint(place / "run") + "/"})
            .says("did you mean weir resume " + place / "run" + "?\n"));
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
  CHECK(weir_run(place, {"verify", "tokenizer", fixtures + "/tokenizer-small/tokenizer.json",
                         fixtures + "/tokenizer-small/golden.json"})
            .code == 0);
  CHECK(weir_run(place, {"verify", "objectives", fixtures + "/objectives/golden.json"}).code == 0);
  auto golden = *weir::read_json_file(fixtures + "/tokenizer-small/golden.json");
  golden[3]["ids"].push_back(1);
  REQUIRE(weir::write_file_atomically(place / "golden.json", golden.dump()));
  const auto wrong =
      weir_run(place, {"verify", "tokenizer", fixtures + "/tokenizer-small/tokenizer.json", place / "golden.json"});
  CHECK(wrong.code == 1);
  CHECK(wrong.says("FAIL"));
  CHECK(weir_run(place, {"verify", "policy", place / "nowhere"}).code == 1);
  REQUIRE(weir::write_file_atomically(place / "empty.json", "{}"));
  const auto empty = weir_run(place, {"verify", "objectives", place / "empty.json"});
  CHECK(empty.code == 1);
  CHECK(empty.output == "weir: " + place / "empty.json" + ": policy is missing\n");
}

TEST_CASE("benchmarks are found beside the program") {
  scratch place;
  CHECK(weir_run(place, {"bench", "no-such-benchmark"}).code == 2);
}

TEST_CASE("bytes that end a path or a text early are refused where they stand") {
  using namespace std::string_literals;
  scratch place;
  const std::string model = R"(model.path=")" + std::string(WEIR_CONFIGS) + R"(/countdown-model\u0000x")";
  for (const auto& [field, value] : {std::pair{"model.path"s, model},
                                     {"tasks.train"s, R"(tasks.train="tasks\u0000.jsonl")"s},
                                     {"tasks.eval"s, R"(tasks.eval="a\u0000b")"s},
                                     {"run_dir"s, R"(run_dir="a\u0000b")"s}}) {
    const auto run = weir_run(place, {"train", countdown, "--dry-run", "--set", value});
    INFO(run.output);
    CHECK(run.code == 2);
    CHECK(run.says(field + ": found string"));
    CHECK(run.says("\\u0000"));
  }
  REQUIRE(weir::write_file_atomically(
      place / "tasks.jsonl",
      "{\"digits\": [1, 2, 3], \"target\": 6}\n{\"digits\": [1, 2, 4], \"target\": 7}\0\0\0\n"s));
  const auto tasks = weir_run(place, small_run(place / "run", {"tasks.train=" + place / "tasks.jsonl"}));
  INFO(tasks.output);
  CHECK(tasks.code == 2);
  CHECK(tasks.says("tasks.train: " + place / "tasks.jsonl" + ":2:35: a NUL byte"));
  CHECK_FALSE(fs::exists(place / "run"));
  const auto odd = weir_run(place, {"train", countdown, "--dry-run", "--set", "run_dir=\xFF"});
  INFO(odd.output);
  CHECK(odd.code == 0);
}

TEST_CASE("a current directory that was deleted is told as that") {
  scratch place;
  const auto run =
      shell_run(place, "mkdir gone && cd gone && rmdir ../gone && exec \"$0\" train '" + countdown + "' --dry-run");
  INFO(run.output);
  CHECK(run.code == 2);
  CHECK(run.says("weir: the current directory was deleted"));
}

TEST_CASE("a command or option that there is not names the one that was meant") {
  scratch place;
  struct wrong {
    std::vector<std::string> words;
    std::string told;
  };
  for (const auto& [words, told] :
       {wrong{{"trian"}, "unknown command \"trian\"; did you mean train?"},
        wrong{{"resum", "run"}, "unknown command \"resum\"; did you mean resume?"},
        wrong{{"frobnicate"}, "unknown command \"frobnicate\"; weir has train, resume, eval, verify, bench, doctor"},
        wrong{{"verify", "polciy", "x"}, "unknown command \"polciy\"; did you mean policy?"},
        wrong{{"train", "x.json", "--dry-rn"}, "weir train has no option --dry-rn; did you mean --dry-run?"},
        wrong{{"eval", "--modle=x"}, "weir eval has no option --modle; did you mean --model?"},
        wrong{{"bench", "wieghts"}, "no benchmark is named wieghts; did you mean weights?"},
        wrong{{"train", "x.json", "y.json"}, "weir train takes no further argument, found \"y.json\""}}) {
    const auto run = weir_run(place, words);
    CHECK(run.code == 2);
    CHECK(run.output == "weir: " + told + "\n");
  }
  const auto early = weir_run(place, {"bench", "--xyzzy=1"});
  CHECK(early.code == 2);
  CHECK(early.output.starts_with(
      "weir: weir bench has no option --xyzzy before a benchmark's name; there are: countdown, "));
  const auto none = weir_run(place, {});
  CHECK(none.code == 2);
  CHECK(none.says("A subcommand is required"));
  CHECK(weir_run(place, {"--help"}).code == 0);
}

TEST_CASE("output that cannot be written is an error, and a reader that has enough is none") {
  scratch place;
  const std::string config = "'" + countdown + "'",
                    golden = "'" + std::string(WEIR_FIXTURES) + "/objectives/golden.json'";
  for (const auto& words : {"train " + config + " --dry-run", std::string("train --fields"), std::string("--help"),
                            std::string("--version"), std::string("bench"),
                            "eval " + config + " --json --set tasks.eval_count=4 --set environment.sandboxes=4",
                            "verify objectives " + golden}) {
    INFO(words);
    const auto run = shell_run(place, "exec \"$0\" " + words + " 2>&1 >/dev/full");
    INFO(run.output);
    CHECK(run.code == 1);
    // What a dry run says of memory goes to stderr, before; the error is the last line, and there is one.
    const auto said = run.output.find("weir: cannot write all of the output");
    CHECK(said == (words.ends_with("--dry-run") ? run.output.rfind("\nweir: ") + 1 : 0));
    CHECK(run.output.find('\n', said) == run.output.size() - 1);
  }
  const auto enough = shell_run(place, "{ \"$0\" train --fields; echo code $? >&2; } | head -n 0");
  CHECK(enough.output == "code 0\n");
}

TEST_CASE("a demonstration that is longer than a sequence may be is told with its task and the field") {
  scratch place;
  const auto run = weir_run(place, small_run(place / "run", {"rollout.max_context=10"}));
  INFO(run.output);
  CHECK(run.code == 1);
  CHECK(run.says("a demonstration for the task {\"digits\":["));
  CHECK(run.says("rollout.max_context, 10"));
}

TEST_CASE("text that the tokenizer has no token for is told once, with the first of it and where it came from") {
  scratch place;
  fs::copy(fs::path(WEIR_CONFIGS) / "countdown-model", place / "model");
  auto tokenizer = *weir::read_json_file(place / "model/tokenizer.json");
  tokenizer["model"]["vocab"].erase("=");
  tokenizer["model"]["vocab"]["x"] = 13;
  REQUIRE(weir::write_file_atomically(place / "model/tokenizer.json", tokenizer.dump()));
  REQUIRE(weir::write_file_atomically(place / "tasks.jsonl", R"({"digits": [3, 7, 5], "target": 38})"));
  auto told = [](const std::string& text) {
    int times = 0;
    for (auto at = text.find("has no token is left out"); at != std::string::npos;
         at = text.find("has no token is left out", at + 1))
      ++times;
    return times;
  };
  using namespace std::string_literals;
  const auto model = "model.path=" + place / "model", tasks = "tasks.train=" + place / "tasks.jsonl";
  for (const auto& [name, steps, origin] :
       {std::tuple{"warm", "warm_start.steps=2", "(tasks.train, " + place / "tasks.jsonl)"},
        std::tuple{"cold", "warm_start.steps=0", "(made by the environment itself)"s}}) {
    const auto run = weir_run(place, small_run(place / name, {model, name == "warm"s ? tasks : "tasks.train=", steps}));
    INFO(run.output);
    CHECK(run.code == 0);
    CHECK(told(run.output) == 1);
    CHECK(run.says(place / "model"));
    CHECK(run.says(" lost \"=\": the environment's prompt for the task {"));
    CHECK(run.says(origin));
    CHECK(run.says("bytes that have no token"));
    CHECK(metrics(place / name).back()["step"] == 6);
  }
  const auto line = metrics(place / "warm");
  CHECK(std::any_of(line.begin(), line.end(), [](const auto& l) {
    return l.contains("texts_without_token") && l["texts_without_token"] >= 144;
  }));
  const auto eval = weir_run(place, {"eval", countdown, "--set", model, "--set", "tasks.eval_count=4"});
  INFO(eval.output);
  CHECK(eval.code == 0);
  CHECK(told(eval.output) == 1);
  CHECK(eval.says("4 texts lost 4 bytes that have no token"));
}

TEST_CASE("a run that cannot learn is refused, and one that learns nothing says so now and then") {
  scratch place;
  const auto alone = weir_run(place, small_run(place / "run", {"trainer.group_size=1", "trainer.advantages=rloo"}));
  INFO(alone.output);
  CHECK(alone.code == 2);
  CHECK(alone.says("trainer.group_size: found number 1, needs integer, at least 2"));
  CHECK_FALSE(fs::exists(place / "run"));
  auto times = [](const outcome& run) {
    int count = 0;
    for (auto at = run.output.find("nothing was learned"); at != std::string::npos;
         at = run.output.find("nothing was learned", at + 1))
      ++count;
    return count;
  };
  const auto equal =
      weir_run(place, small_run(place / "equal", {"warm_start.steps=0", "trainer.steps=60", "rollout.temperature=0.001",
                                                  "evaluation.at_end=false"}));
  INFO(equal.output);
  CHECK(equal.code == 0);
  CHECK(times(equal) == 1);
  CHECK(equal.says("nothing was learned from the rewards of the last 10 steps"));
  for (const auto& line : metrics(place / "equal"))
    if (line.contains("reward")) CHECK(line["groups_trained"] == 0);
  const auto learning = weir_run(place, small_run(place / "learning", {"trainer.steps=30", "evaluation.at_end=false"}));
  CHECK(learning.code == 0);
  CHECK(times(learning) == 0);
}

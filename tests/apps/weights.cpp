// The section `weights` of a config: whatever way weights take, the run is the same.
#include "support.hpp"

TEST_CASE("weights that cross a transport, whole, as deltas or mapped, give the same synchronous run bit for bit") {
  scratch place;
  REQUIRE(weir_run(place, small_run(place / "direct")).code == 0);
  const auto expected = learner_state(newest_checkpoint(place / "direct"));
  int n = 0;
  for (const std::vector<std::string>& way :
       {std::vector<std::string>{"weights.options={\"shared_memory\":false}", "weights.delta=off"},
        {"weights.options={\"shared_memory\":false}", "weights.delta=on"},
        {"weights.delta=auto"}}) {
    const auto dir = place / ("run" + std::to_string(n));
    auto sets = way;
    sets.push_back("weights.transport=tcp");
    const auto run = weir_run(place, small_run(dir, sets));
    INFO(run.output);
    REQUIRE(run.code == 0);
    CHECK(learner_state(newest_checkpoint(dir)) == expected);
    std::uint64_t wire = 0;
    const auto text = weir::read_file(dir + "/metrics.jsonl");
    REQUIRE(text);
    const std::string field = "\"weights_wire_bytes\":";
    for (auto at = text->find(field); at != std::string::npos; at = text->find(field, at + 1))
      wire = std::max<std::uint64_t>(wire, std::stoull(text->substr(at + field.size())));
    CHECK((wire > 0) == (n < 2));
    ++n;
  }
}

TEST_CASE("engines that are given bf16 act with it, and the run is another one") {
  scratch place;
  const auto run = weir_run(place, small_run(place / "run", {"weights.dtype=bf16"}));
  INFO(run.output);
  REQUIRE(run.code == 0);
  REQUIRE(weir_run(place, small_run(place / "f32")).code == 0);
  CHECK(learner_state(newest_checkpoint(place / "run")) != learner_state(newest_checkpoint(place / "f32")));
}

TEST_CASE("a transport that there is not, or an option that it does not take, is told before anything is done") {
  scratch place;
  for (const auto& [sets, words] :
       {std::pair{std::vector<std::string>{"weights.transport=rdma"}, std::pair{"weights.transport", "rdma"}},
        {{"weights.transport=tcp", "weights.options={\"strems\":4}"}, {"weights.options", "streams"}},
        {{"weights.options=5"}, {"weights.options", "object"}},
        {{"weights.options={\"streams\":4}"}, {"weights.options", "inproc"}},
        {{"weights.transport=tcp", "weights.options={\"streams\":[4]}"}, {"weights.options.streams", "number"}}}) {
    const auto run = weir_run(place, small_run(place / "run", sets));
    INFO(run.output);
    CHECK(run.code == 2);
    CHECK(run.says(words.first));
    CHECK(run.says(words.second));
    CHECK_FALSE(fs::exists(place / "run/metrics.jsonl"));
  }
}

TEST_CASE(
    "a run that trains some tensors publishes those alone, whatever the transport, and leaves the others as they "
    "were") {
  scratch place;
  const std::vector<std::string> sets{"trainer.tensors=[\"model.layers.*\"]", "warm_start.steps=20"};
  std::map<std::string, std::string> first;
  for (const std::string way : {"inproc", "tcp"}) {
    auto with = sets;
    with.push_back("weights.transport=" + way);
    const auto run = weir_run(place, small_run(place / way, with));
    INFO(run.output);
    REQUIRE(run.code == 0);
    const auto state = learner_state(newest_checkpoint(place / way));
    if (first.empty())
      first = state;
    else
      CHECK(state == first);
  }
  // The same seed without a step: what the model began with.
  REQUIRE(weir_run(place, small_run(place / "begin", {"trainer.steps=1", "warm_start.steps=0", "trainer.lr=0"})).code ==
          0);
  const auto before = weir::safetensors_file::open(fs::path(newest_checkpoint(place / "begin")) / "model.safetensors"),
             after = weir::safetensors_file::open(fs::path(newest_checkpoint(place / "tcp")) / "model.safetensors");
  REQUIRE(before);
  REQUIRE(after);
  std::size_t changed = 0;
  for (const auto& [name, entry] : before->entries()) {
    CAPTURE(name);
    const auto& other = after->entries().at(name);
    const bool same = std::equal(entry.bytes.begin(), entry.bytes.end(), other.bytes.begin(), other.bytes.end());
    CHECK(same != name.starts_with("model.layers."));
    changed += same ? 0 : 1;
  }
  CHECK(changed > 0);
  const auto none = weir_run(place, small_run(place / "none", {"trainer.tensors=[\"*lora*\"]"}));
  CHECK(none.code == 2);
  CHECK(none.says("trainer.tensors: no tensor of the model matches \"*lora*\""));
}

TEST_CASE("weir bench passes a benchmark its options, and a small broadcast is measured") {
  scratch place;
  const auto run = weir_run(place, {"bench", "weights", "--bytes", "1MB", "--receivers", "2", "--plan", "chain",
                                    "--delta-fraction", "0.01", "--rounds", "2", "--json"});
  INFO(run.output);
  REQUIRE(run.code == 0);
  const auto report = nlohmann::json::parse(run.output, nullptr, false);
  REQUIRE(report.is_object());
  double checked = 0, ratio = 0;
  for (const auto& figure : report["figures"]) {
    if (figure["name"].get<std::string>().ends_with("versions, the same bits")) checked = figure["value"];
    if (figure["name"].get<std::string>().ends_with("bytes / delta")) ratio = figure["value"];
  }
  CHECK(checked == 3);
  CHECK(ratio > 100);
  for (const auto& words : {std::vector<std::string>{"--plan", "ring"},
                            {"--bytes", "0"},
                            {"--receivers", "0"},
                            {"--chunk", "7"},
                            {"--delta-fraction", "2"},
                            {"--delta-fraction", "nan"},
                            {"--bytes", "4194305"},
                            {"--delta-fraction", "0.1", "--share", "map"},
                            {"--rate", "1gbit"},
                            {"--peer", "nccl"},
                            {"--transport", "rdma"}}) {
    auto line = std::vector<std::string>{"bench", "weights"};
    line.insert(line.end(), words.begin(), words.end());
    const auto wrong = weir_run(place, line);
    INFO(wrong.output);
    CHECK(wrong.code == 2);
    CHECK(wrong.says(words[0]));
  }
}

TEST_CASE("doctor says by what each transport's bytes come, and fails for one that does not work") {
  scratch place;
  const auto well = weir_run(place, {"doctor"});
  INFO(well.output);
  CHECK(well.code == 0);
  CHECK(well.output.find("transport tcp, on one machine: bytes come by mapped memory") != std::string::npos);
  CHECK(well.output.find("transport tcp, its wire: bytes come by tcp, ") != std::string::npos);
  const auto listed = weir_run(place, {"doctor", "--json"});
  CHECK(nlohmann::json::parse(listed.output).size() >= 4);
  if (well.output.find("transport ucx, its wire") == std::string::npos) return;  // built without it
  const auto ill = shell_run(place, "UCX_TLS=nonsense \"$0\" doctor");
  INFO(ill.output);
  CHECK(ill.code == 1);
  CHECK(ill.output.find("bad   transport ucx") != std::string::npos);
}

// Single episodes through pool and sandbox: what is recorded, and when an episode is over.
#include "support.hpp"

using namespace weir::testing;
using weir::observation;
using weir::result;
using weir::step_result;

namespace {

std::shared_ptr<const weir::tokenizer> small() {
  auto made = weir::tokenizer::load(std::string(WEIR_FIXTURES) + "/tokenizer-small");
  REQUIRE(made);
  return std::make_shared<const weir::tokenizer>(*made);
}

tokens operator+(tokens a, const tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<std::uint8_t> mask_of(const std::vector<std::pair<std::size_t, std::uint8_t>>& runs) {
  std::vector<std::uint8_t> mask;
  for (auto [length, value] : runs) mask.insert(mask.end(), length, value);
  return mask;
}

/// Answers in text until the third turn. Step i is worth 2^-i.
environment_script three_turns(std::shared_ptr<std::vector<std::string>> heard) {
  auto turn = std::make_shared<int>(0);
  environment_script script;
  script.reset = [=](const nlohmann::json& task, std::uint64_t) -> result<observation> {
    *turn = 0;
    return observation("Task " + task.dump() + ": ");
  };
  script.step = [=](const weir::action& a) -> result<step_result> {
    heard->emplace_back(a.text);
    step_result out;
    out.reward = 1.0 / (1 << (*turn)++);
    out.terminated = *turn == 3;
    out.success = out.terminated;
    out.next = "again <|im_start|> " + std::to_string(*turn) + ": ";
    return out;
  };
  return script;
}

}  // namespace

TEST_CASE("an episode of one turn in text") {
  const auto text = small();
  auto heard = std::make_shared<std::vector<std::string>>();
  world w(settings_of(1, 1), kind([=] {
            environment_script s;
            s.reset = [](const nlohmann::json& task, std::uint64_t) -> result<observation> {
              return observation("What is " + task.dump() + "?");
            };
            s.step = [heard](const weir::action& a) -> result<step_result> {
              heard->emplace_back(a.text);
              return step_result{"not shown", 0.75, true, false, true};
            };
            return s;
          }),
          {}, text);
  const auto answer = text->encode("forty<|im_end|>");
  w.scripts[0]->answer = [&](const auto&, auto) { return reply{said(answer, 4)}; };
  w.grant(1, 3);
  REQUIRE(w.records(1));
  const auto& [spec, record] = w.out->records[0];
  const auto prompt = text->encode("What is 0?");
  CHECK(*heard == std::vector<std::string>{"forty"});  // without the special token
  CHECK(record.tokens == prompt + answer);
  CHECK(record.mask == mask_of({{prompt.size(), 0}, {answer.size(), 1}}));
  CHECK(record.versions.back() == 4);
  CHECK(record.versions.front() == 0);
  CHECK(record.logprobs[prompt.size()] == -1.0F);
  CHECK(record.reward == 0.75);
  CHECK(record.success);
  CHECK(record.terminated);
  CHECK_FALSE(record.truncated);
  CHECK(record.turns == 1);
  CHECK(spec.task == "0");
  CHECK(spec.admitted == 3);
  CHECK(spec.attempt == 0);
  CHECK(spec.seed == weir::derive_seed(7, "episode", 0, 0));
  CHECK(w.counted([](const auto& c) { return c.finished == 1 && c.live == 0 && c.queued == 0; }));
}

TEST_CASE("an episode of several turns in text: the mask covers what the model produced, rewards are summed") {
  const auto text = small();
  auto heard = std::make_shared<std::vector<std::string>>();
  world w(settings_of(1, 1, 9), kind([=] { return three_turns(heard); }), {}, text);
  const std::vector<tokens> answers{text->encode("no"), text->encode("maybe<|im_end|>"), text->encode("yes")};
  w.scripts[0]->answer = [&](const auto&, std::size_t n) { return reply{said(answers[n], n)}; };
  w.grant(1);
  REQUIRE(w.records(1));
  CHECK(*heard == std::vector<std::string>{"no", "maybe", "yes"});
  const auto& [spec, record] = w.out->records[0];
  const std::vector<tokens> given{text->encode("Task 0: "), text->encode("again <|im_start|> 1: "),
                                  text->encode("again <|im_start|> 2: ")};
  tokens context;
  const auto asked = w.scripts[0]->all();
  REQUIRE(asked.size() == 3);
  std::vector<std::pair<std::size_t, std::uint8_t>> runs;
  for (std::size_t i = 0; i < 3; ++i) {
    context = context + given[i];
    CHECK(asked[i].context == context);
    CHECK(asked[i].seed == weir::derive_seed(spec.seed, "turn", i));
    context = context + answers[i];
    runs.insert(runs.end(), {{given[i].size(), 0}, {answers[i].size(), 1}});
  }
  CHECK(record.tokens == context);
  CHECK(record.mask == mask_of(runs));
  for (std::size_t i = 0; i < record.tokens.size(); ++i) {
    CHECK((record.logprobs[i] != 0) == (record.mask[i] != 0));
    if (record.mask[i] == 0) CHECK(record.versions[i] == 0);
  }
  CHECK(record.versions.back() == 2);
  CHECK(record.reward == 1.75);
  CHECK(record.turns == 3);
  CHECK(record.terminated);
  CHECK(record.success);
}

TEST_CASE("an episode of several turns in tokens, without a tokenizer") {
  world w(settings_of(1, 1, 9), kind([] {
            environment_script s;
            s.step = [](const weir::action& a) -> result<step_result> {
              step_result out;
              out.next = tokens{a.tokens[0] + 100};
              out.terminated = a.tokens.size() == 3 && a.text.empty();
              return out;
            };
            return s;
          }));
  w.scripts[0]->answer = [](const auto&, std::size_t n) {
    return reply{said(tokens(n + 1, static_cast<weir::token>(n)))};
  };
  w.grant(1);
  REQUIRE(w.records(1));
  const auto& record = w.out->records[0].record;
  CHECK(record.tokens == tokens{10, 11, 0, 100, 1, 1, 101, 2, 2, 2});
  CHECK(record.mask == std::vector<std::uint8_t>{0, 0, 1, 0, 1, 1, 0, 1, 1, 1});
}

TEST_CASE("the turn limit truncates, and so may the environment") {
  auto heard = std::make_shared<std::vector<std::string>>();
  const auto text = small();
  SECTION("the limit") {
    world w(settings_of(1, 1, 2), kind([=] { return three_turns(heard); }), {}, text);
    w.grant(1);
    REQUIRE(w.records(1));
    const auto& record = w.out->records[0].record;
    CHECK(record.truncated);
    CHECK_FALSE(record.terminated);
    CHECK(record.turns == 2);
    CHECK(record.reward == 1.5);
    CHECK(record.mask.back() == 1);  // the environment's last word is not recorded: nobody answered it
  }
  SECTION("a limit that the episode just keeps") {
    world w(settings_of(1, 1, 3), kind([=] { return three_turns(heard); }), {}, text);
    w.grant(1);
    REQUIRE(w.records(1));
    CHECK(w.out->records[0].record.terminated);
    CHECK_FALSE(w.out->records[0].record.truncated);
  }
  SECTION("the environment") {
    world w(settings_of(1, 1, 3), kind([] {
              environment_script s;
              s.step = [](const weir::action&) -> result<step_result> {
                return step_result{tokens{}, 2, false, true, false};
              };
              return s;
            }));
    w.grant(1);
    REQUIRE(w.records(1));
    CHECK(w.out->records[0].record.truncated);
    CHECK(w.out->records[0].record.reward == 2);
  }
}

TEST_CASE("a context that grew too long truncates; one that was too long from the start fails") {
  auto heard = std::make_shared<std::vector<std::string>>();
  const auto text = small();
  world w(settings_of(1, 1, 9), kind([=] { return three_turns(heard); }), {}, text);
  std::size_t too_long = 1;
  auto code = weir::errc::invalid_argument;
  w.scripts[0]->answer = [&](const auto&, std::size_t n) {
    return n == too_long ? reply{weir::fail(code, "the context is too long")} : reply{};
  };
  SECTION("after a turn") {
    w.grant(1);
    REQUIRE(w.records(1));
    const auto& record = w.out->records[0].record;
    CHECK(record.truncated);
    CHECK_FALSE(record.terminated);
    CHECK(record.turns == 1);
    CHECK(record.reward == 1);
    CHECK(w.counted([](const auto& c) { return c.dropped_groups == 0; }));
  }
  SECTION("before the first") {
    too_long = 0;
    w.grant(1);
    REQUIRE(w.dropped(1));
    CHECK(w.out->dropped[0].reason == "generation failed: the context is too long");
    CHECK(w.out->record_count() == 0);
  }
  SECTION("another error after a turn is a failure") {
    code = weir::errc::numeric;
    w.grant(1);
    REQUIRE(w.dropped(1));
    CHECK(w.out->record_count() == 0);
  }
}

TEST_CASE("text that has no token is counted, and the first of it kept with where it came from") {
  // Knows the letters of "no" and the space, and nothing else.
  auto few = weir::tokenizer::parse(R"({"model": {"type": "BPE", "vocab": {"n": 0, "o": 1, "\u0120": 2}, "merges": []},
                                        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}})",
                                    "few.json");
  REQUIRE(few);
  auto lost = std::make_shared<weir::lost_text>();
  auto turns = std::make_shared<int>(0);
  world w(settings_of(1, 1, 3), kind([=] {
            environment_script s;
            s.reset = [=](const nlohmann::json&, std::uint64_t) -> result<observation> {
              *turns = 0;
              return observation("no no");
            };
            s.step = [=](const weir::action&) -> result<step_result> {
              step_result out;
              out.terminated = ++*turns == 3;
              out.next = *turns == 1 ? "no: n\u00f6" : "not";
              return out;
            };
            return s;
          }),
          {.lost = lost}, std::make_shared<const weir::tokenizer>(*few));
  w.grant(2);
  REQUIRE(w.records(2));
  const auto first = lost->news();
  REQUIRE(first);
  CHECK(first->text == "no: n\u00f6");
  CHECK(first->lost == ":\u00f6");
  CHECK(first->place.starts_with("an observation of the environment's at the task "));
  CHECK_FALSE(lost->news());
  CHECK(lost->so_far().texts == 4);
  CHECK(lost->so_far().bytes == 8);
}

// The parts that are no actors: task stream, data position, episode recorder, demonstrations.
#include <algorithm>
#include <set>

#include "support.hpp"
#include "weir/environment/countdown.hpp"
#include "weir/sandbox/demonstrations.hpp"

using namespace weir::testing;

TEST_CASE("each epoch of a task stream is a permutation of its own, and a function of the seed") {
  const auto tasks = numbered_tasks(50);
  weir::task_stream stream(tasks, 3), again(tasks, 3), other(tasks, 4);
  std::vector<std::vector<std::string>> epochs(3);
  bool differs = false;
  for (std::uint64_t g = 0; g < 150; ++g) {
    epochs[g / 50].push_back(stream.task(g));
    differs = differs || stream.task(g) != other.task(g);
  }
  CHECK(differs);
  CHECK(epochs[0] != epochs[1]);
  CHECK(epochs[1] != epochs[2]);
  CHECK(epochs[0] != tasks);
  for (auto epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    auto all = tasks;
    std::sort(all.begin(), all.end());
    CHECK(epoch == all);
  }
  // Whatever was asked before, also from an epoch to an earlier one.
  for (std::uint64_t g : {149, 0, 77, 3, 149, 50, 1'000'000'007}) CHECK(again.task(g) == stream.task(g));
  for (std::uint64_t g = 150; g-- > 0;) CHECK(again.task(g) == epochs[g / 50][g % 50]);
}

TEST_CASE("a task stream that does not shuffle repeats the given order") {
  weir::task_stream stream({"a", "b", "c"}, 3, false);
  std::string seen;
  for (std::uint64_t g = 0; g < 7; ++g) seen += stream.task(g);
  CHECK(seen == "abcabca");
  CHECK(stream.size() == 3);
  CHECK_THROWS_AS(weir::task_stream({}, 0), std::invalid_argument);
}

TEST_CASE("a data position closes its gaps as they are done") {
  weir::data_position position;
  for (std::uint64_t g : {1, 3, 4}) position.done(g);
  CHECK(position.below() == 0);
  CHECK(position.above() == std::set<std::uint64_t>{1, 3, 4});
  position.done(0);
  CHECK(position.below() == 2);
  position.done(0);  // twice: no harm
  position.done(2);
  CHECK(position.below() == 5);
  CHECK(position.above().empty());
  CHECK(position.is_done(4));
  CHECK_FALSE(position.is_done(5));
  position.done(7);
  CHECK(weir::data_position::from(5, {7}) == position);
  CHECK(weir::data_position::from(5, {5, 7, 6}).below() == 8);
}

TEST_CASE("a recorder masks what was produced, and only that") {
  weir::episode_recorder recorder;
  weir::episode_spec spec;
  spec.group = 5;
  spec.sample = 2;
  recorder.start(spec);
  recorder.given(tokens{1, 2});
  recorder.produced(said({3, 4}, 9));
  recorder.rewarded(0.5);
  recorder.given(tokens{5});
  recorder.given(tokens{});
  CHECK(recorder.context() == tokens{1, 2, 3, 4, 5});
  recorder.produced(said({6}, 11));
  recorder.rewarded(-2);
  CHECK(recorder.turns() == 2);
  const auto record = recorder.finish(false, true, true);
  CHECK(record.group == 5);
  CHECK(record.sample == 2);
  CHECK(record.tokens == tokens{1, 2, 3, 4, 5, 6});
  CHECK(record.mask == std::vector<std::uint8_t>{0, 0, 1, 1, 0, 1});
  CHECK(record.logprobs == std::vector<float>{0, 0, -1, -2, 0, -1});
  CHECK(record.versions == std::vector<weir::weight_version>{0, 0, 9, 9, 0, 11});
  CHECK(record.reward == -1.5);
  CHECK(record.truncated);
  CHECK_FALSE(record.terminated);
  CHECK(record.success);
  CHECK(record.turns == 2);
  CHECK(weir::oldest_version(record, 99) == 9);
}

TEST_CASE("a recorder starts anew: after finish, and when an episode was given up") {
  weir::episode_recorder recorder;
  recorder.start({});
  recorder.given(tokens{1});
  recorder.produced(said({2}));
  recorder.rewarded(1);
  recorder.start({});
  CHECK(recorder.context().empty());
  CHECK(recorder.turns() == 0);
  recorder.given(tokens{3});
  CHECK(recorder.finish(true, false, false).reward == 0);
  CHECK(recorder.context().empty());
}

TEST_CASE("demonstrations are a function of the seed and their number") {
  auto text = weir::tokenizer::load(std::string(WEIR_FIXTURES) + "/tokenizer-small");
  REQUIRE(text);
  auto shared = std::make_shared<const weir::tokenizer>(*text);
  const std::vector<std::string> tasks{R"({"digits":[3,7,5],"target":38})", R"({"digits":[1,2,3],"target":7})"};
  auto source = [&](std::uint64_t seed, std::unique_ptr<weir::environment> place = nullptr) {
    if (!place) place = std::move(*weir::countdown().make(nlohmann::json::object()));
    return weir::demonstration_source(std::move(place), shared, std::make_shared<weir::task_stream>(tasks, 1, false),
                                      seed);
  };
  auto all = source(5).take(0, 20);
  REQUIRE(all);
  REQUIRE(all->size() == 20);
  auto later = source(5).take(13, 7);
  REQUIRE(later);
  CHECK(std::equal(later->begin(), later->end(), all->begin() + 13));
  CHECK(*source(6).take(0, 20) != *all);
  const auto& first = all->front();
  CHECK(text->decode(first.tokens).find("375=38:") == 0);
  CHECK(std::count(first.mask.begin(), first.mask.end(), 0) ==
        static_cast<std::ptrdiff_t>(text->encode("375=38:").size()));
  CHECK(first.success);

  const auto length = static_cast<std::int64_t>(first.tokens.size());
  for (const std::int64_t most : {length, length - 1}) {
    weir::demonstration_source bounded(std::move(*weir::countdown().make(nlohmann::json::object())), shared,
                                       std::make_shared<weir::task_stream>(tasks, 1, false), 5, most);
    const auto taken = bounded.take(0, 1);
    CHECK(taken.has_value() == (most == length));
    if (taken) continue;
    CHECK(taken.error().message.find(R"({"digits":[3,7,5],"target":38})") != std::string::npos);
    CHECK(taken.error().message.find("rollout.max_context, " + std::to_string(most)) != std::string::npos);
  }
  auto lost = std::make_shared<weir::lost_text>();
  auto few = weir::tokenizer::parse(
      R"({"model": {"type": "BPE", "vocab": {"3": 0, "5": 1, "7": 2, ":": 3, "*": 4, "+": 5}, "merges": []},
                                        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}})",
      "few.json");
  REQUIRE(few);
  weir::demonstration_source losing(std::move(*weir::countdown().make(nlohmann::json::object())),
                                    std::make_shared<const weir::tokenizer>(*few),
                                    std::make_shared<weir::task_stream>(tasks, 1, false), 5, 100, lost);
  REQUIRE(losing.take(0, 1));
  const auto news = lost->news();
  REQUIRE(news);
  CHECK(news->text == "375=38:");
  CHECK(news->lost == "=8");
  CHECK(news->place == "the environment's prompt for the task " + tasks[0]);
  CHECK(lost->so_far().texts == 2);
  CHECK(lost->so_far().bytes == 3);  // the answer's semicolon
  std::stop_source stop;
  stop.request_stop();
  const auto stopped = source(5).take(0, 1, stop.get_token());
  REQUIRE_FALSE(stopped);
  CHECK(stopped.error().code == weir::errc::unavailable);

  auto silent = source(5, std::move(*made({}))).take(0, 1);
  REQUIRE_FALSE(silent);
  CHECK(silent.error().code == weir::errc::unsupported);
  CHECK(silent.error().message.find("\"target\":38") != std::string::npos);
}

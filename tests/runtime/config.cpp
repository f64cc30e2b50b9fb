// Declarative config: reading, all problems at once, overrides, round trips, the table.
#include "weir/runtime/config.hpp"

#include <algorithm>
#include <limits>

#include "catch.hpp"
#include "weir/runtime/names.hpp"

using nlohmann::json;

namespace {

struct sampling_part {
  double temperature = 1.0;
  float top_p = 0.1F;
  std::vector<std::string> stop;
};

struct trainer_part {
  double lr = 1e-4;
  std::string loss = "ppo";
  std::uint32_t batch_size = 8;
  std::int16_t offset = 0;
  std::uint64_t seed = 0;
  std::int64_t shift = 0;
  sampling_part sampling;
};

struct whole {
  std::string model = "m";
  bool verbose = false;
  std::optional<double> clip;
  std::vector<int> layers = {1, 2};
  json environment = json::object();
  trainer_part trainer;
};

template <class Fields>
void describe(Fields& f, sampling_part& c) {
  f("temperature", c.temperature, "divides the logits", weir::above(0), weir::at_most(2.5));
  f("top_p", c.top_p, "nucleus");
  f("stop", c.stop, "strings that end it");
}
template <class Fields>
void describe(Fields& f, trainer_part& c) {
  f("lr", c.lr, "step size of AdamW", weir::above(0.0), weir::below(1));
  f("loss", c.loss, "objective", weir::one_of({"ppo", "grpo"}));
  f("batch_size", c.batch_size, "groups a step", weir::at_least(1));
  f("offset", c.offset, "any");
  f("seed", c.seed, "of every random stream");
  f("shift", c.shift, "any");
  f("sampling", c.sampling, "how tokens are drawn");
}
template <class Fields>
void describe(Fields& f, whole& c) {
  f("model", c.model, "folder", weir::not_empty());
  f("verbose", c.verbose, "say more");
  f("clip", c.clip, "norm, or null", weir::at_least(0));
  f("layers", c.layers, "some", weir::at_least(0), weir::not_empty());
  f("environment", c.environment, "its own settings");
  f("trainer", c.trainer, "the trainer");
}

struct needy {
  std::string model;
  std::optional<std::string> name;
};
template <class Fields>
void describe(Fields& f, needy& c) {
  f("model", c.model, "folder", weir::not_empty());
  f("name", c.name, "a name");
}

struct twice {
  int a = 0;
};
template <class Fields>
void describe(Fields& f, twice& c) {
  f("a", c.a, "");
  f("a", c.a, "");
}

struct dotted {
  int a = 0;
};
template <class Fields>
void describe(Fields& f, dotted& c) {
  f("a.b", c.a, "");
}

/// The error of a config, without its first line; "" if it was accepted.
template <class T = whole>
std::string problems(const json& root) {
  auto read = weir::read_config<T>(root, "run.json");
  if (read) return "";
  CHECK(read.error().code == weir::errc::invalid_config);
  const auto& text = read.error().message;
  CHECK(text.starts_with("run.json: "));
  return text.substr(text.find('\n') + 1);
}

json with(const std::string& pointer, json value) {
  json root = json::object();
  root[json::json_pointer(pointer)] = std::move(value);
  return root;
}

}  // namespace

TEST_CASE("a config that is right is read, and what is absent keeps its default") {
  auto read = weir::read_config<whole>(json::parse(R"({
    "verbose": true, "clip": 2, "layers": [3], "environment": {"any": [1, null]},
    "trainer": {"lr": 0.5, "batch_size": 1e3, "offset": -32768, "seed": 18446744073709551615,
                "sampling": {"stop": ["a", ""], "top_p": 1}}})"),
                                       "run.json");
  REQUIRE(read);
  CHECK(read->model == "m");
  CHECK(read->verbose);
  CHECK(read->clip == 2.0);
  CHECK(read->layers == std::vector<int>{3});
  CHECK(read->environment == json::parse(R"({"any": [1, null]})"));
  CHECK(read->trainer.lr == 0.5);
  CHECK(read->trainer.batch_size == 1000);
  CHECK(read->trainer.offset == -32768);
  CHECK(read->trainer.seed == std::numeric_limits<std::uint64_t>::max());
  CHECK(read->trainer.sampling.temperature == 1.0);
  CHECK(read->trainer.sampling.top_p == 1.0F);
  CHECK(read->trainer.sampling.stop == std::vector<std::string>{"a", ""});
  CHECK(weir::read_config<whole>(json::object(), "x"));
}

TEST_CASE("null is an absent optional and nothing else") {
  auto read = weir::read_config<whole>(with("/clip", nullptr), "x");
  REQUIRE(read);
  CHECK_FALSE(read->clip);
  CHECK(problems(with("/verbose", nullptr)) == "  verbose: found null, needs boolean");
  CHECK(problems(with("/trainer", nullptr)).starts_with("  trainer: found null, needs object with lr, loss, "));
}

TEST_CASE("every problem is reported, a line each") {
  auto read = weir::read_config<whole>(json::parse(R"({
    "verbos": true, "clip": "no", "layers": [1, -1, "x"],
    "trainer": {"lr": 0, "loss": "dpo", "batch_size": -1, "sampling": {"temperature": 3}}})"),
                                       "run.json");
  REQUIRE_FALSE(read);
  CHECK(read.error().code == weir::errc::invalid_config);
  CHECK(read.error().message ==
        "run.json: 8 problems\n"
        "  unknown field verbos; did you mean verbose?\n"
        "  clip: found string \"no\", needs number or null, at least 0\n"
        "  layers[1]: found number -1, needs list of integer, at least 0, not empty\n"
        "  layers[2]: found string \"x\", needs list of integer, at least 0, not empty\n"
        "  trainer.lr: found number 0, needs number, above 0, below 1\n"
        "  trainer.loss: found string \"dpo\", needs string, one of \"ppo\", \"grpo\"\n"
        "  trainer.batch_size: found number -1, needs integer, at least 1 (integers from 0 to 4294967295)\n"
        "  trainer.sampling.temperature: found number 3, needs number, above 0, at most 2.5");
}

TEST_CASE("bounds are inclusive or not, as they say") {
  CHECK(problems(with("/trainer/sampling/temperature", 2.5)).empty());
  CHECK_FALSE(problems(with("/trainer/sampling/temperature", 2.5000001)).empty());
  CHECK(problems(with("/trainer/batch_size", 1)).empty());
  CHECK_FALSE(problems(with("/trainer/batch_size", 0)).empty());
  CHECK_FALSE(problems(with("/trainer/lr", 0)).empty());
  CHECK(problems(with("/trainer/lr", 1e-300)).empty());
  CHECK_FALSE(problems(with("/trainer/lr", 1)).empty());
}

TEST_CASE("integers keep to their type's range and are never rounded") {
  CHECK_FALSE(problems(with("/trainer/offset", 32768)).empty());
  CHECK_FALSE(problems(with("/trainer/offset", -32769)).empty());
  CHECK_FALSE(problems(with("/trainer/batch_size", 4294967296)).empty());
  CHECK_FALSE(problems(with("/trainer/batch_size", 1.5)).empty());
  CHECK_FALSE(problems(with("/trainer/batch_size", true)).empty());
  CHECK(problems(with("/trainer/seed", -1)) ==
        "  trainer.seed: found number -1, needs integer, at least 0 (integers from 0 to 18446744073709551615)");
  CHECK_FALSE(problems(json::parse(R"({"trainer": {"seed": 18446744073709551616}})")).empty());
  CHECK_FALSE(problems(json::parse(R"({"trainer": {"shift": -9223372036854775809}})")).empty());
  CHECK_FALSE(problems(with("/trainer/sampling/top_p", 1e39)).empty());
}

TEST_CASE("the nearest of some names is found, if one is near") {
  const std::vector<std::string> names{"train", "resume", "eval", "dry-run"};
  CHECK(weir::nearest_name("trian", names) == "train");
  CHECK(weir::nearest_name("Resume", names) == "resume");
  CHECK(weir::nearest_name("evaluate", names) == std::nullopt);
  CHECK(weir::nearest_name("dryrun", names) == "dry-run");
  CHECK(weir::nearest_name("", names) == std::nullopt);
  CHECK(weir::nearest_name("train", {}) == std::nullopt);
}

TEST_CASE("a string with a NUL, at which the system would end a path, is refused") {
  using namespace std::string_literals;
  CHECK(problems(with("/model", "a\0b"s)) ==
        "  model: found string \"a\\u0000b\", needs string, not empty (without NUL characters)");
  CHECK(problems(with("/trainer/sampling/stop", {"a", "\0"s}))
            .starts_with("  trainer.sampling.stop[1]: found string \"\\u0000\""));
}

TEST_CASE("an unknown field names what was meant") {
  auto asked = [](const std::string& pointer) { return problems(with(pointer, 1)); };
  CHECK(asked("/trainer/learning_rate") == "  unknown field trainer.learning_rate; did you mean trainer.lr?");
  CHECK(asked("/lr") == "  unknown field lr; did you mean trainer.lr?");
  CHECK(asked("/trainer/batchSize") == "  unknown field trainer.batchSize; did you mean trainer.batch_size?");
  CHECK(asked("/trainer/batch-size") == "  unknown field trainer.batch-size; did you mean trainer.batch_size?");
  CHECK(asked("/trainer/batch") == "  unknown field trainer.batch; did you mean trainer.batch_size?");
  CHECK(asked("/trainer/temprature") ==
        "  unknown field trainer.temprature; did you mean trainer.sampling.temperature?");
  CHECK(asked("/trainer/sampling/xyzzy") ==
        "  unknown field trainer.sampling.xyzzy; trainer.sampling has temperature, top_p, stop");
  CHECK(asked("/trainer.lr") == "  unknown field trainer.lr; a dot names no inner field in a file: nest the objects");
  CHECK(problems(json{{"a\nb", 1}}).find('\n') == std::string::npos);
}

TEST_CASE("an empty default with not_empty is a required field") {
  CHECK(problems<needy>(json::object()) == "  model: missing, and its default is string \"\", needs string, not empty");
  CHECK(problems<needy>({{"model", ""}}) == "  model: found string \"\", needs string, not empty");
  CHECK(problems<needy>({{"model", "x"}, {"name", nullptr}}).empty());
  CHECK(problems(with("/layers", json::array())).find("not empty") != std::string::npos);
}

TEST_CASE("a config that is no object is an error that shows it in short") {
  auto read = weir::read_config<needy>(json::array({std::string(500, 'x')}), "run.json");
  REQUIRE_FALSE(read);
  CHECK(read.error().message.starts_with("run.json: found array [\"xxx"));
  CHECK(read.error().message.size() < 150);
}

TEST_CASE("the resolved config stands in declared order and reads back the same") {
  whole config;
  config.clip = 0.1 + 0.2;
  config.trainer.lr = std::numeric_limits<double>::denorm_min();
  config.trainer.sampling.temperature = 1.0 / 3.0;
  config.trainer.seed = std::numeric_limits<std::uint64_t>::max();
  config.trainer.sampling.stop = {"\n", "ü"};
  config.environment = {{"deep", {{"list", {1, 2.5, "x"}}}}};
  const auto text = weir::config_to_json(config).dump();
  CHECK(text.starts_with(R"({"model":"m","verbose":false,"clip":0.30000000000000004,"layers":[1,2],"environment":)"));
  CHECK(text.find(R"("top_p":0.1,)") != std::string::npos);
  auto read = weir::read_config<whole>(json::parse(text), "x");
  REQUIRE(read);
  CHECK(read->clip == config.clip);
  CHECK(read->trainer.lr == config.trainer.lr);
  CHECK(read->trainer.sampling.temperature == config.trainer.sampling.temperature);
  CHECK(read->trainer.sampling.top_p == config.trainer.sampling.top_p);
  CHECK(read->trainer.seed == config.trainer.seed);
  CHECK(read->environment == config.environment);
  CHECK(weir::config_to_json(*read).dump() == text);
}

TEST_CASE("an override sets one value, JSON or string, and creates what leads to it") {
  json root = json::object();
  REQUIRE(weir::apply_override(root, "trainer.lr=1e-3"));
  REQUIRE(weir::apply_override(root, "trainer.loss=grpo"));
  REQUIRE(weir::apply_override(root, "layers=[1, 2]"));
  REQUIRE(weir::apply_override(root, "model=a=b"));
  REQUIRE(weir::apply_override(root, "empty="));
  REQUIRE(weir::apply_override(root, "text=\"1\""));
  CHECK(root == json::parse(R"({"trainer": {"lr": 1e-3, "loss": "grpo"}, "layers": [1, 2], "model": "a=b",
                                "empty": "", "text": "1"})"));
  REQUIRE(weir::apply_override(root, "trainer.lr=2"));
  CHECK(root["trainer"] == json::parse(R"({"lr": 2, "loss": "grpo"})"));
}

TEST_CASE("an override that cannot be applied says why and changes nothing") {
  json root = json::parse(R"({"trainer": {"lr": 1, "list": [1]}})");
  const auto before = root;
  auto refused = [&](const char* assignment, const char* why) {
    auto done = weir::apply_override(root, assignment);
    REQUIRE_FALSE(done);
    CHECK(done.error().code == weir::errc::invalid_argument);
    CHECK(done.error().message.find(why) != std::string::npos);
    CHECK(root == before);
  };
  refused("trainer.lr", "name=value");
  refused("=1", "empty");
  refused("trainer..lr=1", "empty");
  refused("trainer.=1", "empty");
  refused("trainer.lr.x=1", "trainer.lr is number 1 and has no fields");
  refused("trainer.list.0=1", "trainer.list is array [1]");
}

TEST_CASE("the table lists every field with type, default, rules and meaning") {
  const auto table = weir::document_config<whole>();
  CHECK(table.starts_with("field "));
  CHECK(std::count(table.begin(), table.end(), '\n') == 17);
  auto row = [&](const std::string& name) {
    const auto at = table.find("\n" + name + " ") + 1;
    std::string squeezed;
    for (char c : table.substr(at, table.find('\n', at) - at))
      if (c != ' ' || !squeezed.ends_with(' ')) squeezed += c;
    return squeezed;
  };
  CHECK(row("trainer.lr") == "trainer.lr number 0.0001 above 0, below 1 step size of AdamW");
  CHECK(row("trainer.loss") == "trainer.loss string \"ppo\" one of \"ppo\", \"grpo\" objective");
  CHECK(row("clip") == "clip number or null null at least 0 norm, or null");
  CHECK(row("trainer.seed") == "trainer.seed integer 0 at least 0 of every random stream");
}

TEST_CASE("a description with an impossible or repeated name is a fault of the program") {
  CHECK_THROWS_AS(weir::document_config<twice>(), std::logic_error);
  CHECK_THROWS_AS(weir::document_config<dotted>(), std::logic_error);
}

// JSON files: what is wrong in one is told by file, place and field.
#include "weir/runtime/files.hpp"

#include "catch.hpp"
#include "temporary.hpp"
#include "weir/runtime/json_view.hpp"

using nlohmann::json;
using weir::json_view;

namespace {

std::string complaint(const std::string& text) {
  auto read = weir::parse_json(text, "x.json");
  REQUIRE_FALSE(read);
  CHECK(read.error().code == weir::errc::invalid_data);
  CHECK(read.error().message.find("exception") == std::string::npos);
  return read.error().message;
}

template <class Ask>
std::string mismatch(const json& content, Ask ask) {
  try {
    ask(json_view(content, "x.json"));
  } catch (const json_view::mismatch& e) {
    return e.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("an error in JSON is told by line and column") {
  CHECK(complaint("{\n  \"a\": ]\n}").starts_with("x.json:2:8: "));
  CHECK(complaint("{\"a\": 1, \"a\": 2}") == "x.json: the key \"a\" stands twice in one object");
  CHECK(complaint("\"\xFF\"").starts_with("x.json:1:2: "));
  CHECK(complaint("").starts_with("x.json:1:1: "));
}

TEST_CASE("a number that no double holds is told by its field") {
  CHECK(complaint("{\"trainer\": {\"steps\": 3,\n \"lr\": 1e999}}") ==
        "x.json:2:8: trainer.lr: the number 1e999 is beyond what a double holds");
  CHECK(complaint("[{\"a\": [true, null, \"1e999\", [1], {\"b\": 2.5}, -1E+999 ]}]") ==
        "x.json:1:47: [0].a[5]: the number -1E+999 is beyond what a double holds");
  CHECK(complaint("1e999") == "x.json:1:1: the number 1e999 is beyond what a double holds");
  CHECK(weir::parse_json("[1e308, 18446744073709551616, 1e-999]", "x.json"));
}

TEST_CASE("a NUL byte is an error wherever it stands, not the end of the text") {
  using namespace std::string_literals;
  CHECK(complaint("{\"a\":\n 1}\0, 2"s).starts_with("x.json:2:4: a NUL byte"));
  CHECK(complaint("\"a\0b\""s).starts_with("x.json:1:3: a NUL byte"));
  CHECK(weir::parse_json("\"a\\u0000b\"", "x.json"));
}

TEST_CASE("what is wrong in a JSONL file is told by its line") {
  using namespace std::string_literals;
  temporary_folder folder;
  const auto path = folder / "t.jsonl";
  auto failure = [&](const std::string& text) {
    put(path, text);
    auto read = weir::read_jsonl_file(path);
    REQUIRE_FALSE(read);
    return read.error().message;
  };
  const auto name = path.string();
  CHECK(failure("1\n\n[2,\n").starts_with(name + ":3:4: "));
  CHECK(failure("1\n{\"a\": 1, \"a\": 2}\n").starts_with(name + ":2: the key \"a\""));
  CHECK(failure("1\n2\n{\"a\": 1}\0{\"b\": 2}\n"s).starts_with(name + ":3:9: a NUL byte"));
  CHECK(failure("1\n{\"a\": -1e400}").starts_with(name + ":2:7: a: the number -1e400"));
  put(path, "\xEF\xBB\xBF{\"b\": 1, \"a\": [2]}\r\n\n  \n3");
  auto read = weir::read_jsonl_file(path);
  REQUIRE(read);
  CHECK(*read == std::vector<std::string>{"{\"a\":[2],\"b\":1}", "3"});
}

TEST_CASE("a view of a JSON file reads what is there") {
  const auto content = json::parse(R"({"list": [1, -2, 2.5, true, "t"], "object": {"a": {"b": 3}}})");
  const json_view view(content, "x.json");
  const auto list = view.at("list");
  CHECK(list.size() == 5);
  CHECK(list.at(0).natural() == 1);
  CHECK(list.at(1).integer() == -2);
  CHECK(list.at(2).number() == 2.5);
  CHECK(list.at(1).number() == -2);
  CHECK(list.at(3).flag());
  CHECK(list.at(4).text() == "t");
  CHECK(view.at("object").at("a").at("b").integer() == 3);
  CHECK(view.has("list"));
  CHECK_FALSE(view.has("a"));
  CHECK_FALSE(list.has("a"));
  REQUIRE(view.items().size() == 2);
  CHECK(view.items()[0].first == "list");
  CHECK(view.items()[1].second.has("a"));
}

TEST_CASE("a view of a JSON file says where it is not as it should be") {
  const auto content = json::parse(R"({"list": [1, -2, 2.5, 18446744073709551615], "object": {"a": {"b": "x"}}})");
  CHECK(mismatch(content, [](auto v) { v.at("none"); }) == "x.json: none is missing");
  CHECK(mismatch(content, [](auto v) { v.at("object").at("a").at("c"); }) == "x.json: object.a.c is missing");
  CHECK(mismatch(content, [](auto v) { v.at("list").at(7); }) == "x.json: list[7] is missing");
  CHECK(mismatch(content, [](auto v) { v.at("object").at("a").at("b").number(); }) ==
        "x.json: object.a.b is \"x\", needs a number");
  CHECK(mismatch(content, [](auto v) { v.at("list").at(1).natural(); }) ==
        "x.json: list[1] is -2, needs an integer of at least 0");
  CHECK(mismatch(content, [](auto v) { v.at("list").at(2).integer(); }) == "x.json: list[2] is 2.5, needs an integer");
  CHECK(mismatch(content, [](auto v) { v.at("list").at(3).integer(); }) ==
        "x.json: list[3] is 18446744073709551615, needs an integer");
  CHECK(mismatch(content, [](auto v) { v.at("list").flag(); }) == "x.json: list is a list of 4, needs true or false");
  CHECK(mismatch(content, [](auto v) { v.at("list").at(0).text(); }) == "x.json: list[0] is 1, needs a string");
  CHECK(mismatch(content, [](auto v) { v.at("list").at("a"); }) ==
        "x.json: list is a list of 4, needs an object with a");
  CHECK(mismatch(content, [](auto v) { v.at(0); }) == "x.json: holds an object, needs a list");
  CHECK(mismatch(content, [](auto v) { v.at("list").items(); }) == "x.json: list is a list of 4, needs an object");
  CHECK(mismatch(json(std::string(100, 'y')), [](auto v) { v.number(); }) ==
        "x.json: holds \"" + std::string(56, 'y') + "..., needs a number");
}

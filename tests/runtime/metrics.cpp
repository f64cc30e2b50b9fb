// The metrics file.
#include "weir/runtime/metrics.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "temporary.hpp"

using nlohmann::ordered_json;

namespace {

ordered_json step(int n) { return {{"step", n}, {"loss", 0.5}}; }

using marks = std::vector<weir::metrics_mark>;
marks through(std::uint64_t n) { return {{"step", n}}; }

std::string lines(std::initializer_list<int> steps) {
  std::string text;
  for (int n : steps) text += step(n).dump() + "\n";
  return text;
}

}  // namespace

TEST_CASE("metrics are one object a line, in order, and NaN is null") {
  temporary_folder folder;
  auto log = weir::metrics_log::open(folder / "m.jsonl");
  REQUIRE(log);
  REQUIRE(log->append(step(1)));
  REQUIRE(log->append({{"z", std::nan("")}, {"a", std::numeric_limits<double>::infinity()}, {"text", "a\nb\xFF"}}));
  CHECK(content(folder / "m.jsonl") == lines({1}) + "{\"z\":null,\"a\":null,\"text\":\"a\\nb\xEF\xBF\xBD\"}\n");
}

TEST_CASE("an opened metrics file is appended to") {
  temporary_folder folder;
  put(folder / "m.jsonl", lines({1, 2}));
  auto log = weir::metrics_log::open(folder / "m.jsonl");
  REQUIRE(log);
  REQUIRE(log->append(step(3)));
  CHECK(content(folder / "m.jsonl") == lines({1, 2, 3}));
}

TEST_CASE("resuming drops the steps after the checkpoint and what is torn") {
  temporary_folder folder;
  const auto path = folder / "m.jsonl";
  auto after = [&](const std::string& before, const marks& kept) {
    put(path, before);
    auto log = weir::metrics_log::open(path, kept);
    REQUIRE(log);
    REQUIRE(log->append(step(9)));
    return content(path);
  };
  CHECK(after(lines({1, 2, 3, 4}), through(2)) == lines({1, 2, 9}));
  CHECK(after(lines({1, 2}), through(2)) == lines({1, 2, 9}));
  CHECK(after(lines({1, 2}), through(0)) == lines({9}));
  CHECK(after(lines({1}) + "{\"step\":2,\"lo", {}) == lines({1, 9}));
  CHECK(after(lines({1}) + "{\"step\":2}", through(5)) == lines({1, 9}));
  CHECK(after(lines({1}) + std::string(8, '\0') + "\n", through(5)) == lines({1, 9}));
  const std::string note = "{\"note\":1}\n";
  CHECK(after(note + lines({1}) + note + lines({2}) + note, through(1)) == note + lines({1}) + note + lines({9}));
  auto warm = [](int n) { return "{\"warm_start_step\":" + std::to_string(n) + "}\n"; };
  const marks early{{"warm_start_step", 1}, {"step", 0}}, late{{"warm_start_step", 2}, {"step", 1}};
  const auto whole = warm(1) + warm(2) + note + lines({0, 1, 2});
  CHECK(after(whole, early) == warm(1) + lines({0, 9}));
  CHECK(after(whole, late) == warm(1) + warm(2) + note + lines({0, 1, 9}));
  CHECK(after(warm(1) + warm(2), {{"warm_start_step", 0}, {"step", 0}}) == lines({9}));
}

TEST_CASE("a broken line in the middle of a metrics file is named and nothing is lost") {
  temporary_folder folder;
  const auto before = lines({1}) + "nonsense\n" + lines({2, 3});
  put(folder / "m.jsonl", before);
  auto log = weir::metrics_log::open(folder / "m.jsonl", through(1));
  REQUIRE_FALSE(log);
  CHECK(log.error().code == weir::errc::invalid_data);
  CHECK(log.error().message == (folder / "m.jsonl").string() + " line 2 is no JSON object");
  CHECK(content(folder / "m.jsonl") == before);
}

TEST_CASE("a metrics file that cannot be opened is an error that names it") {
  temporary_folder folder;
  auto log = weir::metrics_log::open(folder / "none/m.jsonl");
  REQUIRE_FALSE(log);
  CHECK(log.error().code == weir::errc::not_found);
  CHECK(log.error().message.find("none/m.jsonl") != std::string::npos);
  CHECK_FALSE(weir::metrics_log::open(folder.path()));
}

TEST_CASE("a full disk is an error that names the file") {
  auto log = weir::metrics_log::open("/dev/full", through(3));
  REQUIRE(log);
  auto written = log->append(step(1));
  REQUIRE_FALSE(written);
  CHECK(written.error().code == weir::errc::io);
  CHECK(written.error().message.find("/dev/full") != std::string::npos);
}

TEST_CASE("a line that does not fit leaves no part of itself") {
  temporary_folder folder;
  const auto path = folder / "m.jsonl";
  const int status = in_child([&] {
    limit_files(lines({1, 2}).size() + 5);
    auto log = weir::metrics_log::open(path);
    if (!log || !log->append(step(1)) || !log->append(step(2))) return 1;
    if (log->append(step(3))) return 2;
    return content(path) == lines({1, 2}) && log->append({1}) && content(path) == lines({1, 2}) + "[1]\n" ? 0 : 3;
  });
  CHECK(status == 0);
}

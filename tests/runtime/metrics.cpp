// The metrics file, live values, busy time.
#include "weir/runtime/metrics.hpp"

#include <cmath>
#include <limits>
#include <thread>

#include "catch.hpp"
#include "temporary.hpp"

using namespace std::chrono_literals;
using nlohmann::ordered_json;

namespace {

ordered_json step(int n) { return {{"step", n}, {"loss", 0.5}}; }

std::string lines(std::initializer_list<int> steps) {
  std::string text;
  for (int n : steps) text += step(n).dump() + "\n";
  return text;
}

}  // namespace

TEST_CASE("metrics are one object a line, in order, and NaN is null") {
  temporary_folder folder;
  auto log = weir::metrics_log::open(folder / "m.jsonl", std::nullopt);
  REQUIRE(log);
  REQUIRE(log->append(step(1)));
  REQUIRE(log->append({{"z", std::nan("")}, {"a", std::numeric_limits<double>::infinity()}, {"text", "a\nb\xFF"}}));
  CHECK(content(folder / "m.jsonl") == lines({1}) + "{\"z\":null,\"a\":null,\"text\":\"a\\nb\xEF\xBF\xBD\"}\n");
}

TEST_CASE("an opened metrics file is appended to") {
  temporary_folder folder;
  put(folder / "m.jsonl", lines({1, 2}));
  auto log = weir::metrics_log::open(folder / "m.jsonl", std::nullopt);
  REQUIRE(log);
  REQUIRE(log->append(step(3)));
  CHECK(content(folder / "m.jsonl") == lines({1, 2, 3}));
}

TEST_CASE("resuming drops the steps after the checkpoint and what is torn") {
  temporary_folder folder;
  const auto path = folder / "m.jsonl";
  auto after = [&](const std::string& before, std::optional<std::uint64_t> through) {
    put(path, before);
    auto log = weir::metrics_log::open(path, through);
    REQUIRE(log);
    REQUIRE(log->append(step(9)));
    return content(path);
  };
  CHECK(after(lines({1, 2, 3, 4}), 2) == lines({1, 2, 9}));
  CHECK(after(lines({1, 2}), 2) == lines({1, 2, 9}));
  CHECK(after(lines({1, 2}), 0) == lines({9}));
  CHECK(after(lines({1}) + "{\"step\":2,\"lo", std::nullopt) == lines({1, 9}));
  CHECK(after(lines({1}) + "{\"step\":2}", 5) == lines({1, 9}));
  CHECK(after(lines({1}) + std::string(8, '\0') + "\n", 5) == lines({1, 9}));
  const std::string note = "{\"note\":1}\n";
  CHECK(after(note + lines({1}) + note + lines({2}) + note, 1) == note + lines({1}) + note + lines({9}));
}

TEST_CASE("a broken line in the middle of a metrics file is named and nothing is lost") {
  temporary_folder folder;
  const auto before = lines({1}) + "nonsense\n" + lines({2, 3});
  put(folder / "m.jsonl", before);
  auto log = weir::metrics_log::open(folder / "m.jsonl", 1);
  REQUIRE_FALSE(log);
  CHECK(log.error().code == weir::errc::invalid_data);
  CHECK(log.error().message == (folder / "m.jsonl").string() + " line 2 is no JSON object");
  CHECK(content(folder / "m.jsonl") == before);
}

TEST_CASE("a metrics file that cannot be opened is an error that names it") {
  temporary_folder folder;
  auto log = weir::metrics_log::open(folder / "none/m.jsonl", std::nullopt);
  REQUIRE_FALSE(log);
  CHECK(log.error().code == weir::errc::not_found);
  CHECK(log.error().message.find("none/m.jsonl") != std::string::npos);
  CHECK_FALSE(weir::metrics_log::open(folder.path(), std::nullopt));
}

TEST_CASE("a full disk is an error that names the file") {
  auto log = weir::metrics_log::open("/dev/full", 3);
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
    auto log = weir::metrics_log::open(path, std::nullopt);
    if (!log || !log->append(step(1)) || !log->append(step(2))) return 1;
    if (log->append(step(3))) return 2;
    return content(path) == lines({1, 2}) && log->append({1}) && content(path) == lines({1, 2}) + "[1]\n" ? 0 : 3;
  });
  CHECK(status == 0);
}

TEST_CASE("a name is one value for all who ask, listed in the order of first asking") {
  weir::metrics_registry registry;
  auto b = registry.counter("b");
  auto a = registry.gauge("a");
  b->fetch_add(2);
  registry.counter("b")->fetch_add(1);
  registry.gauge("a")->store(-0.5);
  auto samples = registry.snapshot();
  REQUIRE(samples.size() == 2);
  CHECK(samples[0].name == "b");
  CHECK(std::get<std::uint64_t>(samples[0].value) == 3);
  CHECK(samples[1].name == "a");
  CHECK(std::get<double>(samples[1].value) == -0.5);
  CHECK_THROWS_AS(registry.gauge("b"), std::logic_error);
  CHECK(registry.snapshot().size() == 2);
}

TEST_CASE("many threads may ask for and change metrics at once") {
  weir::metrics_registry registry;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&registry] {
      for (int i = 0; i < 1000; ++i) {
        registry.counter("c" + std::to_string(i % 7))->fetch_add(1);
        if (i % 100 == 0) (void)registry.snapshot();
      }
    });
  for (auto& thread : threads) thread.join();
  std::uint64_t sum = 0;
  for (const auto& sample : registry.snapshot()) sum += std::get<std::uint64_t>(sample.value);
  CHECK(sum == 4000);
}

TEST_CASE("busy time counts stretches of work and no others") {
  weir::busy_meter meter;
  CHECK(meter.seconds() == 0);
  meter.leave();
  CHECK(meter.seconds() == 0);
  meter.enter();
  std::this_thread::sleep_for(3ms);
  const auto under_way = meter.seconds();
  CHECK(under_way >= 0.003);
  meter.enter();
  std::this_thread::sleep_for(3ms);
  meter.leave();
  const auto total = meter.seconds();
  CHECK(total >= under_way + 0.003);
  std::this_thread::sleep_for(3ms);
  CHECK(meter.seconds() == total);
  meter.enter();
  CHECK(meter.seconds() >= total);
  CHECK(meter.seconds() < total + 60);
}

TEST_CASE("busy time never runs backwards for those who watch") {
  weir::busy_meter meter;
  std::atomic<bool> done{false};
  std::thread worker([&] {
    for (int i = 0; i < 100000; ++i) {
      meter.enter();
      meter.leave();
    }
    done = true;
  });
  double last = 0;
  bool backwards = false;
  while (!done) {
    const auto now = meter.seconds();
    backwards = backwards || now < last;
    last = now;
  }
  worker.join();
  CHECK_FALSE(backwards);
}

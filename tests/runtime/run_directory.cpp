// The run directory: made once, used by one process, checkpoints whole or not there.
#include "weir/runtime/run_directory.hpp"

#include <memory>

#include "catch.hpp"
#include "temporary.hpp"

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

const ordered_json some_config = {{"z", 1}, {"a", 0.1}};

weir::run_directory make(const fs::path& path) {
  auto made = weir::run_directory::create(path, some_config);
  REQUIRE(made);
  return *std::move(made);
}

void save(weir::run_directory& run, std::uint64_t step, std::size_t keep, const std::string& text = "x") {
  auto pending = run.begin_checkpoint(step);
  REQUIRE(pending);
  fs::create_directories(pending->path() / "deep");
  put(pending->path() / "deep" / "state", text);
  auto done = pending->commit(keep);
  REQUIRE(done);
  CHECK(done->step == step);
  CHECK(content(done->path / "deep" / "state") == text);
}

std::vector<std::uint64_t> steps(const weir::run_directory& run) {
  std::vector<std::uint64_t> found;
  auto all = run.checkpoints();
  REQUIRE(all);
  for (const auto& c : *all) found.push_back(c.step);
  return found;
}

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

using numbers = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("a run directory is made with its parents and holds the config in order") {
  temporary_folder folder;
  auto run = make(folder / "runs/first");
  CHECK(content(folder / "runs/first/config.json") == some_config.dump(2) + "\n");
  auto config = run.config();
  REQUIRE(config);
  CHECK(config->at("a") == 0.1);
  auto latest = run.latest_checkpoint();
  REQUIRE(latest);
  CHECK_FALSE(latest->has_value());
}

TEST_CASE("a folder with something in it is no place for a new run") {
  temporary_folder folder;
  put(folder / "notes.txt", "mine");
  auto made = weir::run_directory::create(folder.path(), some_config);
  REQUIRE_FALSE(made);
  CHECK(made.error().code == weir::errc::invalid_argument);
  CHECK(made.error().message.find("notes.txt") != std::string::npos);
  CHECK(made.error().message.find("weir resume") != std::string::npos);
  CHECK(made.error().message.find("--run-dir") != std::string::npos);
  CHECK(entries(folder.path()) == 1);
  CHECK_FALSE(weir::run_directory::create(folder / "notes.txt", some_config));
}

TEST_CASE("a folder where a new run died before its config was written can be used") {
  temporary_folder folder;
  put(folder / "lock", "1\n");
  CHECK(weir::run_directory::create(folder.path(), some_config));
}

TEST_CASE("opening says what is missing") {
  temporary_folder folder;
  auto none = weir::run_directory::open(folder / "none");
  REQUIRE_FALSE(none);
  CHECK(none.error().code == weir::errc::not_found);
  CHECK(none.error().message.find("none") != std::string::npos);
  auto empty = weir::run_directory::open(folder.path());
  REQUIRE_FALSE(empty);
  CHECK(empty.error().message.find("config.json") != std::string::npos);
  CHECK(entries(folder.path()) == 0);
  put(folder / "config.json", "{}");
  auto model = weir::run_directory::open(folder.path());
  REQUIRE_FALSE(model);
  CHECK(model.error().code == weir::errc::not_found);
  CHECK(model.error().message.find("is no run directory: it holds a config.json, but neither lock") !=
        std::string::npos);
  CHECK(entries(folder.path()) == 1);
  put(folder / "metrics.jsonl", "");  // a run whose lock someone deleted
  CHECK(weir::run_directory::open(folder.path()));
}

TEST_CASE("a config or a checkpoint folder that cannot be read is an error, not an empty one") {
  temporary_folder folder;
  { make(folder / "run"); }
  put(folder / "run/checkpoints", "a file");
  CHECK_FALSE(weir::run_directory::open(folder / "run"));
  fs::remove(folder / "run/checkpoints");
  fs::remove(folder / "run/config.json");
  fs::create_directory(folder / "run/config.json");
  auto run = weir::run_directory::open(folder / "run");
  REQUIRE(run);
  CHECK_FALSE(run->config());
  put(folder / "run/checkpoints", "a file");
  CHECK_FALSE(run->latest_checkpoint());
  CHECK_FALSE(run->begin_checkpoint(1));
}

TEST_CASE("two processes never use one run directory, and the second is told which the first is") {
  temporary_folder folder;
  auto run = std::make_unique<weir::run_directory>(make(folder / "run"));
  auto other = [&] {
    return in_child([&] {
      // The child has its parent's lock by inheritance, so it asks through a file of its own, as any process does.
      auto opened = weir::run_directory::open(folder / "run");
      if (opened) return 0;
      const auto& e = opened.error();
      return e.code == weir::errc::unavailable &&
                     e.message.find("process " + std::to_string(::getppid()) + " ") != std::string::npos
                 ? 1
                 : 2;
    });
  };
  CHECK(WEXITSTATUS(other()) == 1);
  auto again = weir::run_directory::create(folder / "run", some_config);
  REQUIRE_FALSE(again);
  run.reset();
  CHECK(WEXITSTATUS(other()) == 0);
  CHECK(weir::run_directory::open(folder / "run"));
}

TEST_CASE("the lock of a killed process is free") {
  temporary_folder folder;
  { make(folder / "run"); }
  const int status = in_child([&] {
    auto run = weir::run_directory::open(folder / "run");
    ::kill(::getpid(), SIGKILL);
    return run ? 0 : 1;
  });
  CHECK(WIFSIGNALED(status));
  CHECK(weir::run_directory::open(folder / "run"));
}

TEST_CASE("the newest checkpoints are kept") {
  temporary_folder folder;
  auto run = make(folder / "run");
  for (std::uint64_t step : {100, 200, 300}) save(run, step, 2);
  CHECK(steps(run) == numbers{200, 300});
  CHECK(fs::exists(folder / "run/checkpoints/step-00000300/deep/state"));
  save(run, 1234567890, 3);
  CHECK(steps(run) == numbers{200, 300, 1234567890});
  auto latest = run.latest_checkpoint();
  REQUIRE(latest);
  CHECK((*latest)->step == 1234567890);
  CHECK((*latest)->path == folder / "run/checkpoints/step-1234567890");
  save(run, 50, 1);
  CHECK(steps(run) == numbers{50, 1234567890});
  save(run, 60, 0);
  CHECK(steps(run) == numbers{60});
  CHECK(entries(folder / "run/checkpoints") == 1);
}

TEST_CASE("a checkpoint that is let go was never there") {
  temporary_folder folder;
  auto run = make(folder / "run");
  save(run, 1, 5);
  {
    auto pending = run.begin_checkpoint(2);
    REQUIRE(pending);
    put(pending->path() / "half", "x");
    auto moved = *std::move(pending);
    CHECK(fs::exists(moved.path() / "half"));
    CHECK(steps(run) == numbers{1});
  }
  CHECK(entries(folder / "run/checkpoints") == 1);
}

TEST_CASE("a step that is there already is replaced") {
  temporary_folder folder;
  auto run = make(folder / "run");
  save(run, 7, 5, "old");
  fs::create_directories(folder / "run/checkpoints/.replaced-step-00000007/left");
  save(run, 7, 5, "new");
  CHECK(entries(folder / "run/checkpoints") == 1);
}

TEST_CASE("a commit that fails leaves the older checkpoints") {
  temporary_folder folder;
  auto run = make(folder / "run");
  save(run, 1, 5);
  {
    auto pending = run.begin_checkpoint(1);
    REQUIRE(pending);
    fs::remove_all(pending->path());
    CHECK_FALSE(pending->commit(5));
  }
  CHECK(content(folder / "run/checkpoints/step-00000001/deep/state") == "x");
  CHECK(entries(folder / "run/checkpoints") == 1);
}

TEST_CASE("opening removes what a crash left and puts back what was moved aside") {
  temporary_folder folder;
  const auto checkpoints = folder / "run/checkpoints";
  {
    auto run = make(folder / "run");
    save(run, 1, 5, "one");
    save(run, 2, 5, "two");
  }
  // Died while writing step 3, between the two renames of step 2, and before it had deleted the old step 1.
  fs::create_directory(checkpoints / ".partial-step-00000003");
  fs::rename(checkpoints / "step-00000002", checkpoints / ".replaced-step-00000002");
  fs::create_directory(checkpoints / ".partial-step-00000002");
  fs::create_directory(checkpoints / ".replaced-step-00000001");
  put(checkpoints / "step-x", "no checkpoint");
  auto run = weir::run_directory::open(folder / "run");
  REQUIRE(run);
  CHECK(steps(*run) == numbers{1, 2});
  CHECK(content(checkpoints / "step-00000001/deep/state") == "one");
  CHECK(content(checkpoints / "step-00000002/deep/state") == "two");
  CHECK(entries(checkpoints) == 3);
}

TEST_CASE("a disk that is full makes no run directory and says so") {
  temporary_folder folder;
  const int status = in_child([&] {
    limit_files(10);
    auto made = weir::run_directory::create(folder / "run", some_config);
    if (made || made.error().code != weir::errc::io) return 1;
    return made.error().message.find("config.json") != std::string::npos && entries(folder / "run") == 1 ? 0 : 2;
  });
  CHECK(status == 0);
  CHECK(weir::run_directory::create(folder / "run", some_config));
}

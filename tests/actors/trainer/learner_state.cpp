// What a learner saves: with it training goes on as if it had not stopped.
#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "learner_support.hpp"
#include "weir/policy/safetensors.hpp"

using namespace weir::testing;

namespace {

constexpr double rate = 1e-2;

weir::learner stepped(std::uint64_t steps, const weir::learner_settings& settings = {}) {
  weir::learner l(small_model(), settings);
  for (std::uint64_t v = 0; v < steps; ++v) REQUIRE(l.step(random_batch(2, 3, 0.4, 10 * v), v, rate));
  return l;
}

}  // namespace

TEST_CASE("going on from a saved state is, bit for bit, not having stopped") {
  auto s = weir::learner_settings{};
  s.passes = GENERATE(1U, 2U);
  s.minibatches = s.passes;
  auto l = stepped(3, s);
  temporary_folder folder;
  REQUIRE(l.save_state(folder.path() / "state"));
  // The other one has another model and moments of its own: all of it is replaced.
  weir::learner other(weir::causal_lm::random(small_config(), 99), s);
  REQUIRE(other.step(random_batch(1, 2), 0, rate));
  REQUIRE(other.load_state(folder.path() / "state"));
  CHECK(state_of(other) == state_of(l));
  for (weir::weight_version v = 3; v < 6; ++v) {
    const auto batch = random_batch(2, 3, 0.4, 10 * v);
    auto a = l.step(batch, v, rate), b = other.step(batch, v, rate);
    REQUIRE(a);
    REQUIRE(b);
    CHECK(a->loss == b->loss);
    CHECK(a->gradient_norm == b->gradient_norm);
    CHECK(state_of(other) == state_of(l));
  }
  CHECK(state_of(other) == state_of(stepped(6, s)));
}

TEST_CASE("a state is a safetensors file with the step count in its metadata") {
  auto l = stepped(2);
  temporary_folder folder;
  REQUIRE(l.save_state(folder.path() / "state"));
  auto file = weir::safetensors_file::open(folder.path() / "state");
  REQUIRE(file);
  CHECK(file->metadata().at("step") == "2");
  for (const char* name : {"parameters", "exp_avg", "exp_avg_sq"}) {
    REQUIRE(file->find(name) != nullptr);
    CHECK(file->find(name)->count() == l.model().flat().numel());
  }
  CHECK(std::memcmp(file->find("parameters")->bytes.data(), l.model().flat().data_ptr(), l.model().flat().nbytes()) ==
        0);
}

TEST_CASE("a state that cannot be taken up is an error that names the file, and changes nothing") {
  auto l = stepped(1);
  const auto before = state_of(l);
  temporary_folder folder;
  const auto path = folder.path() / "state.safetensors";
  REQUIRE(l.save_state(path));
  auto refused = [&](weir::errc code = weir::errc::invalid_data) {
    auto loaded = l.load_state(path);
    REQUIRE_FALSE(loaded);
    INFO(loaded.error().message);
    CHECK(loaded.error().code == code);
    CHECK(loaded.error().message.find("state.safetensors") != std::string::npos);
    CHECK(state_of(l) == before);
  };
  SECTION("cut short") {
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
    refused();
    std::filesystem::resize_file(path, 4);
    refused();
  }
  SECTION("of another model") {
    weir::learner other(weir::causal_lm::random(small_config(false), 1), {});
    REQUIRE(other.save_state(path));
    refused();
  }
  SECTION("a model, no state") {
    REQUIRE(l.model().save(folder.path() / "model"));
    std::filesystem::rename(folder.path() / "model" / "model.safetensors", path);
    refused();
  }
  SECTION("a step count that is none") {
    auto file = weir::safetensors_file::open(path);
    REQUIRE(file);
    std::vector<weir::safetensors_tensor> all;
    for (const auto& [name, e] : file->entries()) all.push_back({name, e.type, e.shape, e.bytes});
    for (const char* step : {"", "-1", "3x", "1e3", "99999999999999999999"}) {
      INFO(step);
      REQUIRE(weir::write_safetensors(path, all, {{"step", step}}));
      refused();
    }
    REQUIRE(weir::write_safetensors(path, all, {}));
    refused();
  }
  SECTION("not there") {
    std::filesystem::remove(path);
    refused(weir::errc::not_found);
  }
}

TEST_CASE("after reset_optimizer a step is that of a new learner") {
  auto l = stepped(3);
  weir::learner fresh(weir::causal_lm::bind(small_config(), l.model().flat().clone()), {});
  const auto batch = random_batch(2, 3, 0.4, 100);
  l.reset_optimizer();
  CHECK(state_of(l) == state_of(fresh));
  REQUIRE(l.step(batch, 3, rate));
  REQUIRE(fresh.step(batch, 3, rate));
  CHECK(state_of(l) == state_of(fresh));
}

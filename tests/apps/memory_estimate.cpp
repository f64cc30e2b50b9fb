// What a run is said to hold in memory, and when that is too much.
#include "memory_estimate.hpp"

#include <algorithm>

#include "catch.hpp"

using namespace weir::app;

namespace {

/// Qwen3-0.6B, as its config.json has it.
run_parts a_run() {
  run_parts parts;
  parts.model.vocab_size = 151936;
  parts.model.hidden_size = 1024;
  parts.model.layers = 28;
  parts.model.heads = 16;
  parts.model.kv_heads = 8;
  parts.model.head_dim = 128;
  parts.model.intermediate_size = 3072;
  parts.model.max_positions = 40960;
  parts.model.tied_embeddings = true;
  parts.config.rollout.slots = 16;
  parts.config.rollout.max_context = 2048;
  return parts;
}

double bytes_of(const std::vector<memory_need>& needs, const std::string& what) {
  const auto found =
      std::find_if(needs.begin(), needs.end(), [&](const memory_need& n) { return n.what.starts_with(what); });
  return found == needs.end() ? -1 : found->bytes;
}

constexpr double model = 596'049'920 * 4.0;

}  // namespace

TEST_CASE("memory: each part follows from its fields") {
  auto parts = a_run();
  auto needs = memory_needs(parts, true);
  CHECK(bytes_of(needs, "keys and values") == 16.0 * 2048 * 28 * 8 * 128 * 2 * 4);
  CHECK(bytes_of(needs, "engines' weights") == 2 * model);
  CHECK(bytes_of(needs, "weight snapshots") == 3 * model);
  CHECK(bytes_of(needs, "trainer") == 4 * model);
  CHECK(bytes_of(needs, "activations") > 16384.0 * 2 * 151936 * 4);
  for (const auto& n : needs) CHECK(n.firm == (n.what != "activations, at most"));

  parts.config.rollout.engines = 2;
  parts.config.trainer.minibatches = 2;
  needs = memory_needs(parts, true);
  CHECK(bytes_of(needs, "keys and values") == 2 * 16.0 * 2048 * 28 * 8 * 128 * 2 * 4);
  CHECK(bytes_of(needs, "weight snapshots") == 4 * model);
  CHECK(bytes_of(needs, "trainer") == 7 * model);

  needs = memory_needs(parts, false);
  CHECK(bytes_of(needs, "engines' weights") == model);
  CHECK(bytes_of(needs, "keys and values") == 16.0 * 2048 * 28 * 8 * 128 * 2 * 4);
  CHECK(bytes_of(needs, "trainer") == -1);

  parts.config.trainer.batch_groups = parts.config.trainer.group_size = 2;
  parts.config.trainer.minibatches = 1;
  const auto few = bytes_of(memory_needs(parts, true), "activations");
  parts.config.trainer.micro_batch_tokens = 8192;
  CHECK(few == bytes_of(memory_needs(parts, true), "activations"));  // four sequences are no more
}

TEST_CASE("memory: too much of what is firm is an error, of the rest or of what is free a warning") {
  const std::vector<memory_need> needs{{"cache", 600, "a.b"},
                                       {"copies", 300, "c.d"},
                                       {"at most", 200, "e.f", false},
                                       {"elsewhere", 5000, "g", true, false}};
  auto check = [&](std::uint64_t most, std::uint64_t available) {
    return check_memory(needs, weir::memory_limits{most, available, "this machine"});
  };
  auto much = check(899, 899);
  REQUIRE_FALSE(much);
  CHECK(much.error().code == weir::errc::invalid_config);
  for (const char* text : {"900 B", "at most 1.1 kB", "899 B (this machine)", "cache", "600 B  a.b", "not counted"})
    CHECK(much.error().message.find(text) != std::string::npos);
  for (const auto& [most, available] : {std::pair{900U, 900U}, {1099U, 1099U}, {5000U, 1099U}, {5000U, 10U}}) {
    auto tight = check(most, available);
    REQUIRE(tight);
    REQUIRE(*tight);
    CHECK((*tight)->find("600 B  a.b") != std::string::npos);
  }
  CHECK_FALSE(*check(1100, 1100));
  CHECK_FALSE(*check_memory(needs, std::nullopt));
}

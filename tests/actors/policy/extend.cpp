// Acting: prefill and decode over the cache, against whole sequences; no row depends on its company.
#include <array>
#include <optional>

#include "catch.hpp"
#include "causal_lm_state.hpp"
#include "policy_support.hpp"

using namespace weir::testing;

namespace {

// The form of `extend` for other devices, on the CPU: an explicit instantiation may name a private member.
template <auto Member>
struct reach {
  friend auto& state_of(weir::causal_lm& model) { return *(model.*Member); }
};
auto& state_of(weir::causal_lm& model);
template struct reach<&weir::causal_lm::state_>;

/// A sequence in a slot: how far it is cached.
struct sequence {
  std::vector<weir::token> tokens;
  std::int64_t slot = 0;
  std::size_t done = 0;
};

weir::sequence_chunk next_chunk(const sequence& s, std::size_t count) {
  return {s.slot, static_cast<std::int64_t>(s.done), std::span(s.tokens).subspan(s.done, count)};
}

/// Logits [T, vocab] of the whole sequence at once.
at::Tensor whole(weir::causal_lm& model, const sequence& s) { return model.logits(packed({s.tokens})); }

}  // namespace

TEST_CASE("prefill and decode give the logits of the whole sequence") {
  const auto tied = GENERATE(true, false);
  auto model = weir::causal_lm::random(small_config(tied), 21);
  weir::random_stream random(22);
  for (std::size_t first : {1, 2, 7, 16, 17, 30}) {
    sequence s{random_tokens(random, 30, 37), 2, 0};
    const auto expected = whole(model, s);
    weir::kv_cache cache(model.config(), 4, 32);
    for (auto count = first; s.done < s.tokens.size(); count = 1) {
      const std::vector<weir::sequence_chunk> chunks{next_chunk(s, count)};
      const auto logits = model.extend(cache, chunks);
      s.done += count;
      INFO("after " << s.done << " tokens, " << first << " of them at once");
      REQUIRE(logits.sizes() == at::IntArrayRef({1, 37}));
      CHECK(largest_difference(logits[0], expected[static_cast<std::int64_t>(s.done) - 1]) < 1e-5);
    }
  }
}

TEST_CASE("sequences join, leave and take over slots, in chunks of any length") {
  auto model = weir::causal_lm::random(small_config(), 23);
  weir::random_stream random(24);
  constexpr std::int64_t slots = 7, capacity = 40;
  weir::kv_cache cache(model.config(), slots, capacity);
  std::vector<std::optional<sequence>> live(slots);
  std::vector<at::Tensor> expected(slots);
  int finished = 0;
  while (finished < 30) {
    std::vector<weir::sequence_chunk> chunks;
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i < slots; ++i) {
      if (!live[i] && random.below(2) == 0) {
        const auto length = 1 + static_cast<std::int64_t>(random.below(capacity));  // up to a full slot
        live[i] = sequence{random_tokens(random, length, 37), static_cast<std::int64_t>(i), 0};
        expected[i] = whole(model, *live[i]);
      }
      if (!live[i] || random.below(4) == 0) continue;  // some rest
      const auto left = live[i]->tokens.size() - live[i]->done;
      const auto count = random.below(2) == 0 ? 1 : 1 + random.below(left);
      chunks.push_back(next_chunk(*live[i], count));
      live[i]->done += count;
    }
    // In any order.
    for (std::size_t i = chunks.size(); i > 1; --i) std::swap(chunks[i - 1], chunks[random.below(i)]);
    if (chunks.empty()) continue;
    const auto logits = model.extend(cache, chunks);
    REQUIRE(logits.size(0) == static_cast<std::int64_t>(chunks.size()));
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      const auto slot = static_cast<std::size_t>(chunks[c].slot);
      CHECK(largest_difference(logits[static_cast<std::int64_t>(c)],
                               expected[slot][static_cast<std::int64_t>(live[slot]->done) - 1]) < 1e-5);
      if (live[slot]->done == live[slot]->tokens.size()) {
        live[slot].reset();
        ++finished;
      }
    }
  }
}

TEST_CASE("a sequence may go back: what follows its start is written anew") {
  auto model = weir::causal_lm::random(small_config(), 25);
  weir::random_stream random(26);
  weir::kv_cache cache(model.config(), 1, 16);
  sequence a{random_tokens(random, 12, 37), 0, 0}, b = a;
  for (std::size_t i = 5; i < b.tokens.size(); ++i) b.tokens[i] = (b.tokens[i] + 1) % 37;
  const auto expected = whole(model, b);
  model.extend(cache, std::vector{next_chunk(a, 12)});
  b.done = 5;
  CHECK(largest_difference(model.extend(cache, std::vector{next_chunk(b, 3)})[0], expected[7]) < 1e-5);
}

TEST_CASE("a row is the same, bit for bit, whatever else is in the call and whichever slot it has") {
  auto config = small_config(GENERATE(true, false));
  // Widths on both sides of what a BLAS treats in another way.
  config.vocab_size = GENERATE(37, 130);
  auto model = weir::causal_lm::random(config, 27);
  weir::random_stream random(28);
  constexpr std::int64_t slots = 41, capacity = 48;
  weir::kv_cache cache(config, slots, capacity), alone(config, 1, capacity + 5);
  int wrong = 0;
  for (int round = 0; round < 25; ++round) {
    const auto count = 1 + random.below(40);
    std::vector<sequence> all;
    for (std::size_t i = 0; i < count; ++i)
      all.push_back({random_tokens(random, 4 + static_cast<std::int64_t>(random.below(40)), config.vocab_size),
                     static_cast<std::int64_t>(i), 0});
    const auto watched = random.below(count);
    // Each sequence in two calls: a prefill of any length, then one token or several.
    for (int call = 0; call < 2; ++call) {
      std::vector<weir::sequence_chunk> chunks;
      for (auto& s : all) {
        const auto most = s.tokens.size() - s.done;
        const auto size = call == 0 ? 1 + random.below(most - 1) : random.below(3) == 0 ? 1 + random.below(most) : 1;
        chunks.push_back(next_chunk(s, size));
        s.done += size;
      }
      auto own = chunks[watched];
      own.slot = 0;
      const auto row = model.extend(cache, chunks)[static_cast<std::int64_t>(watched)].clone();
      if (!same_bits(model.extend(alone, std::vector{own})[0], row)) ++wrong;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a token's row is the same, bit for bit, whether it came alone or at the end of a chunk") {
  auto model = weir::causal_lm::random(small_config(), 29);
  weir::random_stream random(30);
  for (std::int64_t length : {2, 9, 16, 33}) {
    sequence s{random_tokens(random, length, 37), 0, 0};
    weir::kv_cache at_once(model.config(), 1, 40), stepwise(model.config(), 1, 40);
    const auto expected = model.extend(at_once, std::vector{next_chunk(s, s.tokens.size())}).clone();
    at::Tensor last;
    for (; s.done < s.tokens.size(); ++s.done) last = model.extend(stepwise, std::vector{next_chunk(s, 1)});
    CHECK(same_bits(last, expected));
  }
}

TEST_CASE("the form for other devices gives the same logits") {
  auto model = weir::causal_lm::random(small_config(GENERATE(true, false)), 31);
  weir::random_stream random(32);
  weir::kv_cache fused(model.config(), 6, 32), composite(model.config(), 6, 32);
  std::vector<sequence> all;
  for (std::int64_t i = 0; i < 5; ++i) all.push_back({random_tokens(random, 31, 37), 5 - i, 0});
  for (int call = 0; call < 8; ++call) {
    std::vector<weir::sequence_chunk> chunks;
    for (auto& s : all) {
      if (random.below(4) == 0) continue;
      const auto size = 1 + random.below(4);
      if (s.done + size > s.tokens.size()) continue;
      chunks.push_back(next_chunk(s, size));
      s.done += size;
    }
    if (chunks.empty()) continue;
    const auto expected = model.extend(fused, chunks).clone();
    at::NoGradGuard none;
    CHECK(largest_difference(state_of(model).extend_composite(composite, chunks), expected) < 1e-5);
  }
}

TEST_CASE("a slot that takes over another's beginning goes on bit for bit as that one does") {
  auto model = weir::causal_lm::random(small_config(), 34);
  weir::random_stream random(35);
  weir::kv_cache cache(model.config(), 3, 24);
  sequence first{random_tokens(random, 20, 37), 0, 0}, rest{random_tokens(random, 24, 37), 2, 0};
  model.extend(cache, std::vector{next_chunk(rest, 24)});  // what the slot held before
  model.extend(cache, std::vector{next_chunk(first, 12)});
  cache.copy(0, 2, 9);
  auto second = first;
  second.slot = 2;
  second.done = 9;
  first.done = 12;
  const auto expected = whole(model, first);
  CHECK(largest_difference(model.extend(cache, std::vector{next_chunk(second, 4)})[0], expected[12]) < 1e-5);
  second.done = 13;
  const auto a = model.extend(cache, std::vector{next_chunk(first, 5)}).clone();
  CHECK(same_bits(model.extend(cache, std::vector{next_chunk(second, 4)}), a));
  for (auto [from, to, tokens] :
       {std::array<std::int64_t, 3>{0, 0, 1}, {-1, 0, 1}, {0, 3, 1}, {3, 0, 1}, {0, 1, 25}, {0, 1, -1}})
    CHECK_FALSE(thrown_by([&, f = from, t = to, n = tokens] { cache.copy(f, t, n); }).empty());
}

TEST_CASE("a call that cannot be met is refused, and the cache is as before") {
  auto model = weir::causal_lm::random(small_config(), 33);
  weir::kv_cache cache(model.config(), 2, 8), untouched(model.config(), 2, 8);
  const std::vector<weir::token> prompt{1, 2, 3}, nine(9, 1), none, outside{1, 37}, negative{-1}, next{4};
  for (auto* c : {&cache, &untouched}) model.extend(*c, std::vector<weir::sequence_chunk>{{0, 0, prompt}});
  auto refused = [&](const std::vector<weir::sequence_chunk>& chunks) {
    return !thrown_by([&] { model.extend(cache, chunks); }).empty();
  };
  CHECK(refused({{0, 3, next}, {0, 4, next}}));  // a slot twice
  CHECK(refused({{0, 0, nine}}));
  CHECK(refused({{0, 6, prompt}}));
  CHECK(refused({{0, std::numeric_limits<std::int64_t>::max(), prompt}}));
  CHECK(refused({{2, 0, next}}));
  CHECK(refused({{-1, 0, next}}));
  CHECK(refused({{0, -1, next}}));
  CHECK(refused({{0, 3, none}}));
  CHECK(refused({{0, 3, next}, {1, 0, outside}}));
  CHECK(refused({{1, 0, negative}}));
  const std::vector<weir::sequence_chunk> on{{0, 3, next}};
  const auto expected = model.extend(untouched, on).clone();
  CHECK(same_bits(model.extend(cache, on), expected));
  CHECK(model.extend(cache, {}).size(0) == 0);
  CHECK_THROWS_AS(weir::kv_cache(model.config(), 0, 8), std::invalid_argument);
  CHECK_THROWS_AS(weir::kv_cache(model.config(), 1, 0), std::invalid_argument);
}

TEST_CASE("a cache knows its size") {
  const weir::kv_cache cache(small_config(), 3, 16);
  CHECK(cache.slots() == 3);
  CHECK(cache.capacity() == 16);
  CHECK(cache.bytes() ==
        2U * 2 * 3 * 2 * 16 * 10 * sizeof(float));  // keys and values, layers, slots, heads, tokens, width
}

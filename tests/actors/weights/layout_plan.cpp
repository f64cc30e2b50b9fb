// From a published layout to an engine's.
#include "weir/weights/layout_plan.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "catch.hpp"

using namespace weir;

namespace {

manifest packed(const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& tensors,
                dtype type = dtype::f32) {
  manifest m;
  for (const auto& [name, shape] : tensors) {
    const auto count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    const auto bytes = static_cast<std::uint64_t>(count) * size_of(type);
    m.tensors.push_back({name, type, shape, m.bytes, bytes});
    m.bytes += (bytes + 63) / 64 * 64;
  }
  return m;
}

/// Every tensor's elements are 1000 times its number plus their place.
std::vector<float> numbered(const manifest& m) {
  std::vector<float> data(m.bytes / 4, -1);
  for (std::size_t i = 0; i < m.tensors.size(); ++i)
    for (std::size_t j = 0; j < m.tensors[i].bytes / 4; ++j)
      data[m.tensors[i].offset / 4 + j] = static_cast<float>(1000 * i + j);
  return data;
}

std::vector<float> applied(const layout_plan& plan, const std::vector<float>& published) {
  std::vector<float> out(plan.target().bytes / 4, -2);
  plan.apply(std::as_bytes(std::span(published)), std::as_writable_bytes(std::span(out)));
  return out;
}

const tensor_spec& tensor(const manifest& m, const std::string& name) {
  for (const auto& t : m.tensors)
    if (t.name == name) return t;
  FAIL("no tensor " << name);
  return m.tensors.front();
}

/// A model of two key-value heads, four heads of 2, hidden size 4.
manifest small_model() {
  return packed({{"model.embed_tokens.weight", {6, 4}},
                 {"model.layers.0.input_layernorm.weight", {4}},
                 {"model.layers.0.self_attn.q_proj.weight", {8, 4}},
                 {"model.layers.0.self_attn.k_proj.weight", {4, 4}},
                 {"model.layers.0.self_attn.v_proj.weight", {4, 4}},
                 {"model.layers.0.self_attn.o_proj.weight", {4, 8}},
                 {"model.layers.0.mlp.gate_proj.weight", {12, 4}},
                 {"model.layers.0.mlp.up_proj.weight", {12, 4}},
                 {"model.layers.0.mlp.down_proj.weight", {4, 12}},
                 {"model.norm.weight", {4}}});
}

/// Rows of a tensor of `numbered` as a list: tensor number, first element, how many.
std::vector<float> run(int tensor_number, int first, int count) {
  std::vector<float> r(static_cast<std::size_t>(count));
  std::iota(r.begin(), r.end(), static_cast<float>(1000 * tensor_number + first));
  return r;
}

std::vector<float> of(const layout_plan& plan, const std::vector<float>& data, const std::string& name) {
  const auto& t = tensor(plan.target(), name);
  const auto begin = data.begin() + static_cast<std::ptrdiff_t>(t.offset / 4);
  return {begin, begin + static_cast<std::ptrdiff_t>(t.bytes / 4)};
}

std::vector<float> operator+(std::vector<float> a, const std::vector<float>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("a rank of a tensor-parallel engine gets its heads, rows and columns, fused") {
  const auto published = small_model();
  const auto data = numbered(published);
  auto recipes = shard_recipes(published, {1, 2, 2, true, true});
  REQUIRE(recipes);
  auto plan = layout_plan::make(published, *recipes, dtype::f32);
  REQUIRE(plan);
  CHECK_FALSE(plan->in_place());
  const auto engine = applied(*plan, data);
  const std::string layer = "model.layers.0.";
  // Rank 1: query heads 2 and 3, key-value head 1.
  CHECK(of(*plan, engine, layer + "self_attn.qkv_proj.weight") == run(2, 16, 16) + run(3, 8, 8) + run(4, 8, 8));
  CHECK(of(*plan, engine, layer + "self_attn.o_proj.weight") ==
        run(5, 4, 4) + run(5, 12, 4) + run(5, 20, 4) + run(5, 28, 4));
  CHECK(of(*plan, engine, layer + "mlp.gate_up_proj.weight") == run(6, 24, 24) + run(7, 24, 24));
  CHECK(of(*plan, engine, layer + "mlp.down_proj.weight") ==
        run(8, 6, 6) + run(8, 18, 6) + run(8, 30, 6) + run(8, 42, 6));
  CHECK(of(*plan, engine, "model.embed_tokens.weight") == run(0, 12, 12));
  CHECK(of(*plan, engine, "lm_head.weight") == run(0, 12, 12));
  CHECK(of(*plan, engine, "model.norm.weight") == run(9, 0, 4));
  CHECK(tensor(plan->target(), layer + "self_attn.qkv_proj.weight").shape == std::vector<std::int64_t>{8, 4});
}

TEST_CASE("neighbours share a key-value head where there are more ranks than heads") {
  const auto published = small_model();
  const auto data = numbered(published);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    auto recipes = shard_recipes(published, {rank, 4, 2, false, false});
    // Six rows of vocabulary do not divide by four; the rest does.
    REQUIRE_FALSE(recipes);
    CHECK(recipes.error().message ==
          "tensor model.embed_tokens.weight of shape [6, 4] cannot be divided among 4 ranks");
    auto without = published;
    without.tensors.erase(without.tensors.begin());
    recipes = shard_recipes(without, {rank, 4, 2, false, false});
    REQUIRE(recipes);
    auto plan = layout_plan::make(published, *recipes, dtype::f32);
    REQUIRE(plan);
    const auto engine = applied(*plan, data);
    CHECK(of(*plan, engine, "model.layers.0.self_attn.q_proj.weight") == run(2, static_cast<int>(rank) * 8, 8));
    CHECK(of(*plan, engine, "model.layers.0.self_attn.k_proj.weight") == run(3, static_cast<int>(rank / 2) * 8, 8));
  }
  CHECK(shard_recipes(published, {0, 3, 2, true, true}).error().message.find("by heads of 2") != std::string::npos);
  CHECK(shard_recipes(published, {2, 2, 2, true, true}).error().message == "rank 2 is not one of 2");
}

TEST_CASE("slices of any dimension are laid along any other") {
  const auto published = packed({{"a", {3, 4, 5}}, {"b", {3, 4, 5}}});
  const auto data = numbered(published);
  for (std::size_t cut = 0; cut < 3; ++cut)
    for (std::size_t along = 0; along < 3; ++along) {
      CAPTURE(cut, along);
      const std::vector<tensor_recipe> recipes{{"both", {{"a", cut, 1, 3}, {"b", cut, 0, 2}}, along}};
      auto plan = layout_plan::make(published, recipes, dtype::f32);
      REQUIRE(plan);
      const auto engine = applied(*plan, data);
      const auto& shape = plan->target().tensors[0].shape;
      std::vector<std::int64_t> sliced{3, 4, 5};
      sliced[cut] = 2;
      std::int64_t at[3];
      std::size_t wrong = 0, place = 0;
      for (at[0] = 0; at[0] < shape[0]; ++at[0])
        for (at[1] = 0; at[1] < shape[1]; ++at[1])
          for (at[2] = 0; at[2] < shape[2]; ++at[2]) {
            std::int64_t from[3] = {at[0], at[1], at[2]};
            const auto which = from[along] / sliced[along];
            from[along] %= sliced[along];
            if (which == 0) ++from[cut];
            const auto expected = 1000 * which + (from[0] * 4 + from[1]) * 5 + from[2];
            wrong += engine[place++] != static_cast<float>(expected) ? 1 : 0;
          }
      CHECK(wrong == 0);
    }
}

TEST_CASE("what has the same layout is read in place, and what has only part of it leaves the rest alone") {
  const auto model = small_model();
  auto plan = layout_plan::make(model, model, layout_fit::exact);
  REQUIRE(plan);
  CHECK(plan->in_place());
  CHECK_FALSE(plan->leaves_some());
  CHECK(plan->as_a_whole() == dtype::f32);
  const auto narrow = layout_plan::make(retyped(model, dtype::bf16), model, layout_fit::exact).value();
  CHECK_FALSE(narrow.in_place());
  CHECK(narrow.as_a_whole() == dtype::bf16);

  auto some = select_tensors(model, std::vector<std::string>{"*norm*", "*.q_proj.*"});
  REQUIRE(some);
  REQUIRE(some->tensors.size() == 3);
  auto partial = layout_plan::make(*some, model, layout_fit::partial);
  REQUIRE(partial);
  CHECK_FALSE(partial->in_place());
  CHECK(partial->leaves_some());
  CHECK_FALSE(partial->as_a_whole());
  const auto back = layout_plan::make(model, *some, layout_fit::subset).value();
  const auto taken = applied(back, numbered(model));
  CHECK(std::vector<float>(taken.begin() + 16, taken.begin() + 48) == run(2, 0, 32));
  const auto update = numbered(*some);
  auto engine = numbered(model);
  const auto before = engine;
  partial->apply(std::as_bytes(std::span(update)), std::as_writable_bytes(std::span(engine)));
  for (const auto& t : model.tensors) {
    std::vector<float> now(engine.begin() + static_cast<std::ptrdiff_t>(t.offset / 4),
                           engine.begin() + static_cast<std::ptrdiff_t>((t.offset + t.bytes) / 4));
    std::vector<float> was(before.begin() + static_cast<std::ptrdiff_t>(t.offset / 4),
                           before.begin() + static_cast<std::ptrdiff_t>((t.offset + t.bytes) / 4));
    const bool named = t.name.find("norm") != std::string::npos || t.name.find("q_proj") != std::string::npos;
    CHECK((now != was) == named);
  }

  CHECK(layout_plan::make(*some, model, layout_fit::exact).error().message ==
        "tensor model.embed_tokens.weight of the engine's model is not published");
  CHECK(layout_plan::make(model, *some, layout_fit::partial).error().message ==
        "tensor model.embed_tokens.weight is published, and the engine's model has none of that name");
  auto other = model;
  other.tensors[2].shape = {4, 8};
  CHECK(layout_plan::make(other, model, layout_fit::exact).error().message ==
        "tensor model.layers.0.self_attn.q_proj.weight is published with shape [4, 8], the engine's model has [8, 4]");
  CHECK(select_tensors(model, std::vector<std::string>{"*lora*"}).error().message.find("\"*lora*\"") !=
        std::string::npos);
}

TEST_CASE("a recipe that does not fit is told by its tensor") {
  const auto model = packed({{"a", {3, 4}}, {"b", {5, 6}}});
  const auto told = [&](tensor_recipe r) {
    const std::vector<tensor_recipe> one{std::move(r)};
    auto plan = layout_plan::make(model, one, dtype::f32);
    REQUIRE_FALSE(plan);
    return plan.error().message;
  };
  CHECK(told({"x", {{"c"}}, 0}) == "tensor x: there is no published tensor c");
  CHECK(told({"x", {}, 0}) == "tensor x: its recipe has no slice");
  CHECK(told({"x", {{"a", 2}}, 0}).find("dimension that a of shape [3, 4] does not have") != std::string::npos);
  CHECK(told({"x", {{"a", 0, 1, 9}}, 0}) == "tensor x: the slice from 1 to 9 is not in a of shape [3, 4]");
  CHECK(told({"x", {{"a", 0, 2, 2}}, 0}).find("from 2 to 2") != std::string::npos);
  CHECK(told({"x", {{"a"}, {"b"}}, 0}).find("slice of b does not fit beside the others") != std::string::npos);
  auto fits = layout_plan::make(model, std::vector<tensor_recipe>{{"x", {{"a"}}, 0}}, dtype::f32);
  REQUIRE(fits);
  std::vector<std::byte> bytes(64), small(32);
  CHECK_THROWS_AS(fits->apply(bytes, small), std::invalid_argument);
}

TEST_CASE("types are converted to the nearest, ties to even, and every bf16 and f16 comes back as it was") {
  const auto pass = [](dtype from, dtype to, std::span<const std::byte> in, std::span<std::byte> out) {
    const auto count = static_cast<std::int64_t>(in.size() / size_of(from));
    const manifest a{{{"t", from, {count}, 0, in.size()}}, in.size()},
        b{{{"t", to, {count}, 0, out.size()}}, out.size()};
    layout_plan::make(a, b, layout_fit::exact).value().apply(in, out);
  };
  std::vector<std::uint16_t> all(65536), back(65536), other(65536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  std::vector<float> wide(65536);
  for (auto type : {dtype::bf16, dtype::f16}) {
    pass(type, dtype::f32, std::as_bytes(std::span(all)), std::as_writable_bytes(std::span(wide)));
    pass(dtype::f32, type, std::as_bytes(std::span(wide)), std::as_writable_bytes(std::span(back)));
    std::size_t changed = 0;
    for (std::size_t i = 0; i < all.size(); ++i)
      changed += all[i] != back[i] && !std::isnan(wide[i]) ? 1 : std::isnan(wide[i]) && back[i] == 0 ? 1 : 0;
    CHECK(changed == 0);
  }
  const std::vector<float> in{
      1.0F, 1.00390625F, 1.01171875F, 1.005F, -1.00390625F, 3.4e38F, std::numeric_limits<float>::quiet_NaN()};
  std::vector<std::uint16_t> out(in.size());
  pass(dtype::f32, dtype::bf16, std::as_bytes(std::span(in)), std::as_writable_bytes(std::span(out)));
  CHECK(std::vector(out.begin(), out.end() - 1) ==
        std::vector<std::uint16_t>{0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xbf80, 0x7f80});
  CHECK((out.back() & 0x7fffU) > 0x7f80U);
  // 65504 is f16's largest; bf16's 65536 is its infinity.
  const std::vector<std::uint16_t> halves{0x7bff, 0x3c00, 0x0001};
  std::vector<std::uint16_t> brains(3);
  pass(dtype::f16, dtype::bf16, std::as_bytes(std::span(halves)), std::as_writable_bytes(std::span(brains)));
  CHECK(brains == std::vector<std::uint16_t>{0x4780, 0x3f80, 0x3380});
  std::vector<std::uint16_t> again(3);
  pass(dtype::bf16, dtype::f16, std::as_bytes(std::span(brains)), std::as_writable_bytes(std::span(again)));
  CHECK(again == std::vector<std::uint16_t>{0x7c00, 0x3c00, 0x0001});
}

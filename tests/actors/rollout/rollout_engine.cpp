// The rollout engine: the same answers in any company, weights between steps, and every way a request can end.
#include "weir/rollout/rollout_engine.hpp"

#include <atomic>
#include <thread>

#include "catch.hpp"
#include "weir/policy/torch.hpp"
#include "weir/runtime/graph.hpp"
#include "weir/runtime/random.hpp"
#include "weir/transport/inproc.hpp"
#include "weir/weights/weight_store.hpp"

using namespace std::chrono_literals;

namespace {

weir::causal_lm_config small() {
  weir::causal_lm_config c;
  c.vocab_size = 29;
  c.hidden_size = 32;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 8;
  c.intermediate_size = 48;
  c.max_positions = 64;
  c.initializer_range = 0.3;
  c.tied_embeddings = true;
  return c;
}

weir::generate_request request(std::vector<weir::token> context, std::int32_t max_tokens, std::uint64_t seed,
                               float temperature = 1) {
  weir::generate_request r;
  r.context = std::move(context);
  r.sampling.max_tokens = max_tokens;
  r.sampling.temperature = temperature;
  r.seed = seed;
  return r;
}

/// Random requests of every shape.
std::vector<weir::generate_request> many(std::size_t n) {
  weir::random_stream random(7);
  std::vector<weir::generate_request> all;
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<weir::token> context;
    for (auto length = 1 + random.below(20); length > 0; --length)
      context.push_back(static_cast<weir::token>(random.below(29)));
    if (i % 5 != 0) context = all.back().context;  // groups of five with one context
    auto r = request(std::move(context), static_cast<std::int32_t>(1 + random.below(12)), i, i % 3 == 0 ? 0.0F : 1.3F);
    if (i % 4 == 1) r.sampling.top_k = 5;
    if (i % 4 == 2) r.sampling.top_p = 0.8F;
    if (i % 2 == 0) r.sampling.stop_tokens = {3, 11};
    all.push_back(std::move(r));
  }
  return all;
}

struct world {
  weir::actor_runtime runtime = weir::actor_runtime::with<caf::id_block::weir_actors>(1);
  std::shared_ptr<weir::weight_shelf> shelf;
  std::size_t bytes;
  weir::snapshot_writer writer;
  std::atomic<std::uint64_t> most_active{0}, waiting{0}, tokens{0}, prompt_tokens{0};
  weir::graph g{runtime.system()};
  weir::placed<weir::rollout_engine> engine;
  caf::scoped_actor self{runtime.system()};

  explicit world(weir::rollout_engine_settings settings = {8, 40, 64}, bool weights = true,
                 std::shared_ptr<const weir::causal_lm> base = nullptr,
                 std::shared_ptr<const weir::manifest> layout = nullptr)
      : shelf(std::make_shared<weir::weight_shelf>(layout)),
        bytes(layout ? layout->bytes : weir::causal_lm::layout(small()).bytes),
        writer(std::move(*weir::snapshot_writer::make(shelf, bytes, 4))) {
    engine = g.add_with_thread<weir::rollout_engine>(
        "engine", small(), settings, shelf,
        [this](const weir::rollout_activity& a) {
          most_active = std::max<std::uint64_t>(most_active, a.active);
          waiting = a.waiting;
          tokens = a.tokens;
          prompt_tokens = a.prompt_tokens;
        },
        base);
    if (weights) REQUIRE(adopt(0, 1));
  }

  weir::result<void> adopt(weir::weight_version version, std::uint64_t seed, bool spoil = false) {
    const auto model = weir::causal_lm::random(small(), seed);
    model.copy_to(writer.next().first(bytes));
    const auto p = writer.publish(version);
    if (spoil) {  // of another model
      auto content = *shelf->find(version);
      content.bytes = content.bytes.first(bytes - 4);
      shelf->put(version, content);
    }
    return take(p);
  }

  weir::result<void> take(const weir::publish_weights& p) {
    weir::result<void> out;
    self->request(engine.handle, 10s, weir::adopt_weights{p.version})
        .receive([](const weir::weights_adopted&) {},
                 [&](const caf::error& e) { out = weir::fail(weir::from_caf(e)); });
    return out;
  }

  using pending = decltype(std::declval<caf::scoped_actor&>()->request(
      std::declval<weir::placed<weir::rollout_engine>&>().handle, 30s, weir::generate_request{}));

  /// Sends all at once: when it returns, they stand in the engine's mailbox.
  std::vector<pending> send(const std::vector<weir::generate_request>& requests) {
    std::vector<pending> sent;
    for (const auto& r : requests) sent.push_back(self->request(engine.handle, 30s, r));
    return sent;
  }
  /// The answers, in order.
  std::vector<weir::result<weir::generation>> receive(std::vector<pending> sent) {
    std::vector<weir::result<weir::generation>> out;
    for (auto& p : sent)
      p.receive([&](weir::generation& answer) { out.emplace_back(std::move(answer)); },
                [&](const caf::error& e) { out.emplace_back(weir::fail(weir::from_caf(e))); });
    return out;
  }
  std::vector<weir::result<weir::generation>> generate(const std::vector<weir::generate_request>& requests) {
    return receive(send(requests));
  }
  weir::result<weir::generation> generate_one(weir::generate_request r) { return generate({std::move(r)})[0]; }
};

}  // namespace

TEST_CASE("a request's answer is the same alone, in a crowd, and with any slots and prefill bounds, bit for bit") {
  const auto requests = many(60);
  std::vector<weir::generation> alone;
  {
    world w({1, 40, 64});
    for (const auto& r : requests) alone.push_back(*w.generate_one(r));
    CHECK(w.most_active <= 1);
  }
  for (auto settings : {weir::rollout_engine_settings{8, 40, 64}, {60, 40, 4096}, {16, 40, 3}}) {
    world w(settings);
    const auto crowd = w.generate(requests);
    CHECK(w.most_active <= static_cast<std::uint64_t>(settings.slots));
    for (std::size_t i = 0; i < requests.size(); ++i) {
      REQUIRE(crowd[i]);
      CHECK(crowd[i]->tokens == alone[i].tokens);
      CHECK(crowd[i]->logprobs == alone[i].logprobs);
      CHECK(crowd[i]->reason == alone[i].reason);
    }
  }
}

TEST_CASE("a context that several requests share is prefilled once") {
  world w({8, 40, 5}, false);
  std::vector<weir::generate_request> requests(6, request({1, 2, 3, 4, 5, 6, 7, 8, 9}, 3, 0));
  for (std::uint64_t i = 0; i < 6; ++i) requests[i].seed = i;
  auto sent = w.send(requests);
  // Without weights they wait, so that all are taken in together, whatever the timing.
  REQUIRE(w.adopt(0, 1));
  for (const auto& a : w.receive(std::move(sent))) CHECK(a);
  CHECK(w.prompt_tokens == 9);
}

TEST_CASE("greedy tokens and their log-probabilities are those of the model's own logits") {
  world w;
  auto model = weir::causal_lm::random(small(), 1);
  const auto r = request({5, 6, 7}, 10, 0, 0);
  const auto g = w.generate_one(r);
  REQUIRE(g);
  auto all = r.context;
  for (std::size_t i = 0; i < g->tokens.size(); ++i) {
    const auto last = at::log_softmax(model.logits({all, {0, static_cast<std::int64_t>(all.size())}})[-1], -1);
    CHECK(last.argmax().item<std::int64_t>() == g->tokens[i]);
    CHECK(last[g->tokens[i]].item<float>() == Approx(g->logprobs[i]).margin(1e-5));
    all.push_back(g->tokens[i]);
  }
}

TEST_CASE("stop tokens end an answer and are part of it; max_tokens and the context's length cut it") {
  world w;
  auto r = request({1, 2}, 30, 3);
  const auto whole = w.generate_one(r);
  REQUIRE(whole);
  REQUIRE(whole->tokens.size() == 30);
  CHECK(whole->reason == weir::finish_reason::length);
  r.sampling.stop_tokens = {whole->tokens[4]};
  const auto stopped = w.generate_one(r);
  REQUIRE(stopped);
  CHECK(stopped->reason == weir::finish_reason::stop);
  CHECK(stopped->tokens.back() == whole->tokens[4]);
  CHECK(stopped->tokens.size() <= 5);
  CHECK(w.generate_one(request(std::vector<weir::token>(38, 1), 30, 3))->tokens.size() == 2);
}

TEST_CASE("a request that cannot be served fails alone, with the reason") {
  world w;
  auto code = [&](weir::generate_request r) { return w.generate_one(std::move(r)).error().code; };
  CHECK(code(request({}, 1, 0)) == weir::errc::invalid_argument);
  CHECK(code(request(std::vector<weir::token>(40, 1), 1, 0)) == weir::errc::invalid_argument);
  CHECK(code(request({29}, 1, 0)) == weir::errc::invalid_data);
  CHECK(code(request({-1}, 1, 0)) == weir::errc::invalid_data);
  CHECK(code(request({1}, 0, 0)) == weir::errc::invalid_argument);
  CHECK(w.generate_one(request({1}, 1, 0)));
  CHECK_THROWS_AS(w.g.add<weir::rollout_engine>("too long", small(), weir::rollout_engine_settings{1, 65}, w.shelf),
                  std::invalid_argument);
}

TEST_CASE("more requests than may wait are refused, and nothing else is lost") {
  weir::rollout_engine_settings settings{2, 40, 64};
  settings.most_waiting = 5;
  world w(settings, false);
  std::vector<weir::generate_request> requests(9, request({1}, 2, 0));
  auto sent = w.send(requests);
  REQUIRE(w.adopt(0, 1));  // without weights all waited
  std::size_t served = 0, refused = 0;
  for (const auto& a : w.receive(std::move(sent))) {
    if (a)
      ++served;
    else if (a.error().code == weir::errc::unavailable)
      ++refused;
  }
  CHECK(served == 5);
  CHECK(refused == 4);
}

TEST_CASE("weights come in between two decode steps: sequences go on, each token with its version") {
  world w({4, 64, 64});
  std::vector<weir::generate_request> requests;
  for (std::uint64_t i = 0; i < 4; ++i) requests.push_back(request({1, 2, 3}, 60, i));
  bool mixed = false;
  for (weir::weight_version v = 1; v < 200 && !mixed; ++v) {
    caf::scoped_actor other{w.runtime.system()};
    weir::causal_lm::random(small(), v + 1).copy_to(w.writer.next().first(w.bytes));
    const auto p = w.writer.publish(v);
    std::thread update([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(200 * (v % 10)));
      other->request(w.engine.handle, 10s, weir::adopt_weights{p.version})
          .receive([&](const weir::weights_adopted&) { w.writer.released({v - 1}); },
                   [](const caf::error&) { FAIL("not adopted"); });
    });
    const auto answers = w.generate(requests);
    update.join();
    for (const auto& a : answers) {
      REQUIRE(a);
      CHECK(std::is_sorted(a->versions.begin(), a->versions.end()));
      CHECK((a->versions.front() >= v - 1 && a->versions.back() <= v));
      mixed = mixed || a->versions.front() != a->versions.back();
    }
  }
  CHECK(mixed);
}

TEST_CASE(
    "versions that are asked for at once are taken one after the other, and one that is not there holds up none") {
  world w;
  auto ask = [&](weir::weight_version v) { return w.self->request(w.engine.handle, 10s, weir::adopt_weights{v}); };
  for (weir::weight_version v : {1, 2}) {
    weir::causal_lm::random(small(), v + 1).copy_to(w.writer.next().first(w.bytes));
    w.writer.publish(v);
  }
  std::vector<decltype(ask(1))> asked;
  for (weir::weight_version v : {1, 5, 2}) asked.push_back(ask(v));
  std::string outcomes;
  for (auto& a : asked)
    a.receive([&](const weir::weights_adopted& x) { outcomes += std::to_string(x.version) + " "; },
              [&](const caf::error&) { outcomes += "refused "; });
  CHECK(outcomes == "1 refused 2 ");
  world alone;
  REQUIRE(alone.adopt(2, 3));
  const auto here = w.generate_one(request({1, 2}, 20, 9)), there = alone.generate_one(request({1, 2}, 20, 9));
  CHECK(here->tokens == there->tokens);
  CHECK(here->versions == std::vector<weir::weight_version>(here->tokens.size(), 2));
}

TEST_CASE("an engine that is stopped while it takes a version answers for it") {
  for (int i = 0; i < 20; ++i) {
    world w;
    weir::causal_lm::random(small(), 2).copy_to(w.writer.next().first(w.bytes));
    w.writer.publish(1);
    auto asked = w.self->request(w.engine.handle, 10s, weir::adopt_weights{1});
    w.g.stop(0ms, 1s);
    int answers = 0;
    asked.receive([&](const weir::weights_adopted&) { ++answers; },
                  [&](const caf::error& e) {
                    ++answers;
                    CHECK(weir::from_caf(e).code == weir::errc::unavailable);
                  });
    CHECK(answers == 1);
  }
}

TEST_CASE("weights of another size are refused, and the engine keeps what it has") {
  world w;
  const auto before = w.generate_one(request({1, 2}, 5, 9));
  const auto spoiled = w.adopt(1, 2, true);
  REQUIRE_FALSE(spoiled);
  CHECK(spoiled.error().code == weir::errc::invalid_data);
  const auto after = w.generate_one(request({1, 2}, 5, 9));
  CHECK(before->tokens == after->tokens);
  CHECK(after->versions[0] == 0);
  REQUIRE(w.adopt(2, 2));
  CHECK(w.generate_one(request({1, 2}, 5, 9))->versions[0] == 2);
}

TEST_CASE("numbers that are not finite fail their sequence, and say under which weights") {
  world w;
  const auto into = w.writer.next().first(w.bytes);
  weir::causal_lm::random(small(), 1).copy_to(into);
  auto* floats = reinterpret_cast<float*>(into.data());
  for (std::size_t i = 0; i < w.bytes / 4; i += 7) floats[i] = std::nanf("");
  const auto p = w.writer.publish(6);
  w.self->request(w.engine.handle, 10s, weir::adopt_weights{p.version})
      .receive([](const weir::weights_adopted&) {}, [](const caf::error&) {});
  const auto a = w.generate_one(request({1}, 5, 0));
  REQUIRE_FALSE(a);
  CHECK(a.error().code == weir::errc::numeric);
  CHECK(a.error().message.find("version 6") != std::string::npos);
  REQUIRE(w.adopt(7, 1));
  CHECK(w.generate_one(request({1}, 5, 0)));
}

TEST_CASE("a drain finishes what is under way; a stop without it answers what is pending") {
  world w;
  auto sent = w.send(many(30));
  CHECK(w.g.stop(10s, 1s).clean());
  for (const auto& a : w.receive(std::move(sent))) CHECK(a);

  world v({1, 40, 64}, false);
  auto pending = v.send(many(3));
  v.g.stop(0ms, 1s);
  for (const auto& a : v.receive(std::move(pending))) {
    REQUIRE_FALSE(a);
    CHECK(a.error().code == weir::errc::unavailable);
  }
}

TEST_CASE("versions in another type, or with some tensors of a base, act as the model that they make") {
  const auto model = weir::causal_lm::random(small(), 3), base = weir::causal_lm::random(small(), 4);
  const auto own = weir::causal_lm::layout(small());
  // What the engine should act as: rounded to bf16; the base with the layers' norms and products of the model.
  const std::vector<std::string> named{"model.layers.*"};
  const auto some = weir::select_tensors(own, named).value();
  auto mixed = base.flat().detach().clone();
  for (const auto& t : own.tensors)
    if (t.name.starts_with("model.layers."))
      mixed.narrow(0, static_cast<std::int64_t>(t.offset / 4), static_cast<std::int64_t>(t.bytes / 4))
          .copy_(model.flat().detach().narrow(0, static_cast<std::int64_t>(t.offset / 4),
                                              static_cast<std::int64_t>(t.bytes / 4)));
  struct form {
    weir::manifest layout;
    at::Tensor expected;
    bool based;
  };
  const auto rounded = [](const at::Tensor& t) { return t.to(at::kBFloat16).to(at::kFloat); };
  std::vector<form> forms{{weir::retyped(own, weir::dtype::bf16), rounded(model.flat().detach()), false},
                          {some, mixed, true}};
  auto both = rounded(model.flat().detach());
  for (const auto& t : own.tensors)
    if (!t.name.starts_with("model.layers."))
      both.narrow(0, static_cast<std::int64_t>(t.offset / 4), static_cast<std::int64_t>(t.bytes / 4))
          .copy_(base.flat().detach().narrow(0, static_cast<std::int64_t>(t.offset / 4),
                                             static_cast<std::int64_t>(t.bytes / 4)));
  forms.push_back({weir::retyped(some, weir::dtype::bf16), both, true});
  for (const auto& f : forms) {
    world w({8, 40, 64}, false,
            f.based
                ? std::make_shared<const weir::causal_lm>(weir::causal_lm::bind(small(), base.flat().detach().clone()))
                : nullptr,
            std::make_shared<const weir::manifest>(f.layout));
    world reference({8, 40, 64}, false);
    const auto plan = weir::layout_plan::make(own, f.layout, weir::layout_fit::subset).value();
    const auto bytes = [](const at::Tensor& t) {
      return std::span(static_cast<const std::byte*>(t.data_ptr()), static_cast<std::size_t>(t.numel()) * 4);
    };
    // Twice: both of the engine's copies.
    for (weir::weight_version v : {1, 2}) {
      plan.apply(bytes(model.flat().detach()), w.writer.next());
      REQUIRE(w.take(w.writer.publish(v)));
      const auto expected = bytes(f.expected);
      std::copy(expected.begin(), expected.end(), reference.writer.next().begin());
      REQUIRE(reference.take(reference.writer.publish(v)));
      const auto got = w.generate(many(10)), wanted = reference.generate(many(10));
      for (std::size_t i = 0; i < got.size(); ++i) {
        REQUIRE(got[i]);
        CHECK(got[i]->tokens == wanted[i]->tokens);
        CHECK(got[i]->logprobs == wanted[i]->logprobs);
      }
    }
  }
}

TEST_CASE("versions of another model are refused by the tensor that does not fit") {
  auto other = small();
  other.intermediate_size = 64;
  world w({8, 40, 64}, false, nullptr, std::make_shared<const weir::manifest>(weir::causal_lm::layout(other)));
  auto taken = w.take(w.writer.publish(1));
  REQUIRE_FALSE(taken);
  CHECK(taken.error().message ==
        "weight version 1: tensor model.layers.0.mlp.gate_proj.weight is published with shape [64, 32], the engine's "
        "model has "
        "[48, 32]");
}

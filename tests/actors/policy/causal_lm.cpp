// The model as an object: its layout, its random parameters, and replicas on someone else's buffer.
#include "weir/policy/causal_lm.hpp"

#include "catch.hpp"
#include "policy_support.hpp"
#include "weir/policy/evaluation.hpp"

using namespace weir::testing;

namespace {

at::Tensor part(const weir::causal_lm& model, const weir::tensor_spec& spec) {
  return model.flat().narrow(0, static_cast<std::int64_t>(spec.offset / 4), static_cast<std::int64_t>(spec.bytes / 4));
}

}  // namespace

TEST_CASE("random parameters are the same bits for the same seed, and others for another") {
  const auto a = weir::causal_lm::random(small_config(), 7), b = weir::causal_lm::random(small_config(), 7);
  const auto c = weir::causal_lm::random(small_config(), 8);
  CHECK(same_bits(a.flat(), b.flat()));
  CHECK_FALSE(same_bits(a.flat(), c.flat()));
  // Worked out apart from this code: another compiler, library or machine draws the same model.
  const auto first = a.flat().narrow(0, 0, 4);
  INFO(first);
  CHECK(largest_difference(first, at::tensor({-0.225463375F, 0.225272477F, 0.0344497114F, -0.255982459F})) == 0);
}

TEST_CASE("random matrices have the spread that the config asks for, norms are 1, padding is 0") {
  auto config = small_config(false);
  config.vocab_size = 4001;  // an odd number, so that there is padding
  const auto model = weir::causal_lm::random(config, 3);
  std::uint64_t end = 0;
  for (const auto& spec : model.layout().tensors) {
    INFO(spec.name);
    const auto values = part(model, spec);
    if (spec.shape.size() == 1) {
      CHECK(largest_difference(values, at::ones_like(values)) == 0);
    } else if (values.numel() > 50'000) {
      CHECK(values.std().item<double>() == Approx(0.3).epsilon(0.02));
      CHECK(values.mean().item<double>() == Approx(0.0).margin(0.005));
    }
    const auto gap =
        model.flat().narrow(0, static_cast<std::int64_t>(end / 4), static_cast<std::int64_t>((spec.offset - end) / 4));
    CHECK((gap == 0).all().item<bool>());
    end = spec.offset + spec.bytes;
  }
}

TEST_CASE("the layout rises, does not overlap, and has a head of its own only if untied") {
  for (bool tied : {true, false}) {
    const auto m = weir::causal_lm::layout(small_config(tied));
    std::uint64_t end = 0;
    bool head = false;
    for (const auto& t : m.tensors) {
      std::uint64_t count = 4;
      for (auto d : t.shape) count *= static_cast<std::uint64_t>(d);
      CHECK(t.bytes == count);
      CHECK(t.offset >= end);
      end = t.offset + t.bytes;
      head = head || t.name == "lm_head.weight";
    }
    CHECK(m.bytes >= end);
    CHECK(head == !tied);
    CHECK(m.tensors.size() == (tied ? 24U : 25U));
  }
}

TEST_CASE("a replica reads the buffer it is bound to, and another one after rebind") {
  auto a = weir::causal_lm::random(small_config(), 1), b = weir::causal_lm::random(small_config(), 2);
  auto replica = weir::causal_lm::bind(small_config(), a.flat());
  const auto batch = packed({{1, 2, 3}, {4, 5}});
  const std::vector<weir::token> prompt{1, 2, 3};
  const std::vector<weir::sequence_chunk> chunks{{0, 0, prompt}};
  weir::kv_cache cache(small_config(), 1, 8);
  auto extended = [&](weir::causal_lm& model) { return model.extend(cache, chunks).clone(); };
  CHECK(replica.flat().data_ptr() == a.flat().data_ptr());
  CHECK(same_bits(replica.logits(batch), a.logits(batch)));
  CHECK(same_bits(extended(replica), extended(a)));
  replica.rebind(b.flat());
  CHECK(same_bits(replica.logits(batch), b.logits(batch)));
  CHECK(same_bits(extended(replica), extended(b)));
  CHECK_THROWS_AS(replica.rebind(at::zeros({3})), std::invalid_argument);
  CHECK_THROWS_AS(weir::causal_lm::bind(small_config(), at::zeros({3})), std::invalid_argument);
  CHECK_THROWS_AS(weir::causal_lm::bind(small_config(), a.flat().to(at::kDouble)), std::invalid_argument);
}

TEST_CASE("writing to flat changes the model, for logits and for extend") {
  auto model = weir::causal_lm::random(small_config(), 1);
  const auto batch = packed({{1, 2, 3}});
  const std::vector<weir::sequence_chunk> chunks{{0, 0, batch.tokens}};
  weir::kv_cache cache(small_config(), 1, 8);
  const auto logits = model.logits(batch), extended = model.extend(cache, chunks).clone();
  model.flat().detach().mul_(1.5F);
  CHECK(largest_difference(model.logits(batch), logits) > 1e-3);
  CHECK(largest_difference(model.extend(cache, chunks), extended) > 1e-3);
  CHECK(largest_difference(model.extend(cache, chunks)[0], model.logits(batch)[2]) < 1e-5);
}

TEST_CASE("the gradient of flat is added to by every backward, and is 0 where there is padding") {
  auto model = weir::causal_lm::random(small_config(), 1);
  const auto batch = packed({{1, 2, 3, 4}});
  const auto& grad = model.flat_grad();
  CHECK((grad == 0).all().item<bool>());
  model.evaluate(batch, all_targets(batch), 1.0F).logprobs.sum().backward();
  const auto once = grad.clone();
  CHECK(once.abs().max().item<float>() > 0);
  model.evaluate(batch, all_targets(batch), 1.0F).logprobs.sum().backward();
  CHECK(relative_difference(grad, once * 2) < 1e-6);
  auto padding = at::ones_like(grad);
  for (const auto& spec : model.layout().tensors)
    padding.narrow(0, static_cast<std::int64_t>(spec.offset / 4), static_cast<std::int64_t>(spec.bytes / 4)).zero_();
  CHECK(((padding * grad) == 0).all().item<bool>());
}

TEST_CASE("malformed packed sequences are refused") {
  auto model = weir::causal_lm::random(small_config(), 1);
  CHECK_THROWS_AS(model.logits({{1, 2}, {0}}), std::invalid_argument);
  CHECK_THROWS_AS(model.logits({{1, 2}, {0, 1}}), std::invalid_argument);
  CHECK_THROWS_AS(model.logits({{1, 2}, {0, 1, 1, 2}}), std::invalid_argument);
  CHECK_THROWS_AS(model.logits({{1, 2}, {1, 2}}), std::invalid_argument);
  CHECK_THROWS_AS(model.logits({{1, -1}, {0, 2}}), std::invalid_argument);
  CHECK(thrown_by([&] { model.logits({{1, 37}, {0, 2}}); }) == "token 37 is outside the vocabulary of 37");
}

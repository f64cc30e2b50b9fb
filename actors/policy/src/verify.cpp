#include "weir/policy/verify.hpp"

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "weir/policy/adamw.hpp"
#include "weir/policy/evaluation.hpp"
#include "weir/policy/safetensors.hpp"
#include "weir/runtime/files.hpp"
#include "weir/runtime/json_view.hpp"

namespace weir {

namespace {

constexpr double tolerance = 1e-4;

/// The reference values of one directory, with the sequences they are about.
struct reference {
  safetensors_file tensors;
  nlohmann::json numbers;
  packed_sequences batch;
  std::vector<std::int64_t> lengths;
  std::int64_t width = 0;
};

template <class T>
std::vector<T> values_of(const safetensors_entry& entry) {
  std::vector<T> values(static_cast<std::size_t>(entry.count()));
  std::memcpy(values.data(), entry.bytes.data(), entry.bytes.size());
  return values;
}

result<reference> read_reference(const std::filesystem::path& directory) {
  const auto path = directory / "golden.safetensors";
  auto tensors = safetensors_file::open(path);
  if (!tensors) return fail(tensors.error());
  reference ref;
  ref.tensors = std::move(*tensors);
  const auto* ids = ref.tensors.find("input_ids");
  const auto* mask = ref.tensors.find("attention_mask");
  if (ids == nullptr || mask == nullptr || ids->type != "I64" || mask->type != "I64" || ids->shape.size() != 2 ||
      ids->shape != mask->shape || ids->count() == 0)
    return fail(errc::invalid_data,
                path.string() + ": needs input_ids and attention_mask, I64 of the same shape [B, T]");
  ref.width = ids->shape[1];
  const auto id = values_of<std::int64_t>(*ids), own = values_of<std::int64_t>(*mask);
  ref.batch.offsets.push_back(0);
  for (std::int64_t b = 0; b < ids->shape[0]; ++b) {
    std::int64_t length = 0;
    while (length < ref.width && own[static_cast<std::size_t>(b * ref.width + length)] != 0)
      ref.batch.tokens.push_back(static_cast<token>(id[static_cast<std::size_t>(b * ref.width + length++)]));
    if (length < 2)
      return fail(errc::invalid_data, path.string() + ": row " + std::to_string(b) + " has under two tokens");
    ref.lengths.push_back(length);
    ref.batch.offsets.push_back(static_cast<std::int64_t>(ref.batch.tokens.size()));
  }
  if (std::error_code none; std::filesystem::exists(directory / "golden.json", none)) {
    auto numbers = read_json_file(directory / "golden.json");
    if (!numbers) return fail(numbers.error());
    ref.numbers = std::move(*numbers);
  }
  return ref;
}

/// Collects the largest difference and the first one beyond the tolerance.
class comparison {
 public:
  comparison(std::string name, double allowed) { check_.name = std::move(name), check_.tolerance = allowed; }
  void add(double ours, double theirs, double scale, const std::string& where) {
    const double difference = std::abs(ours - theirs) / scale;
    if (!(difference <= check_.difference)) check_.difference = difference;
    if (!(difference <= check_.tolerance) && check_.where.empty())
      check_.where = where + ": " + std::to_string(ours) + ", the reference has " + std::to_string(theirs);
  }
  check done() && {
    check_.ok = check_.where.empty();
    return std::move(check_);
  }

 private:
  check check_;
};

std::string at_row(std::int64_t row, std::int64_t position) {
  return "row " + std::to_string(row) + ", position " + std::to_string(position);
}

check check_logits(causal_lm& model, const reference& ref, const safetensors_entry& entry) {
  comparison all("logits", tolerance);
  const auto theirs = values_of<float>(entry);
  const auto ours = model.logits(ref.batch).to(at::kCPU).contiguous();
  const auto vocab = ours.size(1);
  for (std::size_t b = 0; b < ref.lengths.size(); ++b)
    for (std::int64_t t = 0; t < ref.lengths[b]; ++t)
      for (std::int64_t v = 0; v < vocab; ++v)
        all.add(ours.data_ptr<float>()[(ref.batch.offsets[b] + t) * vocab + v],
                theirs[static_cast<std::size_t>((static_cast<std::int64_t>(b) * ref.width + t) * vocab + v)], 1,
                at_row(static_cast<std::int64_t>(b), t) + ", token " + std::to_string(v));
  return std::move(all).done();
}

std::vector<std::int64_t> all_targets(const reference& ref) {
  std::vector<std::int64_t> targets;
  for (std::size_t b = 0; b < ref.lengths.size(); ++b)
    for (std::int64_t t = 1; t < ref.lengths[b]; ++t) targets.push_back(ref.batch.offsets[b] + t);
  return targets;
}

check check_logprobs(causal_lm& model, const reference& ref, const safetensors_entry& entry) {
  comparison all("token log-probabilities", tolerance);
  at::NoGradGuard none;
  const auto theirs = values_of<float>(entry);
  const auto ours = model.evaluate(ref.batch, all_targets(ref), 1.0F).logprobs.to(at::kCPU).contiguous();
  std::int64_t i = 0;
  for (std::size_t b = 0; b < ref.lengths.size(); ++b)
    for (std::int64_t t = 1; t < ref.lengths[b]; ++t, ++i)
      all.add(ours.data_ptr<float>()[i],
              theirs[static_cast<std::size_t>(static_cast<std::int64_t>(b) * (ref.width - 1) + t - 1)], 1,
              at_row(static_cast<std::int64_t>(b), t));
  return std::move(all).done();
}

/// All rows decoded together through the cache.
check check_greedy(causal_lm& model, const reference& ref, const safetensors_entry& entry, const std::string& device) {
  comparison all("greedy tokens", 0);
  const auto steps = entry.shape[1];
  const auto theirs = values_of<std::int64_t>(entry);
  const auto rows = static_cast<std::int64_t>(ref.lengths.size());
  kv_cache cache(model.config(), rows, ref.width + steps, device);
  std::vector<token> next(ref.lengths.size());
  for (std::int64_t step = 0; step < steps; ++step) {
    std::vector<sequence_chunk> chunks;
    for (std::int64_t b = 0; b < rows; ++b) {
      const auto i = static_cast<std::size_t>(b);
      const auto prompt =
          std::span(ref.batch.tokens)
              .subspan(static_cast<std::size_t>(ref.batch.offsets[i]), static_cast<std::size_t>(ref.lengths[i]));
      chunks.push_back(step == 0 ? sequence_chunk{b, 0, prompt}
                                 : sequence_chunk{b, ref.lengths[i] + step - 1, {&next[i], 1}});
    }
    const auto best = model.extend(cache, chunks).argmax(-1).to(at::kCPU);
    for (std::int64_t b = 0; b < rows; ++b) {
      next[static_cast<std::size_t>(b)] = static_cast<token>(best.data_ptr<std::int64_t>()[b]);
      all.add(next[static_cast<std::size_t>(b)],
              static_cast<double>(theirs[static_cast<std::size_t>(b * steps + step)]), 1, at_row(b, step));
    }
  }
  return std::move(all).done();
}

at::Tensor part(const at::Tensor& flat, const tensor_spec& spec) {
  return flat.narrow(0, static_cast<std::int64_t>(spec.offset / 4), static_cast<std::int64_t>(spec.bytes / 4));
}

/// Three training steps, as golden.json describes them.
void check_training(causal_lm& model, const reference& ref, const json_view& numbers, verification& out) {
  comparison losses("training losses (relative)", tolerance), norms("gradient norms (relative)", tolerance);
  comparison sums("parameter sums after the steps", 1e-2);
  const auto targets = all_targets(ref);
  const auto& grad = model.flat_grad();
  adamw optimizer(model.flat());
  const auto losses_wanted = numbers.at("losses");
  const auto steps = losses_wanted.size();
  for (std::size_t step = 0; step < steps; ++step) {
    grad.zero_();
    auto loss = -model.evaluate(ref.batch, targets, 1.0F).logprobs.mean();
    loss.backward();
    const auto theirs = losses_wanted.at(step).number();
    losses.add(loss.item<double>(), theirs, std::abs(theirs), "step " + std::to_string(step + 1));
    if (step == 0 && numbers.has("grad_norms"))
      for (const auto& spec : model.layout().tensors)
        if (const auto wanted = numbers.at("grad_norms"); wanted.has(spec.name)) {
          const auto norm = wanted.at(spec.name).number();
          norms.add(part(grad, spec).norm().item<double>(), norm, std::abs(norm), spec.name);
        }
    optimizer.step(model.flat(), grad, {1e-3, 0.9, 0.95, 1e-8, 0.01});
  }
  out.checks.push_back(std::move(losses).done());
  if (numbers.has("grad_norms")) out.checks.push_back(std::move(norms).done());
  if (!numbers.has("param_sums_after_3_steps") || steps != 3) return;
  const auto wanted = numbers.at("param_sums_after_3_steps");
  for (const auto& spec : model.layout().tensors)
    if (wanted.has(spec.name))
      sums.add(part(model.flat(), spec).to(at::kDouble).sum().item<double>(), wanted.at(spec.name).number(), 1,
               spec.name);
  out.checks.push_back(std::move(sums).done());
}

}  // namespace

result<verification> verify_policy(const std::filesystem::path& directory) {
  const std::string device = "cpu";
  auto model = causal_lm::load(directory, device);
  if (!model) return fail(model.error());
  auto ref = read_reference(directory);
  if (!ref) return fail(ref.error());
  for (auto t : ref->batch.tokens)
    if (t < 0 || t >= model->config().vocab_size)
      return fail(errc::invalid_data, directory.string() + "/golden.safetensors: token " + std::to_string(t) +
                                          " is outside the model's vocabulary");
  verification out;
  const auto rows = static_cast<std::int64_t>(ref->lengths.size()), vocab = model->config().vocab_size;
  auto usable = [&](const char* name, const char* type, std::vector<std::int64_t> shape) -> const safetensors_entry* {
    const auto* entry = ref->tensors.find(name);
    if (entry != nullptr && entry->type == type && entry->shape.size() == shape.size()) {
      bool same = true;
      for (std::size_t i = 0; i < shape.size(); ++i) same = same && (shape[i] < 0 || shape[i] == entry->shape[i]);
      if (same) return entry;
    }
    out.notes.push_back(std::string(name) + (entry == nullptr ? " is not there" : " has another type or shape") +
                        ": not checked");
    return nullptr;
  };
  if (const auto* e = usable("logits", "F32", {rows, ref->width, vocab}))
    out.checks.push_back(check_logits(*model, *ref, *e));
  if (const auto* e = usable("token_logprobs", "F32", {rows, ref->width - 1}))
    out.checks.push_back(check_logprobs(*model, *ref, *e));
  if (const auto* e = usable("greedy_32", "I64", {rows, -1}))
    out.checks.push_back(check_greedy(*model, *ref, *e, device));
  const json_view numbers(ref->numbers, (directory / "golden.json").string());
  try {
    if (numbers.has("losses"))
      check_training(*model, *ref, numbers, out);
    else
      out.notes.emplace_back("golden.json has no losses: training is not checked");
  } catch (const json_view::mismatch& e) {
    return fail(errc::invalid_data, e.what());
  }
  return out;
}

}  // namespace weir

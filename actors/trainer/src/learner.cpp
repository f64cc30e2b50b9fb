#include "weir/trainer/learner.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "batching.hpp"
#include "weir/policy/evaluation.hpp"
#include "weir/policy/safetensors.hpp"
#include "weir/weights/layout_plan.hpp"

namespace weir {

struct learner::impl {
  causal_lm model;
  learner_settings settings;
  adamw optimizer;
  std::vector<adamw::range> trained;  ///< of the flat buffer

  impl(causal_lm m, learner_settings s) : model(std::move(m)), settings(std::move(s)), optimizer(model.flat()) {
    model.flat_grad();
    find_trained();
  }

  void find_trained() {
    if (settings.trained.empty()) {
      trained.emplace_back(0, model.flat().numel());
      return;
    }
    auto some = select_tensors(model.layout(), settings.trained);
    if (!some) throw std::invalid_argument(some.error().message);
    for (const auto& t : model.layout().tensors) {
      const auto named =
          std::any_of(some->tensors.begin(), some->tensors.end(), [&](const auto& s) { return s.name == t.name; });
      const auto begin = static_cast<std::int64_t>(t.offset / 4), end = begin + static_cast<std::int64_t>(t.bytes / 4);
      if (named && !trained.empty() && trained.back().second == begin)
        trained.back().second = end;
      else if (named)
        trained.emplace_back(begin, end);
    }
  }

  /// What does not learn has no gradient.
  void freeze(const at::Tensor& grad) const {
    std::int64_t from = 0;
    for (const auto& [begin, end] : trained) {
      if (begin > from) grad.detach().narrow(0, from, begin - from).zero_();
      from = end;
    }
    if (from < grad.numel()) grad.detach().narrow(0, from, grad.numel() - from).zero_();
  }

  /// What a failed step goes back to.
  struct backup {
    at::Tensor flat, first, second;
    std::int64_t steps;
  };
  backup save() const {
    return {model.flat().detach().clone(), optimizer.first_moment().clone(), optimizer.second_moment().clone(),
            optimizer.steps()};
  }
  void restore(const backup& b) {
    at::NoGradGuard none;
    model.flat().detach().copy_(b.flat);
    optimizer.restore(b.first, b.second, b.steps);
  }

  /// Numbers of a whole minibatch, which its micro-batches need for their weights.
  struct normalizer {
    double tokens = 0;
    double sequences = 0;
  };

  struct totals {
    double loss = 0, entropy = 0, gradient_norm = 0;
    std::int64_t tokens = 0, optimizer_steps = 0;
    divergence_sums off_policy;
  };

  result<std::vector<std::vector<sample>>> minibatches(std::span<const trajectory_group> batch, step_report& report,
                                                       std::vector<normalizer>& norms);
  at::Tensor weights(const at::Tensor& mask, const normalizer& norm) const;
  result<void> accumulate(micro_batch& m, const normalizer& norm, bool first_pass, weight_version version, totals& sum);
  result<void> find_proximal(std::vector<std::vector<sample>>& parts, const std::stop_token& stop);
  result<double> apply(double lr, const std::string& what);
  result<void> train(std::vector<std::vector<sample>>& parts, const std::vector<normalizer>& norms,
                     weight_version version, double lr, const std::stop_token& stop, totals& sum);
};

learner::learner(causal_lm model, learner_settings settings)
    : impl_(std::make_unique<impl>(std::move(model), std::move(settings))) {}
learner::~learner() = default;
learner::learner(learner&&) noexcept = default;
learner& learner::operator=(learner&&) noexcept = default;
causal_lm& learner::model() noexcept { return impl_->model; }
const causal_lm& learner::model() const noexcept { return impl_->model; }
void learner::reset_optimizer() { impl_->optimizer = adamw(impl_->model.flat()); }

namespace {

error stopped() { return {errc::unavailable, "the step was stopped; nothing of it was kept"}; }

std::string step_name(weight_version version) { return "the step from version " + std::to_string(version); }

result<void> check_rate(double lr, const std::string& what) {
  if (std::isfinite(lr) && lr >= 0) return {};
  return fail(errc::invalid_argument, what + ": the learning rate is " + std::to_string(lr));
}

}  // namespace

/// Divides the batch's groups into as many parts as there are minibatches, with advantages; leaves out what has none.
result<std::vector<std::vector<sample>>> learner::impl::minibatches(std::span<const trajectory_group> batch,
                                                                    step_report& report,
                                                                    std::vector<normalizer>& norms) {
  const auto parts =
      std::min<std::size_t>(std::max<std::uint32_t>(settings.minibatches, 1), std::max<std::size_t>(batch.size(), 1));
  std::vector<std::vector<sample>> out(parts);
  norms.assign(parts, {});
  const bool skip = settings.skip_zero_advantage && settings.entropy_bonus == 0;
  for (std::size_t g = 0; g < batch.size(); ++g) {
    const auto part = g * parts / batch.size();
    std::vector<double> rewards;
    for (const auto& t : batch[g].trajectories) rewards.push_back(t.reward);
    const auto advantages = group_advantages(rewards, settings.advantages, settings.advantage_eps);
    if (std::any_of(advantages.begin(), advantages.end(), [](double a) { return a != 0; })) ++report.groups_trained;
    for (std::size_t i = 0; i < rewards.size(); ++i) {
      const auto& t = batch[g].trajectories[i];
      auto produced = check_trajectory(t, model.config().vocab_size);
      if (!produced) return fail(produced.error());
      ++report.sequences;
      report.reward += t.reward;
      report.success += t.success ? 1 : 0;
      norms[part].tokens += static_cast<double>(*produced);
      norms[part].sequences += 1;
      if (*produced == 0 || (skip && advantages[i] == 0)) continue;
      out[part].push_back({&t, advantages[i], *produced, {}});
      ++report.sequences_trained;
      report.tokens_trained += *produced;
    }
  }
  if (report.sequences > 0) {
    report.reward /= static_cast<double>(report.sequences);
    report.success /= static_cast<double>(report.sequences);
  }
  return out;
}

at::Tensor learner::impl::weights(const at::Tensor& mask, const normalizer& norm) const {
  switch (settings.aggregate) {
    case aggregation::token_mean:
      return mask / std::max(norm.tokens, 1.0);
    case aggregation::sequence_mean_token_mean:
      return mask / mask.sum(1, true).clamp_min(1) / norm.sequences;
    case aggregation::sequence_mean_token_sum:
      return mask / norm.sequences;
    case aggregation::sequence_mean_token_sum_over_max_length:
      return mask / (norm.sequences * settings.max_length);
  }
  return mask;
}

/// Adds a micro-batch's gradient.
result<void> learner::impl::accumulate(micro_batch& m, const normalizer& norm, bool first_pass, weight_version version,
                                       totals& sum) {
  const auto device = model.flat().device();
  const auto e =
      model.evaluate(m.packed, m.targets, static_cast<float>(settings.temperature), settings.entropy_bonus != 0);
  objective_inputs in;
  in.logp = m.spread(e.logprobs);
  in.mask = m.matrix([](const sample&, std::size_t, std::int64_t) { return 1.0F; }).to(device);
  in.advantages = m.matrix([](const sample& s, std::size_t, std::int64_t) { return s.advantage; }).to(device);
  in.logp_behaviour =
      m.matrix([](const sample& s, std::size_t i, std::int64_t) { return s.record->logprobs[i]; }).to(device);
  in.logp_proximal = in.logp.detach();
  if (!m.samples[0].proximal.empty())
    in.logp_proximal = m.matrix([](const sample& s, std::size_t, std::int64_t n) {
                          return s.proximal[static_cast<std::size_t>(n)];
                        }).to(device);
  else if (settings.needs_proximal && settings.passes > 1) {
    const auto flat = e.logprobs.detach().to(at::kCPU).contiguous();
    const auto* from = flat.data_ptr<float>();
    for (auto& s : m.samples) {
      s.proximal.assign(from, from + s.produced);
      from += s.produced;
    }
  }
  const auto terms = settings.loss(in, settings.loss_settings);
  const auto weight = weights(in.mask, norm);
  auto loss = (terms.loss * weight).sum();
  if (settings.entropy_bonus != 0) loss = loss - (m.spread(e.entropy) * weight).sum() * settings.entropy_bonus;
  const auto value = loss.item<double>();
  if (!std::isfinite(value)) {
    const auto finite =
        at::isfinite(at::where(in.mask > 0, terms.loss.detach(), at::zeros_like(in.mask))).all(1).to(at::kCPU);
    std::int64_t row = 0;
    while (row + 1 < m.rows && finite[row].item<bool>()) ++row;
    return fail(errc::numeric, step_name(version) + ": the loss is " + std::to_string(value) + ", first in group " +
                                   std::to_string(m.samples[static_cast<std::size_t>(row)].record->group) +
                                   "; the step was undone");
  }
  loss.backward();
  if (first_pass) {
    sum.loss += value;
    sum.entropy += e.entropy.detach().sum().item<double>();
    sum.tokens += static_cast<std::int64_t>(m.targets.size());
    sum.off_policy.add(in, terms.clipped);
  }
  return {};
}

/// The policy's own log-probabilities before the first of several minibatches changes it.
result<void> learner::impl::find_proximal(std::vector<std::vector<sample>>& parts, const std::stop_token& stop) {
  at::NoGradGuard none;
  for (auto& part : parts)
    for (auto& m : make_micro_batches(part, settings.micro_batch_tokens, model.flat().device())) {
      if (stop.stop_requested()) return fail(stopped());
      const auto flat = model.evaluate(m.packed, m.targets, static_cast<float>(settings.temperature))
                            .logprobs.to(at::kCPU)
                            .contiguous();
      const auto* from = flat.data_ptr<float>();
      for (auto& s : m.samples) {
        s.proximal.assign(from, from + s.produced);
        from += s.produced;
      }
    }
  return {};
}

/// Clips the gradient and steps the optimizer. Returns the norm before clipping. A gradient of exactly 0 makes no step:
/// momentum and weight decay alone would move the parameters.
result<double> learner::impl::apply(double lr, const std::string& what) {
  at::NoGradGuard none;
  const auto& grad = model.flat_grad();
  freeze(grad);
  const auto norm = grad.norm().item<double>();
  if (!std::isfinite(norm)) {
    for (const auto& spec : model.layout().tensors) {
      const auto part =
          grad.narrow(0, static_cast<std::int64_t>(spec.offset / 4), static_cast<std::int64_t>(spec.bytes / 4));
      if (!at::isfinite(part).all().item<bool>())
        return fail(errc::numeric,
                    what + ": the gradient is not finite, first in " + spec.name + "; the step was undone");
    }
    return fail(errc::numeric, what + ": the gradient's norm is not finite; the step was undone");
  }
  if (norm == 0) return norm;
  if (settings.clip_norm > 0 && norm > settings.clip_norm) grad.detach().mul_(settings.clip_norm / (norm + 1e-6));
  auto s = settings.optimizer;
  s.lr = lr;
  optimizer.step(model.flat(), grad, s, trained);
  return norm;
}

result<void> learner::impl::train(std::vector<std::vector<sample>>& parts, const std::vector<normalizer>& norms,
                                  weight_version version, double lr, const std::stop_token& stop, totals& sum) {
  if (settings.needs_proximal && parts.size() > 1)
    if (auto found = find_proximal(parts, stop); !found) return found;
  for (std::uint32_t pass = 0; pass < std::max<std::uint32_t>(settings.passes, 1); ++pass)
    for (std::size_t p = 0; p < parts.size(); ++p) {
      if (parts[p].empty()) continue;
      model.flat_grad().detach().zero_();
      for (auto& m : make_micro_batches(parts[p], settings.micro_batch_tokens, model.flat().device())) {
        if (stop.stop_requested()) return fail(stopped());
        auto added = accumulate(m, norms[p], pass == 0, version, sum);
        if (!added) return added;
      }
      auto norm = apply(lr, step_name(version));
      if (!norm) return fail(norm.error());
      sum.gradient_norm += *norm;
      sum.optimizer_steps += *norm > 0 ? 1 : 0;
    }
  return {};
}

result<step_report> learner::step(std::span<const trajectory_group> batch, weight_version version, double lr,
                                  const std::stop_token& stop) {
  const auto begin = std::chrono::steady_clock::now();
  if (auto usable = check_rate(lr, step_name(version)); !usable) return fail(usable.error());
  step_report report;
  std::vector<impl::normalizer> norms;
  auto parts = impl_->minibatches(batch, report, norms);
  if (!parts) return fail(parts.error().code, step_name(version) + ": " + parts.error().message);
  impl::totals sum;
  const bool several = impl_->settings.passes > 1 || parts->size() > 1;
  const auto before = several ? std::optional(impl_->save()) : std::nullopt;
  const auto undo = [&] {
    if (before) impl_->restore(*before);
  };
  try {
    auto trained = impl_->train(*parts, norms, version, lr, stop, sum);
    if (!trained) return undo(), fail(trained.error());
  } catch (...) {  // libtorch's, or the objective's
    undo();
    throw;
  }
  report.loss = sum.loss / static_cast<double>(parts->size());
  report.off_policy = sum.off_policy.mean();
  if (sum.tokens > 0) report.entropy = sum.entropy / static_cast<double>(sum.tokens);
  if (sum.optimizer_steps > 0) report.gradient_norm = sum.gradient_norm / static_cast<double>(sum.optimizer_steps);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

result<double> learner::supervised_step(std::span<const trajectory> batch, double lr, const std::stop_token& stop) {
  if (auto usable = check_rate(lr, "a supervised step"); !usable) return fail(usable.error());
  std::vector<sample> samples;
  double tokens = 0;
  for (const auto& t : batch) {
    auto produced = check_trajectory(t, impl_->model.config().vocab_size);
    if (!produced) return fail(produced.error());
    if (*produced == 0) continue;
    samples.push_back({&t, 0, *produced, {}});
    tokens += static_cast<double>(*produced);
  }
  if (samples.empty()) return fail(errc::invalid_argument, "a supervised batch has no token to learn");
  impl_->model.flat_grad().detach().zero_();
  double loss = 0;
  for (auto& m : make_micro_batches(samples, impl_->settings.micro_batch_tokens, impl_->model.flat().device())) {
    if (stop.stop_requested()) return fail(stopped());
    auto part = -impl_->model.evaluate(m.packed, m.targets, 1.0F).logprobs.sum() / tokens;
    loss += part.item<double>();
    if (!std::isfinite(loss)) return fail(errc::numeric, "the supervised loss is not finite; the step was undone");
    part.backward();
  }
  if (stop.stop_requested()) return fail(stopped());
  auto norm = impl_->apply(lr, "a supervised step");
  if (!norm) return fail(norm.error());
  return loss;
}

result<void> learner::save_state(const std::filesystem::path& file) const {
  auto host = [](const at::Tensor& t) { return t.detach().to(at::kCPU).contiguous(); };
  const auto w = host(impl_->model.flat()), m = host(impl_->optimizer.first_moment()),
             v = host(impl_->optimizer.second_moment());
  auto bytes = [](const at::Tensor& t) { return std::span(static_cast<const std::byte*>(t.data_ptr()), t.nbytes()); };
  const std::vector<std::int64_t> shape{w.numel()};
  return write_safetensors(file,
                           {{"parameters", "F32", shape, bytes(w)},
                            {"exp_avg", "F32", shape, bytes(m)},
                            {"exp_avg_sq", "F32", shape, bytes(v)}},
                           {{"format", "weir-learner-1"}, {"step", std::to_string(impl_->optimizer.steps())}});
}

result<void> learner::load_state(const std::filesystem::path& path) {
  auto file = safetensors_file::open(path);
  if (!file) return fail(file.error());
  const auto count = impl_->model.flat().numel();
  auto tensor = [&](const char* name) -> at::Tensor {
    const auto* entry = file->find(name);
    if (entry == nullptr || entry->type != "F32" || entry->shape != std::vector<std::int64_t>{count}) return {};
    auto t = at::empty({count});
    std::memcpy(t.data_ptr(), entry->bytes.data(), entry->bytes.size());
    return t;
  };
  const auto w = tensor("parameters"), m = tensor("exp_avg"), v = tensor("exp_avg_sq");
  const auto step = file->metadata().find("step");
  if (!w.defined() || !m.defined() || !v.defined() || step == file->metadata().end() || step->second.empty() ||
      step->second.size() > 18 || step->second.find_first_not_of("0123456789") != std::string::npos)
    return fail(errc::invalid_data, path.string() +
                                        ": holds no learner state of this model (parameters, exp_avg and exp_avg_sq, " +
                                        std::to_string(count) + " numbers each, and a step count)");
  at::NoGradGuard none;
  impl_->model.flat().detach().copy_(w);
  impl_->optimizer.restore(m, v, std::stoll(step->second));
  return {};
}

}  // namespace weir

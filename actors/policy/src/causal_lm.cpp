#include "weir/policy/causal_lm.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "causal_lm_state.hpp"
#include "weir/policy/evaluation.hpp"
#include "weir/policy/scalar_type.hpp"
#include "weir/runtime/random.hpp"

namespace weir {

namespace {

constexpr std::uint64_t alignment = 64;

/// Adds tensors to a layout; those of one call stand side by side, so that one matrix product can take them all.
void add_group(manifest& m, std::initializer_list<std::pair<std::string, std::vector<std::int64_t>>> tensors) {
  m.bytes = (m.bytes + alignment - 1) / alignment * alignment;
  for (const auto& [name, shape] : tensors) {
    std::uint64_t count = 1;
    for (auto d : shape) count *= static_cast<std::uint64_t>(d);
    m.tensors.push_back({name, dtype::f32, shape, m.bytes, count * 4});
    m.bytes += count * 4;
  }
}

}  // namespace

manifest causal_lm::layout(const causal_lm_config& c) {
  manifest m;
  add_group(m, {{"model.embed_tokens.weight", {c.vocab_size, c.hidden_size}}});
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const auto at = "model.layers." + std::to_string(i) + ".";
    add_group(m, {{at + "input_layernorm.weight", {c.hidden_size}}});
    add_group(m, {{at + "self_attn.q_proj.weight", {c.heads * c.head_dim, c.hidden_size}},
                  {at + "self_attn.k_proj.weight", {c.kv_heads * c.head_dim, c.hidden_size}},
                  {at + "self_attn.v_proj.weight", {c.kv_heads * c.head_dim, c.hidden_size}}});
    add_group(m, {{at + "self_attn.q_norm.weight", {c.head_dim}}});
    add_group(m, {{at + "self_attn.k_norm.weight", {c.head_dim}}});
    add_group(m, {{at + "self_attn.o_proj.weight", {c.hidden_size, c.heads * c.head_dim}}});
    add_group(m, {{at + "post_attention_layernorm.weight", {c.hidden_size}}});
    add_group(m, {{at + "mlp.gate_proj.weight", {c.intermediate_size, c.hidden_size}},
                  {at + "mlp.up_proj.weight", {c.intermediate_size, c.hidden_size}}});
    add_group(m, {{at + "mlp.down_proj.weight", {c.hidden_size, c.intermediate_size}}});
  }
  add_group(m, {{"model.norm.weight", {c.hidden_size}}});
  if (!c.tied_embeddings) add_group(m, {{"lm_head.weight", {c.vocab_size, c.hidden_size}}});
  m.bytes = (m.bytes + alignment - 1) / alignment * alignment;
  return m;
}

causal_lm::state::state(const causal_lm_config& c, at::Tensor parameters)
    : config(c), layout(causal_lm::layout(c)), flat(std::move(parameters)) {
  if (flat.scalar_type() != at::kFloat || flat.dim() != 1 || !flat.is_contiguous() ||
      static_cast<std::uint64_t>(flat.numel()) * 4 != layout.bytes)
    throw std::invalid_argument("the flat buffer is fp32, contiguous and as long as the layout says");
  view_parameters();
}

/// The leaves are views of the flat buffer; fused ones span neighbours in the layout.
void causal_lm::state::view_parameters() {
  std::size_t next = 0;
  auto leaf = [&](std::size_t tensors) {
    const auto& first = layout.tensors[next];
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < tensors; ++i) rows += layout.tensors[next + i].shape[0];
    auto shape = first.shape;
    shape[0] = rows;
    const auto offset = static_cast<std::int64_t>(first.offset / 4);
    std::int64_t count = 1;
    for (auto d : shape) count *= d;
    next += tensors;
    auto view = flat.detach().narrow(0, offset, count).view(shape);
    if (flat_grad.defined()) {
      view.requires_grad_(true);
      view.mutable_grad() = flat_grad.narrow(0, offset, count).view(shape);
    }
    return view;
  };
  embedding = leaf(1);
  layers.clear();
  for (std::int64_t i = 0; i < config.layers; ++i) {
    layer l;
    l.input_norm = leaf(1);
    l.qkv = leaf(3);
    l.q_norm = leaf(1);
    l.k_norm = leaf(1);
    l.out = leaf(1);
    l.mlp_norm = leaf(1);
    l.gate_up = leaf(2);
    l.down = leaf(1);
    layers.push_back(std::move(l));
  }
  norm = leaf(1);
  head = config.tied_embeddings ? embedding : leaf(1);
}

void causal_lm::state::need_positions(std::int64_t positions) {
  if (cosine.defined() && cosine.size(0) >= positions) return;
  std::int64_t size = 64;
  while (size < positions) size *= 2;
  std::tie(cosine, sine) = ops::rope_tables(size, config.head_dim, config.rope_theta);
}

result<void> check_device(const std::string& device) {
  try {
    if (at::ones({2}, at::TensorOptions(at::Device(device))).sum().item<float>() == 2) return {};
    return fail(errc::invalid_config, device + " does not compute");
  } catch (const std::exception& e) {
    return fail(errc::invalid_config, "\"" + device + "\" cannot be used: " + first_line(e.what()));
  }
}

causal_lm::causal_lm(std::unique_ptr<state> s) : state_(std::move(s)) {}
causal_lm::causal_lm(causal_lm&&) noexcept = default;
causal_lm& causal_lm::operator=(causal_lm&&) noexcept = default;
causal_lm::~causal_lm() = default;

causal_lm causal_lm::bind(const causal_lm_config& config, const at::Tensor& flat) {
  auto made = own(config, flat);
  made.state_->constant = true;
  return made;
}

causal_lm causal_lm::own(const causal_lm_config& config, const at::Tensor& flat) {
  return causal_lm(std::make_unique<state>(config, flat));
}

causal_lm causal_lm::random(const causal_lm_config& config, std::uint64_t seed, const std::string& device) {
  const auto about = layout(config);
  auto flat = at::zeros({static_cast<std::int64_t>(about.bytes / 4)}, at::kFloat);
  auto* to = flat.data_ptr<float>();
  for (std::size_t t = 0; t < about.tensors.size(); ++t) {
    const auto& spec = about.tensors[t];
    float* values = to + spec.offset / 4;
    const auto count = spec.bytes / 4;
    if (spec.shape.size() == 1) {
      std::fill_n(values, count, 1.0F);
      continue;
    }
    // Box and Muller 1958, on a stream of the tensor's own: the bits depend on neither libtorch nor the order.
    random_stream uniform(derive_seed(seed, "parameters", t));
    for (std::uint64_t i = 0; i < count; ++i) {
      const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform.uniform()));
      values[i] =
          static_cast<float>(config.initializer_range * radius * std::cos(6.283185307179586 * uniform.uniform()));
    }
  }
  return own(config, flat.to(at::Device(device)));
}

const causal_lm_config& causal_lm::config() const noexcept { return state_->config; }
const manifest& causal_lm::layout() const noexcept { return state_->layout; }
const at::Tensor& causal_lm::flat() const noexcept { return state_->flat; }

void causal_lm::copy_to(std::span<std::byte> host, dtype type) const {
  const auto from = state_->flat.detach();
  if (host.size() != static_cast<std::size_t>(from.numel()) * size_of(type))
    throw std::invalid_argument("a copy of the parameters has their size");
  if (type == dtype::f32 && from.device().is_cpu())
    std::memcpy(host.data(), from.data_ptr(), host.size());
  else
    at::from_blob(host.data(), from.sizes(), scalar_type(type)).copy_(from);
}

const at::Tensor& causal_lm::flat_grad() {
  if (!state_->flat_grad.defined()) {
    state_->flat_grad = at::zeros_like(state_->flat);
    state_->constant = false;
    state_->view_parameters();
  }
  return state_->flat_grad;
}

void causal_lm::rebind(const at::Tensor& flat) {
  if (flat.sizes() != state_->flat.sizes() || flat.scalar_type() != at::kFloat || !flat.is_contiguous())
    throw std::invalid_argument("the new flat buffer differs from the old one in type or size");
  state_->flat = flat;
  state_->flat_grad = at::Tensor();
  state_->constant = true;
  state_->packed_now = false;
  state_->view_parameters();
}

void causal_lm::prepare() {
  if (state_->constant && state_->flat.device().is_cpu() && !state_->packed_now) state_->pack_parameters();
}

namespace {

void check(const packed_sequences& batch, std::int64_t vocab) {
  const auto& o = batch.offsets;
  bool good = o.size() >= 2 && o.front() == 0 && o.back() == static_cast<std::int64_t>(batch.tokens.size());
  for (std::size_t i = 1; good && i < o.size(); ++i) good = o[i] > o[i - 1];
  if (!good) throw std::invalid_argument("packed sequences: offsets must rise from 0 to the number of tokens");
  for (auto t : batch.tokens)
    if (t < 0 || t >= vocab)
      throw std::invalid_argument("token " + std::to_string(t) + " is outside the vocabulary of " +
                                  std::to_string(vocab));
}

at::Tensor index_tensor(const std::vector<std::int64_t>& values, const at::Device& device) {
  return at::tensor(values, at::kLong).to(device);
}

}  // namespace

at::Tensor causal_lm::state::hidden(const packed_sequences& batch) {
  ops::packing p;
  p.offsets = batch.offsets;
  p.positions.reserve(batch.tokens.size());
  std::int64_t longest = 0;
  for (std::size_t b = 0; b + 1 < batch.offsets.size(); ++b) {
    const auto length = batch.offsets[b + 1] - batch.offsets[b];
    longest = std::max(longest, length);
    for (std::int64_t i = 0; i < length; ++i) p.positions.push_back(i);
  }
  need_positions(longest);
  p.cosine = cosine;
  p.sine = sine;
  p.heads = config.heads;
  p.kv_heads = config.kv_heads;
  p.eps = config.rms_norm_eps;

  const auto ids = at::tensor(at::ArrayRef<token>(batch.tokens), at::kInt).to(at::kLong).to(flat.device());
  auto x = ops::embed(embedding, ids);
  for (const auto& l : layers) {
    const auto qkv = at::mm(ops::rms_norm(x, l.input_norm, config.rms_norm_eps), l.qkv.t());
    x = at::addmm(x, ops::attention(qkv, l.q_norm, l.k_norm, p), l.out.t());
    const auto gate_up = at::mm(ops::rms_norm(x, l.mlp_norm, config.rms_norm_eps), l.gate_up.t());
    x = at::addmm(x, ops::swiglu(gate_up), l.down.t());
  }
  return x;
}

at::Tensor causal_lm::logits(const packed_sequences& batch) {
  at::NoGradGuard none;
  check(batch, state_->config.vocab_size);
  const auto x = ops::rms_norm(state_->hidden(batch), state_->norm, state_->config.rms_norm_eps);
  return at::mm(x, state_->head.t());
}

lm_evaluation causal_lm::evaluate(const packed_sequences& batch, std::span<const std::int64_t> targets,
                                  float temperature, bool entropy_gradient) {
  check(batch, state_->config.vocab_size);
  if (targets.empty() || !(temperature > 0))
    throw std::invalid_argument("evaluate needs targets and a temperature above 0");
  const auto device = state_->flat.device();
  std::vector<std::int64_t> from, wanted;
  from.reserve(targets.size());
  wanted.reserve(targets.size());
  auto begin = batch.offsets.begin();  // of the first sequence that does not begin before the target
  for (auto t : targets) {
    if (t < 1 || t >= static_cast<std::int64_t>(batch.tokens.size()))
      throw std::invalid_argument("a target lies outside the batch");
    while (*begin < t) ++begin;
    if (*begin == t)
      throw std::invalid_argument("a target is the first token of its sequence: nothing stands before it");
    if (!from.empty() && t - 1 <= from.back()) throw std::invalid_argument("targets must rise");
    from.push_back(t - 1);
    wanted.push_back(batch.tokens[static_cast<std::size_t>(t)]);
  }
  const auto x = state_->hidden(batch).index_select(0, index_tensor(from, device));
  const auto z = at::mm(ops::rms_norm(x, state_->norm, state_->config.rms_norm_eps), state_->head.t());
  auto [logprobs, entropy] = ops::log_prob(z, index_tensor(wanted, device), temperature, entropy_gradient);
  return {std::move(logprobs), std::move(entropy)};
}

}  // namespace weir

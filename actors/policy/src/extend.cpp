// Acting: prefill and decode over the KV cache.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "causal_lm_state.hpp"
#include "kernels.hpp"

namespace weir {

kv_cache::kv_cache(const causal_lm_config& config, std::int64_t slots, std::int64_t capacity, const std::string& device)
    : state_(std::make_unique<state>()) {
  if (slots < 1 || capacity < 1) throw std::invalid_argument("a cache has at least one slot of one token");
  state_->slots = slots;
  state_->capacity = capacity;
  const auto options = at::TensorOptions(at::kFloat).device(at::Device(device));
  for (std::int64_t i = 0; i < config.layers; ++i) {
    state_->keys.push_back(at::zeros({slots, config.kv_heads, capacity, config.head_dim}, options));
    state_->values.push_back(at::zeros({slots, config.kv_heads, capacity, config.head_dim}, options));
  }
}
kv_cache::~kv_cache() = default;
kv_cache::kv_cache(kv_cache&&) noexcept = default;
kv_cache& kv_cache::operator=(kv_cache&&) noexcept = default;
std::int64_t kv_cache::slots() const noexcept { return state_->slots; }
std::int64_t kv_cache::capacity() const noexcept { return state_->capacity; }
std::size_t kv_cache::bytes() const noexcept {
  std::size_t sum = 0;
  for (const auto& t : state_->keys) sum += 2 * t.nbytes();
  return sum;
}

void kv_cache::copy(std::int64_t from, std::int64_t to, std::int64_t tokens) {
  if (from < 0 || from >= slots() || to < 0 || to >= slots() || from == to || tokens < 0 || tokens > capacity())
    throw std::invalid_argument("a copy is between two slots, of at most the cache's capacity");
  for (auto* side : {&state_->keys, &state_->values})
    for (auto& layer : *side) layer[to].narrow(1, 0, tokens).copy_(layer[from].narrow(1, 0, tokens));
}

void causal_lm::state::need_rows(std::int64_t rows, std::int64_t last_rows) {
  const auto& c = config;
  const auto options = flat.options();
  if (work.rows < rows) {
    work.rows = rows;
    work.x = at::zeros({rows, c.hidden_size}, options);
    work.normed = at::zeros({rows, c.hidden_size}, options);
    work.qkv = at::zeros({rows, (c.heads + 2 * c.kv_heads) * c.head_dim}, options);
    work.q = at::zeros({rows, c.heads * c.head_dim}, options);
    work.k = at::zeros({rows, c.kv_heads * c.head_dim}, options);
    work.attended = at::zeros({rows, c.heads * c.head_dim}, options);
    work.gate_up = at::zeros({rows, 2 * c.intermediate_size}, options);
    work.swiglu = at::zeros({rows, c.intermediate_size}, options);
  }
  if (work.last_rows < last_rows) {
    work.last_rows = last_rows;
    work.last = at::zeros({last_rows, c.hidden_size}, options);
    work.last_normed = at::zeros({last_rows, c.hidden_size}, options);
    work.logits = at::zeros({last_rows, c.vocab_size}, options);
  }
}

at::Tensor causal_lm::extend(kv_cache& cache, std::span<const sequence_chunk> chunks) {
  at::NoGradGuard none;
  const auto& c = state_->config;
  std::int64_t rows = 0;
  std::vector<bool> used(static_cast<std::size_t>(cache.slots()));
  for (const auto& chunk : chunks) {
    const auto count = static_cast<std::int64_t>(chunk.tokens.size());
    if (chunk.slot < 0 || chunk.slot >= cache.slots() || used[static_cast<std::size_t>(chunk.slot)] || count == 0 ||
        chunk.start < 0 || count > cache.capacity() || chunk.start > cache.capacity() - count)
      throw std::invalid_argument("a chunk needs a slot of its own, at least one token, and room for them all");
    used[static_cast<std::size_t>(chunk.slot)] = true;
    for (auto t : chunk.tokens)
      if (t < 0 || t >= c.vocab_size)
        throw std::invalid_argument("token " + std::to_string(t) + " is outside the vocabulary of " +
                                    std::to_string(c.vocab_size));
    rows += count;
  }
  if (chunks.empty()) return at::zeros({0, c.vocab_size});
  state_->need_positions(cache.capacity());
  return state_->flat.device().is_cpu() ? state_->extend_fused(cache, chunks, rows)
                                        : state_->extend_composite(cache, chunks);
}

void causal_lm::state::pack_parameters() {
  const auto& kernel = kernels::best();
  auto pack = [&](at::Tensor& to, const at::Tensor& w) {
    const auto outputs = w.size(0), inputs = w.size(1),
               panels = (outputs + kernels::panel_width - 1) / kernels::panel_width;
    if (!to.defined()) to = at::empty({panels * inputs * kernels::panel_width}, w.options().requires_grad(false));
    kernel.pack(w.data_ptr<float>(), to.data_ptr<float>(), outputs, inputs);
  };
  packed.resize(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    pack(packed[i].qkv, layers[i].qkv);
    pack(packed[i].out, layers[i].out);
    pack(packed[i].gate_up, layers[i].gate_up);
    pack(packed[i].down, layers[i].down);
  }
  pack(packed_head, head);
  packed_now = constant;
}

at::Tensor causal_lm::state::extend_fused(kv_cache& cache, std::span<const sequence_chunk> chunks, std::int64_t rows) {
  if (!packed_now) pack_parameters();
  const auto round_up = [](std::int64_t n) {
    return (n + kernels::row_multiple - 1) / kernels::row_multiple * kernels::row_multiple;
  };
  const auto padded = round_up(rows), last_padded = round_up(static_cast<std::int64_t>(chunks.size()));
  need_rows(padded, last_padded);
  const auto hidden_size = config.hidden_size;
  const auto eps = static_cast<float>(config.rms_norm_eps);
  const auto& kernel = kernels::best();
  const kernels::heads_shape shape{config.heads, config.kv_heads, config.head_dim};
  const auto d = shape.d, capacity = cache.state_->capacity, slot_size = shape.kv_heads * capacity * d;
  auto data = [](const at::Tensor& t) { return t.data_ptr<float>(); };

  work.positions.clear();
  std::int64_t row = 0;
  for (const auto& chunk : chunks)
    for (std::size_t i = 0; i < chunk.tokens.size(); ++i, ++row) {
      work.positions.push_back(chunk.start + static_cast<std::int64_t>(i));
      std::memcpy(data(work.x) + row * hidden_size, data(embedding) + chunk.tokens[i] * hidden_size,
                  static_cast<std::size_t>(hidden_size) * sizeof(float));
    }
  work.scores.resize(static_cast<std::size_t>(capacity));

  auto product = [&](const at::Tensor& out, const at::Tensor& x, const at::Tensor& w, std::int64_t count, bool add) {
    const auto outputs = out.size(1), panels = (outputs + kernels::panel_width - 1) / kernels::panel_width;
    at::parallel_for(0, panels, 4, [&](std::int64_t begin, std::int64_t end) {
      kernel.product(data(x), data(w), data(out), count, outputs, x.size(1), begin, end, add);
    });
  };
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& l = layers[i];
    const auto& p = packed[i];
    float* keys = data(cache.state_->keys[i]);
    float* values = data(cache.state_->values[i]);
    kernel.rms_norm(data(work.x), data(l.input_norm), data(work.normed), nullptr, 0, rows, hidden_size, eps);
    product(work.qkv, work.normed, p.qkv, padded, false);
    kernel.norm_rope(data(work.qkv), data(l.q_norm), data(l.k_norm), {data(cosine), data(sine)}, work.positions.data(),
                     data(work.q), data(work.k), nullptr, 0, rows, shape, eps);
    row = 0;
    const auto width = work.qkv.size(1), v_column = (shape.heads + shape.kv_heads) * d;
    for (const auto& chunk : chunks)
      for (std::size_t t = 0; t < chunk.tokens.size(); ++t, ++row) {
        const auto position = work.positions[static_cast<std::size_t>(row)];
        float* slot_keys = keys + chunk.slot * slot_size;
        float* slot_values = values + chunk.slot * slot_size;
        for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
          const auto bytes = static_cast<std::size_t>(d) * sizeof(float);
          std::memcpy(slot_keys + (h * capacity + position) * d, data(work.k) + (row * shape.kv_heads + h) * d, bytes);
          std::memcpy(slot_values + (h * capacity + position) * d, data(work.qkv) + row * width + v_column + h * d,
                      bytes);
        }
        kernel.attention_cached(data(work.q) + row * shape.heads * d, slot_keys, slot_values, capacity, position + 1,
                                data(work.attended) + row * shape.heads * d, shape, work.scores.data());
      }
    product(work.x, work.attended, p.out, padded, true);
    kernel.rms_norm(data(work.x), data(l.mlp_norm), data(work.normed), nullptr, 0, rows, hidden_size, eps);
    product(work.gate_up, work.normed, p.gate_up, padded, false);
    kernel.swiglu(data(work.gate_up), data(work.swiglu), 0, rows, config.intermediate_size);
    product(work.x, work.swiglu, p.down, padded, true);
  }

  row = 0;
  std::int64_t last = 0;
  for (const auto& chunk : chunks) {
    row += static_cast<std::int64_t>(chunk.tokens.size());
    std::memcpy(data(work.last) + last++ * hidden_size, data(work.x) + (row - 1) * hidden_size,
                static_cast<std::size_t>(hidden_size) * sizeof(float));
  }
  kernel.rms_norm(data(work.last), data(norm), data(work.last_normed), nullptr, 0, last, hidden_size, eps);
  product(work.logits, work.last_normed, packed_head, last_padded, false);
  return work.logits.narrow(0, 0, last);
}

// For other devices: chunks padded to one length, the cache's slots gathered, one masked attention a layer.
at::Tensor causal_lm::state::extend_composite(kv_cache& cache, std::span<const sequence_chunk> chunks) {
  const auto device = flat.device();
  const auto batch = static_cast<std::int64_t>(chunks.size());
  std::int64_t longest = 0, keys = 0;
  for (const auto& chunk : chunks) {
    const auto count = static_cast<std::int64_t>(chunk.tokens.size());
    longest = std::max(longest, count);
    keys = std::max(keys, chunk.start + count);
  }
  std::vector<std::int64_t> ids, positions, slots, last, row_slots, place;
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto& chunk = chunks[static_cast<std::size_t>(b)];
    const auto count = static_cast<std::int64_t>(chunk.tokens.size());
    slots.push_back(chunk.slot);
    for (std::int64_t i = 0; i < count; ++i) {
      ids.push_back(chunk.tokens[static_cast<std::size_t>(i)]);
      positions.push_back(chunk.start + i);
      row_slots.push_back(chunk.slot);
      place.push_back(b * longest + i);
    }
    last.push_back(static_cast<std::int64_t>(ids.size()) - 1);
  }
  auto index = [&](const std::vector<std::int64_t>& v) { return at::tensor(v, at::kLong).to(device); };
  const auto where = index(place), position = index(positions), slot = index(slots), row_slot = index(row_slots);
  const auto rows = static_cast<std::int64_t>(ids.size()), d = config.head_dim;
  const auto cos_rows = cosine.index_select(0, at::tensor(positions, at::kLong)).to(device).unsqueeze(1);
  const auto sin_rows = sine.index_select(0, at::tensor(positions, at::kLong)).to(device).unsqueeze(1);
  // Padding rows get position -1: they see no key, and their result is dropped.
  const auto query_position = at::full({batch * longest}, -1, position.options()).index_copy_(0, where, position);
  const auto visible =
      (at::arange(keys, position.options()).view({1, 1, keys}) <= query_position.view({batch, longest, 1}));
  const auto hidden_keys = visible.logical_not().unsqueeze(1);

  auto normed = [&](const at::Tensor& x, const at::Tensor& w) {
    return ops::rms_norm(x, w, config.rms_norm_eps, ops::form::composite);
  };
  auto rotated = [&](const at::Tensor& x) {
    const auto halves = x.chunk(2, -1);
    return at::cat({halves[0] * cos_rows - halves[1] * sin_rows, halves[1] * cos_rows + halves[0] * sin_rows}, -1);
  };
  auto x = embedding.index_select(0, index(ids));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& l = layers[i];
    const auto qkv = at::mm(normed(x, l.input_norm), l.qkv.t()).view({rows, config.heads + 2 * config.kv_heads, d});
    const auto parts = qkv.split_with_sizes({config.heads, config.kv_heads, config.kv_heads}, 1);
    auto& cached_keys = cache.state_->keys[i];
    auto& cached_values = cache.state_->values[i];
    // Advanced indexing with a slice between puts the indexed dimensions first: [rows, kv_heads, d].
    cached_keys.transpose(1, 2).index_put_({row_slot, position}, rotated(normed(parts[1], l.k_norm)));
    cached_values.transpose(1, 2).index_put_({row_slot, position}, parts[2]);
    const auto q = at::zeros({batch * longest, config.heads, d}, x.options())
                       .index_copy_(0, where, rotated(normed(parts[0], l.q_norm)))
                       .view({batch, longest, config.heads, d})
                       .transpose(1, 2);
    const auto share = config.heads / config.kv_heads;
    const auto k = cached_keys.index_select(0, slot).narrow(2, 0, keys).repeat_interleave(share, 1);
    const auto v = cached_values.index_select(0, slot).narrow(2, 0, keys).repeat_interleave(share, 1);
    auto scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(d));
    scores.masked_fill_(hidden_keys, std::numeric_limits<float>::lowest());
    const auto mixed =
        at::matmul(at::softmax(scores, -1), v).transpose(1, 2).reshape({batch * longest, config.heads * d});
    x = at::addmm(x, mixed.index_select(0, where), l.out.t());
    x = at::addmm(x, ops::swiglu(at::mm(normed(x, l.mlp_norm), l.gate_up.t()), ops::form::composite), l.down.t());
  }
  return at::mm(normed(x.index_select(0, index(last)), norm), head.t());
}

}  // namespace weir

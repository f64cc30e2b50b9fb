#include "ops.hpp"

#include <cmath>
#include <memory>

#include "kernels.hpp"

namespace weir::ops {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

bool fused(form how, const at::Tensor& x) {
  return how == form::fused || (how == form::automatic && x.device().is_cpu() && x.scalar_type() == at::kFloat);
}

const float* in(const at::Tensor& t) { return t.data_ptr<float>(); }
float* out(const at::Tensor& t) { return t.data_ptr<float>(); }

/// Rows a thread takes at least: below that the cost of starting threads is more than the work.
constexpr std::int64_t grain = 256;

/// Runs body(begin, end, dw) over rows; each thread adds to a dw [dim] of its own, and all are summed into one.
template <class Body>
at::Tensor over_rows_with_sum(std::int64_t rows, std::int64_t dim, Body body) {
  const auto threads = at::get_num_threads();
  auto partial = at::zeros({threads, dim});
  at::parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
    body(begin, end, out(partial) + at::get_thread_num() * dim);
  });
  return threads == 1 ? partial.squeeze(0) : partial.sum(0);
}

struct embed_function : Function<embed_function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& tokens) {
    context->save_for_backward({tokens});
    context->saved_data["rows"] = weight.size(0);
    return weight.index_select(0, tokens);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto tokens = context->get_saved_variables()[0];
    const auto g = grads[0].contiguous();
    const auto dim = g.size(1);
    auto dw = at::zeros({context->saved_data["rows"].toInt(), dim}, g.options());
    const auto* ids = tokens.data_ptr<std::int64_t>();
    for (std::int64_t row = 0; row < g.size(0); ++row) {
      const float* from = in(g) + row * dim;
      float* to = out(dw) + ids[row] * dim;
      for (std::int64_t i = 0; i < dim; ++i) to[i] += from[i];
    }
    return {dw, at::Tensor()};
  }
};

struct rms_norm_function : Function<rms_norm_function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps) {
    const auto rows = x.size(0), dim = x.size(1);
    auto y = at::empty_like(x);
    auto inv = at::empty({rows}, x.options());
    at::parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
      kernels::best().rms_norm(in(x), in(weight), out(y), out(inv), begin, end, dim, static_cast<float>(eps));
    });
    context->save_for_backward({x, weight, inv});
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &inv = saved[2];
    const auto g = grads[0].contiguous();
    auto dx = at::empty_like(x);
    auto dw = over_rows_with_sum(x.size(0), x.size(1), [&](std::int64_t begin, std::int64_t end, float* sum) {
      kernels::best().rms_norm_backward(in(x), in(weight), in(inv), in(g), out(dx), sum, begin, end, x.size(1));
    });
    return {dx, dw, at::Tensor()};
  }
};

/// Carries the packing through autograd's context.
struct packing_holder : torch::CustomClassHolder {
  packing value;
};

kernels::heads_shape shape_of(const packing& p, const at::Tensor& norm) { return {p.heads, p.kv_heads, norm.size(0)}; }

struct attention_function : Function<attention_function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, const at::Tensor& qw, const at::Tensor& kw,
                            const packing& p) {
    const auto shape = shape_of(p, qw);
    const auto rows = qkv.size(0), width = qkv.size(1);
    const auto& kernel = kernels::best();
    auto q = at::empty({rows, shape.heads * shape.d}, qkv.options());
    auto k = at::empty({rows, shape.kv_heads * shape.d}, qkv.options());
    auto inv = at::empty({rows, shape.heads + shape.kv_heads}, qkv.options());
    auto o = at::empty_like(q);
    auto lse = at::empty({rows, shape.heads}, qkv.options());
    at::parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
      kernel.norm_rope(in(qkv), in(qw), in(kw), {in(p.cosine), in(p.sine)}, p.positions.data(), out(q), out(k),
                       out(inv), begin, end, shape, static_cast<float>(p.eps));
    });
    const float* v = in(qkv) + (shape.heads + shape.kv_heads) * shape.d;
    over_sequences(p, [&](std::int64_t first, std::int64_t length, float* scratch) {
      kernel.attention(in(q) + first * q.size(1), in(k) + first * k.size(1), v + first * width, width,
                       out(o) + first * o.size(1), out(lse) + first * shape.heads, length, shape, scratch);
    });
    context->save_for_backward({qkv, qw, kw, q, k, inv, o, lse});
    auto holder = c10::make_intrusive<packing_holder>();
    holder->value = p;
    context->saved_data["packing"] = c10::IValue::make_capsule(std::move(holder));
    return o;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto &qkv = saved[0], &qw = saved[1], &kw = saved[2], &q = saved[3], &k = saved[4], &inv = saved[5],
               &o = saved[6], &lse = saved[7];
    const auto holder = c10::static_intrusive_pointer_cast<packing_holder>(context->saved_data["packing"].toCapsule());
    const auto& p = holder->value;
    const auto shape = shape_of(p, qw);
    const auto rows = qkv.size(0), width = qkv.size(1), kv_width = shape.kv_heads * shape.d;
    const auto g = grads[0].contiguous();
    const auto& kernel = kernels::best();
    auto dq = at::empty_like(q);
    auto dk = at::zeros_like(k);
    auto dqkv = at::empty_like(qkv);
    dqkv.narrow(1, width - kv_width, kv_width).zero_();
    const auto v_column = (shape.heads + shape.kv_heads) * shape.d;
    over_sequences(p, [&](std::int64_t first, std::int64_t length, float*) {
      kernel.attention_backward(in(q) + first * q.size(1), in(k) + first * k.size(1),
                                in(qkv) + first * width + v_column, width, in(o) + first * o.size(1),
                                in(lse) + first * shape.heads, in(g) + first * g.size(1), out(dq) + first * q.size(1),
                                out(dk) + first * k.size(1), out(dqkv) + first * width + v_column, length, shape);
    });
    auto dw = over_rows_with_sum(rows, 2 * shape.d, [&](std::int64_t begin, std::int64_t end, float* sum) {
      kernel.norm_rope_backward(in(qkv), in(qw), in(kw), {in(p.cosine), in(p.sine)}, p.positions.data(), in(inv),
                                in(dq), in(dk), out(dqkv), sum, sum + shape.d, begin, end, shape);
    });
    return {dqkv, dw.narrow(0, 0, shape.d), dw.narrow(0, shape.d, shape.d), at::Tensor()};
  }

 private:
  template <class Body>
  static void over_sequences(const packing& p, Body body) {
    const auto count = static_cast<std::int64_t>(p.offsets.size()) - 1;
    at::parallel_for(0, count, 16, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> scratch;
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        const auto length = p.offsets[i + 1] - p.offsets[i];
        if (static_cast<std::int64_t>(scratch.size()) < length) scratch.resize(static_cast<std::size_t>(length));
        body(p.offsets[i], length, scratch.data());
      }
    });
  }
};

struct swiglu_function : Function<swiglu_function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    const auto rows = gate_up.size(0), dim = gate_up.size(1) / 2;
    auto y = at::empty({rows, dim}, gate_up.options());
    at::parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
      kernels::best().swiglu(in(gate_up), out(y), begin, end, dim);
    });
    context->save_for_backward({gate_up});
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto gate_up = context->get_saved_variables()[0];
    const auto g = grads[0].contiguous();
    auto dx = at::empty_like(gate_up);
    at::parallel_for(0, g.size(0), grain, [&](std::int64_t begin, std::int64_t end) {
      kernels::best().swiglu_backward(in(gate_up), in(g), out(dx), begin, end, g.size(1));
    });
    return {dx};
  }
};

struct log_prob_function : Function<log_prob_function> {
  static variable_list forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& targets,
                               double temperature, bool entropy_gradient) {
    const auto rows = logits.size(0), vocab = logits.size(1);
    const auto inverse = static_cast<float>(1 / temperature);
    auto logp = at::empty({rows}, logits.options());
    auto entropy = at::empty_like(logp);
    auto lse = at::empty_like(logp);
    at::parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
      kernels::best().log_prob(in(logits), targets.data_ptr<std::int64_t>(), inverse, out(logp), out(entropy), out(lse),
                               begin, end, vocab);
    });
    context->save_for_backward({logits, targets, lse, entropy});
    context->saved_data["inverse"] = static_cast<double>(inverse);
    context->saved_data["entropy_gradient"] = entropy_gradient;
    if (!entropy_gradient) context->mark_non_differentiable({entropy});
    return {logp, entropy};
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto &logits = saved[0], &targets = saved[1], &lse = saved[2], &entropy = saved[3];
    const auto gp = grads[0].defined() ? grads[0].contiguous() : at::zeros_like(lse);
    at::Tensor ge;
    if (context->saved_data["entropy_gradient"].toBool() && grads[1].defined()) ge = grads[1].contiguous();
    auto dz = at::empty_like(logits);
    at::parallel_for(0, logits.size(0), grain, [&](std::int64_t begin, std::int64_t end) {
      kernels::best().log_prob_backward(
          in(logits), targets.data_ptr<std::int64_t>(), static_cast<float>(context->saved_data["inverse"].toDouble()),
          in(lse), in(entropy), in(gp), ge.defined() ? in(ge) : nullptr, out(dz), begin, end, logits.size(1));
    });
    return {dz, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor composite_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * (x.square().mean(-1, true) + eps).rsqrt() * weight;
}

/// x [N, heads, d] rotated by cos, sin [N, 1, d / 2].
at::Tensor composite_rotate(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) {
  const auto halves = x.chunk(2, -1);
  return at::cat({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, -1);
}

/// One padded batch: gather to [B, T], attend with a causal mask, and take the tokens back out.
at::Tensor composite_attention(const at::Tensor& qkv, const at::Tensor& qw, const at::Tensor& kw, const packing& p) {
  const auto rows = qkv.size(0), d = qw.size(0);
  const auto batch = static_cast<std::int64_t>(p.offsets.size()) - 1;
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < batch; ++b)
    longest = std::max(longest, p.offsets[static_cast<std::size_t>(b) + 1] - p.offsets[static_cast<std::size_t>(b)]);
  std::vector<std::int64_t> place(static_cast<std::size_t>(rows));
  for (std::int64_t b = 0; b < batch; ++b)
    for (auto i = p.offsets[static_cast<std::size_t>(b)]; i < p.offsets[static_cast<std::size_t>(b) + 1]; ++i)
      place[static_cast<std::size_t>(i)] = b * longest + p.positions[static_cast<std::size_t>(i)];
  const auto index = at::tensor(place, at::kLong).to(qkv.device());
  const auto positions = at::tensor(p.positions, at::kLong);
  const auto cosine = p.cosine.index_select(0, positions).to(qkv.options()).unsqueeze(1);
  const auto sine = p.sine.index_select(0, positions).to(qkv.options()).unsqueeze(1);
  const auto parts =
      qkv.view({rows, p.heads + 2 * p.kv_heads, d}).split_with_sizes({p.heads, p.kv_heads, p.kv_heads}, 1);
  auto padded = [&](const at::Tensor& x, std::int64_t heads) {
    return at::zeros({batch * longest, heads, d}, x.options())
        .index_copy(0, index, x)
        .view({batch, longest, heads, d})
        .transpose(1, 2);
  };
  auto q = padded(composite_rotate(composite_norm(parts[0], qw, p.eps), cosine, sine), p.heads);
  auto k = padded(composite_rotate(composite_norm(parts[1], kw, p.eps), cosine, sine), p.kv_heads)
               .repeat_interleave(p.heads / p.kv_heads, 1);
  auto v = padded(parts[2], p.kv_heads).repeat_interleave(p.heads / p.kv_heads, 1);
  auto scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(d));
  const auto hidden = at::ones({longest, longest}, qkv.options().dtype(at::kBool)).triu(1);
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  auto mixed = at::matmul(at::softmax(scores, -1), v).transpose(1, 2).reshape({batch * longest, p.heads * d});
  return mixed.index_select(0, index);
}

}  // namespace

at::Tensor embed(const at::Tensor& weight, const at::Tensor& tokens, form how) {
  return fused(how, weight) ? embed_function::apply(weight, tokens) : weight.index_select(0, tokens);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, form how) {
  return fused(how, x) ? rms_norm_function::apply(x, weight, eps) : composite_norm(x, weight, eps);
}

at::Tensor attention(const at::Tensor& qkv, const at::Tensor& q_norm, const at::Tensor& k_norm,
                     const packing& how_packed, form how) {
  return fused(how, qkv) ? attention_function::apply(qkv, q_norm, k_norm, how_packed)
                         : composite_attention(qkv, q_norm, k_norm, how_packed);
}

at::Tensor swiglu(const at::Tensor& gate_up, form how) {
  if (fused(how, gate_up)) return swiglu_function::apply(gate_up);
  const auto halves = gate_up.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

std::pair<at::Tensor, at::Tensor> log_prob(const at::Tensor& logits, const at::Tensor& targets, double temperature,
                                           bool entropy_gradient, form how) {
  if (fused(how, logits)) {
    auto both = log_prob_function::apply(logits, targets, temperature, entropy_gradient);
    return {both[0], both[1]};
  }
  const auto all = at::log_softmax(logits / temperature, -1);
  auto entropy = -(all.exp() * all).sum(-1);
  return {all.gather(1, targets.unsqueeze(1)).squeeze(1), entropy_gradient ? entropy : entropy.detach()};
}

std::pair<at::Tensor, at::Tensor> rope_tables(std::int64_t positions, std::int64_t head_dim, double theta) {
  const auto exponent = at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(head_dim);
  const auto frequency = 1.0 / at::pow(theta, exponent);
  const auto angle = at::arange(positions, at::kFloat).unsqueeze(1) * frequency.unsqueeze(0);
  return {angle.cos().contiguous(), angle.sin().contiguous()};
}

}  // namespace weir::ops

#include "weir/weights/layout_plan.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace weir {

namespace {

const tensor_spec* find(const manifest& m, const std::string& name) {
  const auto found = std::find_if(m.tensors.begin(), m.tensors.end(), [&](const auto& t) { return t.name == name; });
  return found == m.tensors.end() ? nullptr : &*found;
}

std::uint64_t product(std::span<const std::int64_t> dims) {
  return std::accumulate(dims.begin(), dims.end(), std::uint64_t{1},
                         [](std::uint64_t n, std::int64_t d) { return n * static_cast<std::uint64_t>(d); });
}

std::string text_of(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (auto d : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(d);
  return text + "]";
}

// ---- element types ------------------------------------------------------------------------------------------------

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);  // NaN stays one
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}
float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

template <class To, class From, class Convert>
void convert_run(const std::byte* from, std::byte* to, std::uint64_t elements, Convert one) {
  for (std::uint64_t i = 0; i < elements; ++i) {
    From in;
    std::memcpy(&in, from + i * sizeof in, sizeof in);
    const To out = one(in);
    std::memcpy(to + i * sizeof out, &out, sizeof out);
  }
}

void copy_run(const std::byte* from, dtype from_type, std::byte* to, dtype to_type, std::uint64_t elements) {
  if (from_type == to_type) {
    std::memcpy(to, from, elements * size_of(to_type));
    return;
  }
  const auto pair = std::pair(from_type, to_type);
  if (pair == std::pair(dtype::f32, dtype::bf16)) return convert_run<std::uint16_t, float>(from, to, elements, to_bf16);
  if (pair == std::pair(dtype::bf16, dtype::f32))
    return convert_run<float, std::uint16_t>(from, to, elements, from_bf16);
  if (pair == std::pair(dtype::f32, dtype::f16))
    return convert_run<_Float16, float>(from, to, elements, [](float x) { return static_cast<_Float16>(x); });
  if (pair == std::pair(dtype::f16, dtype::f32))
    return convert_run<float, _Float16>(from, to, elements, [](_Float16 x) { return static_cast<float>(x); });
  if (pair == std::pair(dtype::f16, dtype::bf16))
    return convert_run<std::uint16_t, _Float16>(from, to, elements,
                                                [](_Float16 x) { return to_bf16(static_cast<float>(x)); });
  convert_run<_Float16, std::uint16_t>(from, to, elements,
                                       [](std::uint16_t x) { return static_cast<_Float16>(from_bf16(x)); });
}

// ---- names ----------------------------------------------------------------------------------------------------------

/// Whether `text` is the pattern, in which a * stands for any characters.
bool matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, from = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++from;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace

result<manifest> select_tensors(const manifest& whole, std::span<const std::string> patterns) {
  for (const auto& p : patterns)
    if (std::none_of(whole.tensors.begin(), whole.tensors.end(), [&](const auto& t) { return matches(p, t.name); }))
      return fail(errc::invalid_config, "no tensor of the model matches \"" + p + "\"; the first is called " +
                                            (whole.tensors.empty() ? "nothing" : whole.tensors.front().name));
  manifest some;
  for (auto t : whole.tensors) {
    if (std::none_of(patterns.begin(), patterns.end(), [&](const auto& p) { return matches(p, t.name); })) continue;
    t.offset = std::exchange(some.bytes, (some.bytes + t.bytes + 63) / 64 * 64);
    some.tensors.push_back(std::move(t));
  }
  return some;
}

manifest retyped(const manifest& m, dtype type) {
  manifest other;
  const auto scaled = [&](std::uint64_t n, dtype from) { return n / size_of(from) * size_of(type); };
  for (const auto& t : m.tensors)
    other.tensors.push_back({t.name, type, t.shape, scaled(t.offset, t.type), scaled(t.bytes, t.type)});
  if (!m.tensors.empty()) other.bytes = scaled(m.bytes, m.tensors.front().type);
  return other;
}

// ---- the plan -------------------------------------------------------------------------------------------------------

/// `slice` of `source` goes to `target` at index `at` of `dimension`.
void layout_plan::add(const tensor_spec& source, const tensor_slice& slice, const tensor_spec& target,
                      std::size_t dimension, std::int64_t at) {
  const auto from_size = size_of(source.type), to_size = size_of(target.type);
  const std::span<const std::int64_t> from(source.shape), to(target.shape);
  const auto end = slice.end < 0 ? source.shape[slice.dimension] : slice.end;
  // A block of the source is contiguous from its sliced dimension on, one of the target from the dimension along which
  // slices are laid: a run is what is contiguous in both.
  const auto inner = std::max(slice.dimension, dimension);
  const auto below = product(from.subspan(inner + 1));
  const auto run_from = product(from.subspan(slice.dimension + 1)), run_to = product(to.subspan(dimension + 1));
  copy c;
  c.from_type = source.type;
  c.to_type = target.type;
  c.from = source.offset + static_cast<std::uint64_t>(slice.begin) * run_from * from_size;
  c.to = target.offset + static_cast<std::uint64_t>(at) * run_to * to_size;
  const auto length = static_cast<std::uint64_t>(inner == slice.dimension ? end - slice.begin : from[inner]);
  c.elements = length * below;
  c.from_step = static_cast<std::uint64_t>(from[inner]) * below * from_size;
  c.to_step = static_cast<std::uint64_t>(to[inner]) * below * to_size;
  // Rows from the outer of the two dimensions on are evenly spaced on both sides; what is outside of both is a list.
  const auto outer = slice.dimension == dimension ? 0 : std::min(slice.dimension, dimension);
  for (std::size_t d = outer; d < inner; ++d)
    c.rows *= static_cast<std::uint64_t>(d == slice.dimension ? end - slice.begin : from[d]);
  if (c.rows == 1 || (c.from_step == c.elements * from_size && c.to_step == c.elements * to_size)) {
    c.elements *= std::exchange(c.rows, 1);
    c.from_step = c.to_step = 0;
  }
  for (std::uint64_t block = 0; block < product(from.first(outer)); ++block) {
    copies_.push_back(c);
    c.from += product(from.subspan(outer)) * from_size;
    c.to += product(to.subspan(outer)) * to_size;
  }
}

void layout_plan::finish(const manifest& published) {
  published_ = published.bytes;
  std::sort(copies_.begin(), copies_.end(), [](const copy& a, const copy& b) { return a.to < b.to; });
  // Neighbours on both sides are one copy.
  std::vector<copy> joined;
  for (const auto& c : copies_) {
    auto* last = joined.empty() ? nullptr : &joined.back();
    const bool one = last != nullptr && last->rows == 1 && c.rows == 1 && last->from_type == c.from_type &&
                     last->to_type == c.to_type && last->from + last->elements * size_of(c.from_type) == c.from &&
                     last->to + last->elements * size_of(c.to_type) == c.to;
    if (one)
      last->elements += c.elements;
    else
      joined.push_back(c);
  }
  copies_ = std::move(joined);
  std::uint64_t written = 0, wanted = 0;
  for (const auto& c : copies_) written += c.rows * c.elements;
  for (const auto& t : target_.tensors) wanted += product(t.shape);
  leaves_some_ = written < wanted;
  if (!copies_.empty() && !leaves_some_ &&
      std::all_of(copies_.begin(), copies_.end(),
                  [&](const copy& c) {
                    return c.rows == 1 && c.from / size_of(c.from_type) == c.to / size_of(c.to_type) &&
                           c.from_type == copies_[0].from_type && c.to_type == copies_[0].to_type;
                  }) &&
      published.bytes / size_of(copies_[0].from_type) == target_.bytes / size_of(copies_[0].to_type))
    as_a_whole_ = copies_[0].from_type;
  in_place_ = published.bytes == target_.bytes && !copies_.empty() && !leaves_some_ &&
              std::all_of(copies_.begin(), copies_.end(),
                          [](const copy& c) { return c.rows == 1 && c.from == c.to && c.from_type == c.to_type; });
}

result<layout_plan> layout_plan::make(const manifest& published, std::span<const tensor_recipe> recipes, dtype type,
                                      std::uint64_t alignment) {
  layout_plan plan;
  for (const auto& r : recipes) {
    const auto bad = [&](const std::string& why) { return fail(errc::invalid_data, "tensor " + r.name + ": " + why); };
    if (r.slices.empty()) return bad("its recipe has no slice");
    tensor_spec t{r.name, type, {}, (plan.target_.bytes + alignment - 1) / alignment * alignment, 0};
    struct part {
      const tensor_spec* source;
      std::int64_t at;
    };
    std::vector<part> parts;
    for (const auto& s : r.slices) {
      const auto* source = find(published, s.tensor);
      if (source == nullptr) return bad("there is no published tensor " + s.tensor);
      auto shape = source->shape;
      if (s.dimension >= shape.size() || r.dimension >= shape.size())
        return bad("the recipe names a dimension that " + s.tensor + " of shape " + text_of(shape) + " does not have");
      const auto end = s.end < 0 ? shape[s.dimension] : s.end;
      if (s.begin < 0 || s.begin >= end || end > shape[s.dimension])
        return bad("the slice from " + std::to_string(s.begin) + " to " + std::to_string(end) + " is not in " +
                   s.tensor + " of shape " + text_of(shape));
      shape[s.dimension] = end - s.begin;
      if (t.shape.empty()) {
        parts.push_back({source, 0});
        t.shape = shape;
        continue;
      }
      if (t.shape.size() != shape.size()) return bad("its slices have different numbers of dimensions");
      parts.push_back({source, t.shape[r.dimension]});
      const auto length = std::exchange(shape[r.dimension], t.shape[r.dimension]);
      if (t.shape != shape)
        return bad("its slice of " + s.tensor + " does not fit beside the others: of shape " + text_of(shape) +
                   " but for dimension " + std::to_string(r.dimension) + ", they " + text_of(t.shape));
      t.shape[r.dimension] += length;
    }
    t.bytes = product(t.shape) * size_of(type);
    for (std::size_t i = 0; i < parts.size(); ++i) plan.add(*parts[i].source, r.slices[i], t, r.dimension, parts[i].at);
    plan.target_.bytes = t.offset + t.bytes;
    plan.target_.tensors.push_back(std::move(t));
  }
  plan.target_.bytes = (plan.target_.bytes + alignment - 1) / alignment * alignment;
  plan.finish(published);
  return plan;
}

result<layout_plan> layout_plan::make(const manifest& published, const manifest& wanted, layout_fit fit) {
  layout_plan plan;
  plan.target_ = wanted;
  for (const auto& t : published.tensors)
    if (fit != layout_fit::subset && find(wanted, t.name) == nullptr)
      return fail(errc::invalid_data,
                  "tensor " + t.name + " is published, and the engine's model has none of that name");
  for (const auto& t : wanted.tensors) {
    const auto* source = find(published, t.name);
    if (source == nullptr && fit == layout_fit::partial) continue;
    if (source == nullptr)
      return fail(errc::invalid_data, "tensor " + t.name + " of the engine's model is not published");
    if (source->shape != t.shape)
      return fail(errc::invalid_data, "tensor " + t.name + " is published with shape " + text_of(source->shape) +
                                          ", the engine's model has " + text_of(t.shape));
    plan.add(*source, {t.name}, t, 0, 0);
  }
  plan.finish(published);
  return plan;
}

void layout_plan::apply(std::span<const std::byte> published, std::span<std::byte> engine) const {
  if (published.size() != published_ || engine.size() != target_.bytes)
    throw std::invalid_argument("a layout plan's memory has the sizes of its manifests");
  for (const auto& c : copies_)
    for (std::uint64_t row = 0; row < c.rows; ++row)
      copy_run(published.data() + c.from + row * c.from_step, c.from_type, engine.data() + c.to + row * c.to_step,
               c.to_type, c.elements);
}

// ---- tensor-parallel engines ----------------------------------------------------------------------------------------

namespace {

struct part {
  std::int64_t begin = 0, end = 0;
};

/// Recipes of one rank, one published tensor after the other.
class sharder {
 public:
  sharder(const manifest& published, const shard_settings& settings) : published_(published), s_(settings) {}

  result<std::vector<tensor_recipe>> run() {
    for (const auto& t : published_.tensors)
      if (auto done = add(t); !done) return fail(done.error());
    if (s_.untie && find(published_, "lm_head.weight") == nullptr)
      if (const auto* embedding = find(published_, "model.embed_tokens.weight")) {
        auto rows = divide(*embedding, 0, 1);
        if (!rows) return fail(rows.error());
        recipes_.push_back({"lm_head.weight", {{embedding->name, 0, rows->begin, rows->end}}, 0});
      }
    return std::move(recipes_);
  }

 private:
  /// This rank's part of a dimension, in whole units of `unit`. Neighbours share units where there are fewer than
  /// ranks.
  result<part> divide(const tensor_spec& t, std::size_t dimension, std::int64_t unit) const {
    const auto size = dimension < t.shape.size() ? t.shape[dimension] : 0;
    const auto units = unit > 0 && size % unit == 0 ? size / unit : 0;
    if (units > 0 && units % s_.ranks == 0)
      return part{units / s_.ranks * s_.rank * unit, units / s_.ranks * (s_.rank + 1) * unit};
    if (units > 0 && unit > 1 && s_.ranks % units == 0) {
      const auto which = s_.rank / (s_.ranks / units);
      return part{which * unit, (which + 1) * unit};
    }
    return fail(errc::invalid_data, "tensor " + t.name + " of shape " + text_of(t.shape) + " cannot be divided among " +
                                        std::to_string(s_.ranks) + " ranks" +
                                        (unit > 1 ? " by heads of " + std::to_string(unit) : ""));
  }

  result<void> add(const tensor_spec& t) {
    struct rule {
      const char* ends;
      std::size_t dimension;
      bool heads;
      const char* fused;
    };
    static constexpr rule rules[] = {{".self_attn.q_proj.weight", 0, true, ".self_attn.qkv_proj.weight"},
                                     {".self_attn.k_proj.weight", 0, true, ".self_attn.qkv_proj.weight"},
                                     {".self_attn.v_proj.weight", 0, true, ".self_attn.qkv_proj.weight"},
                                     {".self_attn.o_proj.weight", 1, true, nullptr},
                                     {".mlp.gate_proj.weight", 0, false, ".mlp.gate_up_proj.weight"},
                                     {".mlp.up_proj.weight", 0, false, ".mlp.gate_up_proj.weight"},
                                     {".mlp.down_proj.weight", 1, false, nullptr},
                                     {"embed_tokens.weight", 0, false, nullptr},
                                     {"lm_head.weight", 0, false, nullptr}};
    const auto* found =
        std::find_if(std::begin(rules), std::end(rules), [&](const rule& r) { return t.name.ends_with(r.ends); });
    if (found == std::end(rules)) {
      recipes_.push_back({t.name, {{t.name}}, 0});
      return {};
    }
    auto mine = divide(t, found->dimension, found->heads ? s_.head_dim : 1);
    if (!mine) return fail(mine.error());
    const tensor_slice slice{t.name, found->dimension, mine->begin, mine->end};
    auto name = t.name;
    if (s_.fuse && found->fused != nullptr)
      name = t.name.substr(0, t.name.size() - std::strlen(found->ends)) + found->fused;
    if (!recipes_.empty() && recipes_.back().name == name)
      recipes_.back().slices.push_back(slice);
    else
      recipes_.push_back({name, {slice}, 0});
    return {};
  }

  const manifest& published_;
  shard_settings s_;
  std::vector<tensor_recipe> recipes_;
};

}  // namespace

result<std::vector<tensor_recipe>> shard_recipes(const manifest& published, const shard_settings& settings) {
  if (settings.ranks < 1 || settings.rank < 0 || settings.rank >= settings.ranks)
    return fail(errc::invalid_argument,
                "rank " + std::to_string(settings.rank) + " is not one of " + std::to_string(settings.ranks));
  return sharder(published, settings).run();
}

}  // namespace weir

#include "batching.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace weir {

result<std::int64_t> check_trajectory(const trajectory& t, std::int64_t vocab) {
  const auto who = "group " + std::to_string(t.group) + ", sample " + std::to_string(t.sample) + ": ";
  const auto n = t.tokens.size();
  if (t.mask.size() != n || t.logprobs.size() != n || t.versions.size() != n)
    return fail(errc::invalid_argument, who + "tokens, mask, logprobs and versions differ in length");
  if (n > 0 && t.mask[0] != 0)
    return fail(errc::invalid_argument, who + "its first token has nothing before it to be predicted from");
  std::int64_t produced = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (t.tokens[i] < 0 || t.tokens[i] >= vocab)
      return fail(errc::invalid_argument, who + "token " + std::to_string(t.tokens[i]) +
                                              " is outside the vocabulary of " + std::to_string(vocab));
    if (t.mask[i] == 0) continue;
    ++produced;
    if (!std::isfinite(t.logprobs[i])) return fail(errc::numeric, who + "a behaviour log-probability is not finite");
  }
  if (!(std::abs(t.reward) <= std::numeric_limits<float>::max()))  // their squares fit a double
    return fail(errc::numeric, who + "its reward, " + std::to_string(t.reward) + ", is not finite or beyond fp32");
  return produced;
}

at::Tensor micro_batch::spread(const at::Tensor& flat) const {
  return at::zeros({rows * columns}, flat.options()).index_copy(0, places, flat).view({rows, columns});
}

namespace {

micro_batch make_one(std::span<sample> samples, const at::Device& device) {
  micro_batch m;
  m.samples = samples;
  m.rows = static_cast<std::int64_t>(samples.size());
  for (const auto& s : samples) m.columns = std::max(m.columns, s.produced);
  m.packed.offsets.push_back(0);
  std::vector<std::int64_t> places;
  for (std::size_t b = 0; b < samples.size(); ++b) {
    const auto& t = *samples[b].record;
    const auto first = static_cast<std::int64_t>(m.packed.tokens.size());
    std::int64_t n = 0;
    // What follows the last produced token takes no part.
    std::size_t used = t.tokens.size();
    while (t.mask[used - 1] == 0) --used;
    for (std::size_t i = 0; i < used; ++i)
      if (t.mask[i] != 0) {
        m.targets.push_back(first + static_cast<std::int64_t>(i));
        places.push_back(static_cast<std::int64_t>(b) * m.columns + n++);
      }
    m.packed.tokens.insert(m.packed.tokens.end(), t.tokens.begin(),
                           t.tokens.begin() + static_cast<std::ptrdiff_t>(used));
    m.packed.offsets.push_back(static_cast<std::int64_t>(m.packed.tokens.size()));
  }
  m.places = at::tensor(places, at::kLong).to(device);
  return m;
}

}  // namespace

std::vector<micro_batch> make_micro_batches(std::span<sample> samples, std::int64_t tokens, const at::Device& device) {
  std::vector<micro_batch> out;
  std::size_t begin = 0;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto size = static_cast<std::int64_t>(samples[i].record->tokens.size());
    if (i > begin && sum + size > tokens) {
      out.push_back(make_one(samples.subspan(begin, i - begin), device));
      begin = i;
      sum = 0;
    }
    sum += size;
  }
  if (begin < samples.size()) out.push_back(make_one(samples.subspan(begin), device));
  return out;
}

}  // namespace weir

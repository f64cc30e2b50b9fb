#pragma once
// What the tests of the policy and of the trainer share: small models, random sequences, folders that vanish.

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "weir/policy/causal_lm.hpp"
#include "weir/policy/torch.hpp"
#include "weir/runtime/random.hpp"

namespace weir::testing {

/// An empty folder that is removed with what is in it.
class temporary_folder {
 public:
  temporary_folder() {
    auto pattern = (std::filesystem::temp_directory_path() / "weir-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void spill(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// Grouped heads, a vocabulary and widths that are multiples of no register.
inline causal_lm_config small_config(bool tied = true) {
  causal_lm_config c;
  c.vocab_size = 37;
  c.hidden_size = 24;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 10;
  c.intermediate_size = 44;
  c.max_positions = 128;
  c.rope_theta = 10000;
  c.initializer_range = 0.3;
  c.tied_embeddings = tied;
  return c;
}

inline std::vector<token> random_tokens(random_stream& random, std::int64_t count, std::int64_t vocab) {
  std::vector<token> out;
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(static_cast<token>(random.below(static_cast<std::uint64_t>(vocab))));
  return out;
}

inline packed_sequences packed(const std::vector<std::vector<token>>& sequences) {
  packed_sequences p;
  p.offsets.push_back(0);
  for (const auto& s : sequences) {
    p.tokens.insert(p.tokens.end(), s.begin(), s.end());
    p.offsets.push_back(static_cast<std::int64_t>(p.tokens.size()));
  }
  return p;
}

/// Every token that has one before it.
inline std::vector<std::int64_t> all_targets(const packed_sequences& p) {
  std::vector<std::int64_t> out;
  for (std::size_t b = 0; b + 1 < p.offsets.size(); ++b)
    for (auto i = p.offsets[b] + 1; i < p.offsets[b + 1]; ++i) out.push_back(i);
  return out;
}

/// normal(0, 1), always the same for a seed.
inline at::Tensor gaussian(std::vector<std::int64_t> shape, std::uint64_t seed) {
  random_stream random(seed);
  auto out = at::empty(shape, at::kFloat);
  auto* to = out.data_ptr<float>();
  for (std::int64_t i = 0; i < out.numel(); ++i)
    to[i] = static_cast<float>(std::sqrt(-2 * std::log(1 - random.uniform())) *
                               std::cos(6.283185307179586 * random.uniform()));
  return out;
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach().to(at::kDouble) - b.detach().to(at::kDouble)).abs().max().item<double>();
}

/// What the std::invalid_argument that `call` throws says; empty if it throws none.
template <class Call>
std::string thrown_by(Call call) {
  try {
    call();
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return {};
}

/// Of a - b, against b: 2-norms.
inline double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  const auto wide = b.detach().to(at::kDouble);
  return ((a.detach().to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto x = a.detach().contiguous(), y = b.detach().contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

}  // namespace weir::testing

#include "bpe.hpp"

#include <limits>
#include <queue>

#include "weir/runtime/random.hpp"

namespace weir {

namespace {

constexpr std::size_t short_word = 48;

std::uint64_t key_of(token left, token right) noexcept {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32U | static_cast<std::uint32_t>(right);
}

}  // namespace

void bpe::reserve(std::size_t merges) {
  std::size_t size = 16;
  while (size < merges * 2) size *= 2;
  table_.assign(size, entry{});
  count_ = 0;
}

bool bpe::add(token left, token right, merged result) {
  const auto key = key_of(left, right);
  auto at = mix64(key) & (table_.size() - 1);
  while (table_[at].key != ~std::uint64_t{0}) {
    if (table_[at].key == key) return false;
    at = (at + 1) & (table_.size() - 1);
  }
  table_[at] = {key, result};
  ++count_;
  return true;
}

const bpe::merged* bpe::find(token left, token right) const noexcept {
  const auto key = key_of(left, right);
  for (auto at = mix64(key) & (table_.size() - 1); table_[at].key != ~std::uint64_t{0};
       at = (at + 1) & (table_.size() - 1))
    if (table_[at].key == key) return &table_[at].value;
  return nullptr;
}

void bpe::apply(std::vector<token>& symbols) const {
  if (symbols.size() < 2) return;
  if (symbols.size() <= short_word)
    apply_short(symbols);
  else
    apply_long(symbols);
}

// Ranks of the pairs side by side; a merge looks only at its two neighbours again.
void bpe::apply_short(std::vector<token>& symbols) const {
  constexpr merged none{std::numeric_limits<std::int32_t>::max(), 0};
  merged pairs[short_word];
  auto n = symbols.size();
  auto rank = [&](std::size_t i) {
    if (i + 1 >= n) return none;
    const auto* found = find(symbols[i], symbols[i + 1]);
    return found == nullptr ? none : *found;
  };
  for (std::size_t i = 0; i < n; ++i) pairs[i] = rank(i);
  for (;;) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (pairs[best].rank == none.rank) break;
    symbols[best] = pairs[best].id;
    for (std::size_t i = best + 1; i + 1 < n; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i] = pairs[i + 1];
    }
    --n;
    pairs[best] = rank(best);
    if (best > 0) pairs[best - 1] = rank(best - 1);
    if (n < 2) break;
  }
  symbols.resize(n);
}

// A linked list and a heap of candidate pairs; a candidate whose tokens have changed since is passed over.
void bpe::apply_long(std::vector<token>& symbols) const {
  struct link {
    std::int32_t before, after;
  };
  struct candidate {
    std::int32_t rank, left;
    token left_id, right_id, id;
    bool operator<(const candidate& other) const noexcept {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  const auto n = static_cast<std::int32_t>(symbols.size());
  std::vector<link> links(symbols.size());
  for (std::int32_t i = 0; i < n; ++i) links[static_cast<std::size_t>(i)] = {i - 1, i + 1 < n ? i + 1 : -1};
  std::priority_queue<candidate> queue;
  auto at = [&symbols](std::int32_t i) -> token& { return symbols[static_cast<std::size_t>(i)]; };
  auto propose = [&](std::int32_t left) {
    const auto right = left < 0 ? -1 : links[static_cast<std::size_t>(left)].after;
    if (right < 0) return;
    if (const auto* found = find(at(left), at(right)); found != nullptr)
      queue.push({found->rank, left, at(left), at(right), found->id});
  };
  for (std::int32_t i = 0; i + 1 < n; ++i) propose(i);
  constexpr token gone = -1;
  while (!queue.empty()) {
    const auto c = queue.top();
    queue.pop();
    const auto right = links[static_cast<std::size_t>(c.left)].after;
    if (right < 0 || at(c.left) != c.left_id || at(right) != c.right_id) continue;
    at(c.left) = c.id;
    at(right) = gone;
    const auto after = links[static_cast<std::size_t>(right)].after;
    links[static_cast<std::size_t>(c.left)].after = after;
    if (after >= 0) links[static_cast<std::size_t>(after)].before = c.left;
    propose(links[static_cast<std::size_t>(c.left)].before);
    propose(c.left);
  }
  std::erase(symbols, gone);
}

}  // namespace weir

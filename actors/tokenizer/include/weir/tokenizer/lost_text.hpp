#pragma once
// Account of what a vocabulary could not say: a run whose prompts lose half their letters looks like one that learns
// badly.

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weir/tokenizer/tokenizer.hpp"

namespace weir {

/// Texts of which bytes have no token, counted, with the first of them. Shared by all who encode for a run.
/// Thread-safe.
class lost_text {
 public:
  struct example {
    std::string text;   ///< the first that lost something
    std::string lost;   ///< what it lost
    std::string place;  ///< where it came from
  };
  struct totals {
    std::uint64_t texts = 0;
    std::uint64_t bytes = 0;
  };

  /// What `by.encode(text)` gives. `place()` says where the text came from; it is asked for the first one only.
  template <class Place>
  std::vector<token> encode(const tokenizer& by, std::string_view text, Place place) {
    std::string lost;
    auto tokens = by.encode(text, true, &lost);
    if (lost.empty()) return tokens;
    std::lock_guard lock(mutex_);
    ++totals_.texts;
    totals_.bytes += lost.size();
    if (totals_.texts == 1) news_ = example{std::string(text), std::move(lost), place()};
    return tokens;
  }

  /// The first text that lost something: once, to the first who asks when there is one.
  std::optional<example> news() {
    std::lock_guard lock(mutex_);
    return std::exchange(news_, std::nullopt);
  }

  totals so_far() const {
    std::lock_guard lock(mutex_);
    return totals_;
  }

 private:
  mutable std::mutex mutex_;
  totals totals_;
  std::optional<example> news_;
};

}  // namespace weir

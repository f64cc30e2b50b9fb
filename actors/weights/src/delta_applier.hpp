#pragma once
// Applies a delta's records a little at a time, as they arrive.

#include <chrono>
#include <optional>
#include <span>
#include <vector>

#include "crew.hpp"
#include "weir/weights/delta.hpp"

namespace weir::broadcast {

class delta_applier {
 public:
  delta_applier() = default;
  /// `into` may be `base`: then in place. `helpers` outlive this.
  delta_applier(crew& helpers, std::span<const std::byte> records, std::span<const std::byte> base,
                std::span<std::byte> into)
      : crew_(&helpers), records_(records), base_(base), into_(into) {}

  /// Of the records, so many bytes are there.
  void arrived(std::size_t bytes) noexcept { there_ = bytes; }
  bool done() const noexcept { return at_ == records_.size() && covered_ == into_.size(); }

  /// For a few milliseconds. Returns how many records were applied. Error: invalid_data.
  result<std::size_t> work() {
    using clock = std::chrono::steady_clock;
    std::size_t applied = 0;
    for (const auto begin = clock::now(); at_ < there_ && clock::now() - begin < std::chrono::milliseconds(2);) {
      auto found = next_records();
      if (!found) return fail(found.error());
      if (*found == 0) break;
      crew_->run(*found, [this](std::size_t i) {
        auto& p = pieces_[i];
        auto length = base_.data() == into_.data() ? apply_delta(p.record, into_) : apply_delta(p.record, base_, into_);
        if (!length) p.failure = length.error();
      });
      for (std::size_t i = 0; i < *found; ++i)
        if (pieces_[i].failure) return fail(*pieces_[i].failure);
      applied += *found;
    }
    if (at_ == records_.size() && covered_ != into_.size())
      return fail(errc::invalid_data, "a delta leaves bytes of the version out");
    return applied;
  }

 private:
  struct piece {
    std::span<const std::byte> record;
    std::optional<error> failure;
  };

  /// Passes over whole records that are there, at most some for each thread, into `pieces_`. How many. Error: they do
  /// not follow one another, and so could touch the same bytes.
  result<std::size_t> next_records() {
    pieces_.clear();
    while (at_ < there_ && pieces_.size() < 2 * crew_->size()) {
      const auto rest = records_.subspan(at_, there_ - at_);
      if (rest.size() < sizeof(delta_head) && there_ < records_.size()) break;
      auto head = read_delta_head(records_.subspan(at_));
      if (!head) return fail(head.error());
      const auto length = sizeof(delta_head) + head->payload;
      if (rest.size() < length && there_ < records_.size()) break;
      if (head->offset != covered_) return fail(errc::invalid_data, "a delta's records do not follow one another");
      pieces_.push_back({rest.first(length), {}});
      at_ += length;
      covered_ += head->bytes;
    }
    return pieces_.size();
  }

  crew* crew_ = nullptr;
  std::vector<piece> pieces_;
  std::span<const std::byte> records_, base_;
  std::span<std::byte> into_;
  std::size_t there_ = 0, at_ = 0;
  std::uint64_t covered_ = 0;
};

}  // namespace weir::broadcast

#pragma once
// Applies a delta's records a little at a time, as they arrive.

#include <chrono>

#include "weir/weights/delta.hpp"

namespace weir::broadcast {

class delta_applier {
 public:
  delta_applier() = default;
  /// `into` may be `base`: then in place.
  delta_applier(std::span<const std::byte> records, std::span<const std::byte> base, std::span<std::byte> into)
      : records_(records), base_(base), into_(into) {}

  /// Of the records, so many bytes are there.
  void arrived(std::size_t bytes) noexcept { there_ = bytes; }
  bool done() const noexcept { return at_ == records_.size() && covered_ == into_.size(); }

  /// For a few milliseconds. Returns how many records were applied. Error: invalid_data.
  result<std::size_t> work() {
    using clock = std::chrono::steady_clock;
    std::size_t applied = 0;
    for (const auto begin = clock::now(); at_ < there_ && clock::now() - begin < std::chrono::milliseconds(2);
         ++applied) {
      const auto rest = records_.subspan(at_, there_ - at_);
      if (rest.size() < sizeof(delta_head) && there_ < records_.size()) break;
      auto head = read_delta_head(records_.subspan(at_));
      if (!head) return fail(head.error());
      if (rest.size() < sizeof(delta_head) + head->payload && there_ < records_.size()) break;
      if (head->offset != covered_) return fail(errc::invalid_data, "a delta's records do not follow one another");
      auto length = base_.data() == into_.data() ? apply_delta(rest, into_) : apply_delta(rest, base_, into_);
      if (!length) return fail(length.error());
      at_ += *length;
      covered_ += head->bytes;
    }
    if (at_ == records_.size() && covered_ != into_.size())
      return fail(errc::invalid_data, "a delta leaves bytes of the version out");
    return applied;
  }

 private:
  std::span<const std::byte> records_, base_;
  std::span<std::byte> into_;
  std::size_t there_ = 0, at_ = 0;
  std::uint64_t covered_ = 0;
};

}  // namespace weir::broadcast

#pragma once
// Codes a delta a little at a time, between other work of its thread.

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "broadcast_frames.hpp"
#include "crew.hpp"
#include "weir/transport/transport.hpp"
#include "weir/weights/delta.hpp"

namespace weir::broadcast {

class delta_maker {
 public:
  struct made {
    payload_id id;
    std::vector<std::byte> records;  ///< empty: not worth it
    double seconds = 0;
  };

  delta_maker(std::vector<delta_range> ranges, std::size_t threads)
      : ranges_(std::move(ranges)), crew_(threads), pieces_(2 * crew_.size()) {}

  void start(const payload_id& id, std::shared_ptr<region> base, std::shared_ptr<region> next) {
    made_ = {id, {}, 0};
    base_ = std::move(base);
    next_ = std::move(next);
    done_ = 0;
  }
  void stop() { base_ = next_ = nullptr; }
  bool idle() const noexcept { return next_ == nullptr; }
  bool reads(weight_version version) const noexcept {
    return !idle() && (made_.id.base == version || made_.id.version == version);
  }

  /// For a few milliseconds. True when it is done: then `take`.
  bool work() {
    using clock = std::chrono::steady_clock;
    if (idle()) return false;
    const auto begin = clock::now();
    const auto base = std::as_const(*base_).bytes(), next = std::as_const(*next_).bytes();
    auto elapsed = clock::duration{};
    while (done_ < ranges_.size() && elapsed < std::chrono::milliseconds(2)) {
      const auto count = std::min(pieces_.size(), ranges_.size() - done_);
      crew_.run(count, [&](std::size_t i) {
        auto& p = pieces_[i];
        p.record.clear();
        p.coder.encode(base, next, ranges_[done_ + i], p.record);
      });
      for (std::size_t i = 0; i < count; ++i)
        made_.records.insert(made_.records.end(), pieces_[i].record.begin(), pieces_[i].record.end());
      done_ += count;
      elapsed = clock::now() - begin;
    }
    made_.seconds += std::chrono::duration<double>(clock::now() - begin).count();
    if (made_.records.size() > next.size() / 2) {
      made_.records.clear();
      done_ = ranges_.size();
    }
    return done_ == ranges_.size();
  }
  made take() {
    const auto bytes = std::as_const(*next_).bytes().size();
    if (!made_.records.empty()) {
      seconds_a_byte_ = made_.seconds / static_cast<double>(bytes);
      fraction_ = static_cast<double>(made_.records.size()) / static_cast<double>(bytes);
    }
    stop();
    return std::exchange(made_, {});
  }

  /// Whether coding, sending and applying takes less time than sending the whole, as far as is known.
  bool pays(std::uint64_t bytes, double wire_bytes_per_second) const {
    const auto size = static_cast<double>(bytes);
    // Applying takes about as long as coding does.
    return 2 * size * seconds_a_byte_ + fraction_ * size / wire_bytes_per_second < size / wire_bytes_per_second;
  }

 private:
  struct piece {
    delta_encoder coder;
    std::vector<std::byte> record;
  };

  std::vector<delta_range> ranges_;
  crew crew_;
  std::vector<piece> pieces_;  ///< what is coded between two looks at the clock
  std::shared_ptr<region> base_, next_;
  std::size_t done_ = 0;
  made made_;
  double seconds_a_byte_ = 4e-10;  ///< until it was measured
  double fraction_ = 0.02;
};

}  // namespace weir::broadcast

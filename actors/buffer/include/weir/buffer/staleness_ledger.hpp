#pragma once
// The arithmetic of the trajectory buffer: which groups may start, which may be trained on, and when. No actor here, so
// that a property test can drive it with any timing.
//
// The bound is AReaL's (arXiv 2505.24298, section 5.1): with B groups a batch and staleness bound n, no group starts
// once the ones submitted would be used later than version live + n. That alone bounds the mean, not each trajectory:
// later groups that finish sooner can overtake a slow one for ever. So batches are also chosen by deadline. A group
// admitted at version w must be in the batch of version w + n or an earlier one, so after the batch of version v, for
// every w, at most (w + n - v) * B groups admitted at w or before may be left, arrived or under way. The oldest arrived
// groups make the batch; if that would leave too many, the batch waits for the slow ones.
//
// It never waits in vain: admission keeps the sum within the bound for the newest w, each batch taken keeps it for the
// older ones, and once everything has arrived the oldest B satisfy it. Nothing is ever thrown away for its age.

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "weir/actors/types.hpp"

namespace weir {

struct staleness_settings {
  std::uint64_t batch_groups = 1;                  ///< B, at least 1
  std::uint64_t max_staleness = 0;                 ///< n; 0 is synchronous
  std::uint64_t last_version = ~std::uint64_t{0};  ///< the run ends when the trainer holds it: start nothing for later
};

/// A group taken out because it would have broken the bound. That takes a fault elsewhere; it is counted and granted
/// anew.
struct stale_group {
  std::uint64_t group = 0;
  weight_version oldest = 0;
};

class staleness_ledger {
 public:
  explicit staleness_ledger(staleness_settings settings);

  /// Every engine holds `live` or newer. The first call says where the run starts (0, or where it resumes). Returns
  /// how many more groups may start.
  [[nodiscard]] std::uint64_t weights_live(weight_version live);

  /// A complete group. Its `admitted` is the `live` of the grant it was started under.
  void arrived(trajectory_group group);

  /// A started group that will never arrive. Returns how many groups may start in its place.
  [[nodiscard]] std::uint64_t dropped(weight_version admitted);

  /// True if `take(version)` has a batch: B groups are here, and the batch leaves none behind that would be too old.
  bool ready(weight_version version) const;

  /// The batch for the step that starts from `version`: the oldest B, by ascending group number. Call when ready. If a
  /// group breaks the bound, nothing is taken but that: it lands in `stale`, its credit must be granted again through
  /// the count returned there, and the batch is not ready until others have come.
  struct batch {
    std::vector<trajectory_group> groups;
    std::vector<stale_group> stale;
    std::uint64_t grants = 0;
  };
  batch take(weight_version version);

  std::uint64_t waiting() const noexcept { return arrived_.size(); }
  std::uint64_t under_way() const noexcept { return under_way_total_; }
  const staleness_settings& settings() const noexcept { return settings_; }

 private:
  std::uint64_t grant();
  bool leaves_enough_time(weight_version version) const;
  void forget(weight_version admitted);

  staleness_settings settings_;
  std::optional<weight_version> start_;
  weight_version live_ = 0;
  std::uint64_t issued_ = 0;                           ///< credits given and not returned by a drop
  std::map<weight_version, std::uint64_t> under_way_;  ///< granted, not arrived, by the version of the grant
  std::uint64_t under_way_total_ = 0;
  std::vector<trajectory_group> arrived_;  ///< by (admitted, group)
};

}  // namespace weir

#include "local_lane.hpp"

#include <algorithm>
#include <cstring>

namespace weir {

namespace {

/// So much is copied before others have their turn: about half a millisecond.
constexpr std::size_t piece = std::size_t{4} << 20;

struct copying {
  std::shared_ptr<const mapped_segment> from;
  std::uint64_t offset;
  std::span<std::byte> into;
  std::chrono::steady_clock::time_point deadline;
  local_lane::refusal refused;
  completion done;
  std::size_t copied = 0;

  /// A piece; its outcome once there is one.
  std::optional<result<void>> step() {
    if (const auto why = refused()) return fail(*why);
    if (!from->live()) return fail(errc::unavailable, "the region was taken back");
    if (std::chrono::steady_clock::now() >= deadline)
      return fail(errc::timeout, "the peer's memory was not copied by the deadline");
    const auto size = std::min(piece, into.size() - copied);
    if (size > 0) std::memcpy(into.data() + copied, from->bytes().data() + offset + copied, size);
    copied += size;
    if (copied < into.size()) return std::nullopt;
    if (!from->live()) return fail(errc::unavailable, "the region was taken back");
    return result<void>();
  }
};

void go_on(const std::shared_ptr<copying>& c, const std::weak_ptr<inbox>& in) {
  if (const auto there = in.lock())
    there->post([c, in] {
      if (auto outcome = c->step())
        c->done(std::move(*outcome));
      else
        go_on(c, in);
    });
}

}  // namespace

result<segment_found> local_lane::find(const region_address& a) const {
  if (ours_.walled_off(peers_))
    return segment_found{nullptr, "the peer is on this machine, but in a process namespace of its own"};
  if (!same_host()) return segment_found{};
  if (!a.place || a.place->processes != ours_.processes) return segment_found{};
  return cache_->find(*a.place, a.key, peers_.transport);
}

result<mapped_region> local_lane::map(const region_address& a, const std::string& peer) const {
  auto found = find(a);
  if (!found) return fail(found.error());
  if (found->segment) {
    const auto bytes = found->segment->bytes();
    return mapped_region{std::move(found->segment), bytes};
  }
  if (same_host() && a.place)
    return fail(errc::unavailable, "the region is gone, or not to be mapped: " + found->obstacle);
  return fail(errc::unsupported,
              "the region of " + peer + " cannot be mapped: " +
                  (found->obstacle.empty() ? "it is on another host, or shares no memory" : found->obstacle));
}

bool local_lane::get(const region_address& a, std::uint64_t offset, std::span<std::byte> into,
                     std::chrono::steady_clock::time_point deadline, const refusal& refused, completion& done,
                     std::string& obstacle) const {
  auto found = find(a);
  if (found && !found->segment) {
    obstacle = std::move(found->obstacle);
    return false;
  }
  std::optional<error> wrong;
  if (!found)
    wrong = found.error();
  else if (const auto size = found->segment->bytes().size(); offset > size || into.size() > size - offset)
    wrong = error{errc::invalid_argument, outside(offset, into.size(), size)};
  if (!wrong) {
    go_on(
        std::make_shared<copying>(copying{std::move(found->segment), offset, into, deadline, refused, std::move(done)}),
        inbox_);
  } else if (const auto there = inbox_.lock()) {
    there->post([refused, done = std::move(done), why = std::move(*wrong)] {
      const auto closed = refused();
      done(fail(closed ? *closed : why));
    });
  }
  return true;
}

}  // namespace weir

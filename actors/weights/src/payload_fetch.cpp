#include "payload_fetch.hpp"

#include <algorithm>

#include "payload_server.hpp"

namespace weir::broadcast {

namespace {
using clock = std::chrono::steady_clock;

std::string name(const payload_id& id) {
  return "weight version " + std::to_string(id.version) +
         (id.is_delta() ? " (delta from " + std::to_string(id.base) + ")" : "");
}
}  // namespace

payload_fetch::payload_fetch(const payload_size& size, std::span<std::byte> into, std::size_t parents,
                             bool first_is_local, fetch_settings settings, hooks h)
    : size_(size),
      into_(into),
      parents_(parents),
      local_(first_is_local),
      settings_(settings),
      hooks_(std::move(h)),
      window_(whole_window()),
      chunks_(chunks_of(size), chunk_state::missing) {}

void payload_fetch::offered(const connection& by, const offer& what) {
  if (!from_parent(by) || what.size.id != size_.id) return;
  heard_ = clock::now();
  if (what.size != size_) return next_parent("offers it in another size");
  region_ = what.region;
}

void payload_fetch::refused(const connection& by, const refuse& what) {
  if (from_parent(by) && what.id == size_.id) next_parent("refuses: " + what.why);
}

void payload_fetch::told(const connection& by, const ready& news) {
  if (!from_parent(by) || news.id != size_.id) return;
  heard_ = clock::now();
  if (local()) {
    if (news.first == chunks_.size()) there_ = chunks_.size();
    return;
  }
  if (news.first > checksums_.size() || news.first + news.checksums.size() > chunks_.size())
    return next_parent("breaks the protocol: it skips chunks");
  // What is known already stays: checksums come from the source, whoever passes them on.
  const auto known = checksums_.size() - news.first;
  for (auto i = known; i < news.checksums.size(); ++i) checksums_.push_back(news.checksums[i]);
  there_ = std::max(there_, news.first + news.checksums.size());
}

void payload_fetch::lost(const connection& gone, const std::string& why) {
  if (from_parent(gone)) next_parent("is gone: " + why);
}

void payload_fetch::next_parent(const std::string& why) {
  leaving_ = true;
  last_failure_ = "parent " + std::to_string(parent_number_ + 1) + " of " + std::to_string(parents_) + " " + why;
  hooks_.notice(name(size_.id) + ": " + last_failure_ + "; " + std::to_string(whole_) + " of " +
                std::to_string(chunks_.size()) + " chunks are here");
}

std::size_t payload_fetch::work() {
  if (ended_) return 0;
  if (whole_ == chunks_.size() && asked_ == 0 && (!region_.empty() || !chunks_.empty())) {
    ended_ = true;
    if (parent_) static_cast<void>(parent_->send(write(release{size_.id})));
    auto done = std::move(hooks_.done);  // it may destroy this object
    done({});
    return 1;
  }
  if (leaving_) {
    // Until every answer of the old parent is in, or refused, its data may still come into the buffer.
    if (asked_ > 0) return 0;
    if (parent_) static_cast<void>(parent_->send(write(release{size_.id})));
    parent_.reset();
    region_.clear();
    leaving_ = false;
    if (local()) {
      // What was not checked is fetched anew.
      std::fill(chunks_.begin(), chunks_.end(), chunk_state::missing);
      whole_ = next_ = got_bytes_ = 0;
    }
    there_ = mismatches_ = 0;
    window_ = whole_window();
    ++parent_number_;
  }
  if (parent_number_ == parents_) {
    ended_ = true;
    auto done = std::move(hooks_.done);
    done(fail(errc::unavailable, name(size_.id) + " cannot be had; last: " + last_failure_));
    return 1;
  }
  if (!parent_) {
    auto made = hooks_.connect(parent_number_);
    heard_ = clock::now();
    if (!made) return next_parent("cannot be reached: " + made.error().message), 1;
    parent_ = *made;
    if (auto sent = parent_->send(write(subscribe{size_.id, whole_, local() ? access::copy : access::wire})); !sent)
      next_parent("is gone: " + sent.error().message);
    return 1;
  }
  if (clock::now() - heard_ > settings_.silence && asked_ == 0) return next_parent("says nothing"), 1;
  if (region_.empty()) return 0;
  std::size_t done = 0;
  while (next_ < chunks_.size() && chunks_[next_] != chunk_state::missing) ++next_;
  for (auto i = next_; i < there_ && asked_ < window_.chunks(); ++i)
    if (chunks_[i] == chunk_state::missing) ask(i), ++done;
  return done;
}

void payload_fetch::ask(std::uint64_t index) {
  chunks_[index] = chunk_state::asked;
  ++asked_;
  const auto now = clock::now();
  parent_->get(region_, index * size_.chunk, chunk_of(into_, size_, index), now + settings_.chunk_deadline,
               [this, index, now, alive = std::weak_ptr(alive_)](const result<void>& outcome) {
                 if (!alive.expired()) got(index, now, outcome);
               });
}

void payload_fetch::got(std::uint64_t index, clock::time_point asked, const result<void>& outcome) {
  --asked_;
  chunks_[index] = chunk_state::missing;
  next_ = std::min(next_, index);
  if (!outcome) {
    if (!leaving_) next_parent("does not give chunk " + std::to_string(index) + ": " + outcome.error().message);
    return;
  }
  heard_ = clock::now();
  const auto chunk = chunk_of(into_, size_, index);
  if (chunk.size() == size_.chunk) window_.answered(std::chrono::duration<double>(heard_ - asked).count());
  if (!local()) got_bytes_ += chunk.size();
  if (!local() && chunk_checksum(chunk) != checksums_[index]) {
    // Once may be a bit that flipped on the way; twice is a parent whose memory is wrong.
    const auto what = "gives chunk " + std::to_string(index) + " with a wrong checksum";
    if (++mismatches_ > 1 && !leaving_)
      next_parent(what);
    else
      hooks_.notice(name(size_.id) + ": a parent " + what + "; it is fetched again");
    return;
  }
  chunks_[index] = chunk_state::whole;
  while (whole_ < chunks_.size() && chunks_[whole_] == chunk_state::whole) {
    if (!local()) hooks_.advanced(whole_, checksums_[whole_]);
    ++whole_;
  }
}

}  // namespace weir::broadcast

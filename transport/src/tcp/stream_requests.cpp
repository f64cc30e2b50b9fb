// The other half of stream.cpp: requests of ours, their deadlines, and the end.
#include <algorithm>

#include "link.hpp"
#include "stream.hpp"

namespace weir::tcp {

namespace {

/// How long a connection that said goodbye waits for the peer's end of it.
constexpr std::chrono::seconds linger{2};

}  // namespace

void stream::order(std::vector<part> parts) {
  for (auto& p : parts) {
    if (!ours_) {
      p.of->part_ended(fail(errc::unavailable, "the connection to " + link_.peer() + " is closed"));
      continue;
    }
    const auto id = ++last_id_;
    deadlines_.emplace(p.deadline, id);
    requests_.emplace(id, request{std::move(p)});
    waiting_.push_back(id);
  }
  expire();
  issue();
}

void stream::issue() {
  while (under_way_ < window && !waiting_.empty()) {
    const auto found = requests_.find(waiting_.front());
    waiting_.pop_front();
    if (found == requests_.end()) continue;  // its deadline passed
    auto& [what, at] = found->second;
    at = place::under_way;
    ++under_way_;
    outgoing item;
    item.head.kind = what.is_get ? kind::get : kind::put;
    item.head.id = found->first;
    item.head.offset = what.offset;
    item.head.length = what.size;
    item.head.key = what.key;
    if (!what.is_get) item.payload = {what.from, what.size};
    item.request = found->first;
    enqueue(std::move(item));
  }
}

void stream::end(std::uint64_t id, const result<void>& outcome) {
  const auto found = requests_.find(id);
  const auto of = found->second.what.of;
  deadlines_.erase({found->second.what.deadline, id});
  if (found->second.at == place::under_way) --under_way_;
  requests_.erase(found);
  if (of) of->part_ended(outcome);
  issue();
}

/// The user gets his memory back: nothing is read from it or written to it any more. A request that the peer knows of
/// stays, without him, until the answer has come.
void stream::take_back(std::uint64_t id) {
  auto& mine = requests_.at(id);
  deadlines_.erase({mine.what.deadline, id});
  mine.what.of = nullptr;
  if (in_have_ == sizeof in_ && in_.kind == kind::data && in_.id == id) to_ = nullptr;
  const auto item = std::find_if(out_.begin(), out_.end(), [id](const auto& o) { return o.request == id; });
  if (mine.at == place::waiting || (item != out_.end() && item->written == 0)) {
    if (item != out_.end()) out_.erase(item);
    if (mine.at == place::under_way) --under_way_;
    requests_.erase(id);
  } else if (item != out_.end() && !item->payload.empty()) {
    auto copy = std::make_shared<const std::vector<std::byte>>(item->payload.begin(), item->payload.end());
    item->payload = *copy;
    item->keep = std::move(copy);
  }
}

void stream::expire() {
  const auto now = std::chrono::steady_clock::now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const auto id = deadlines_.begin()->second;
    const auto of = requests_.at(id).what.of;
    take_back(id);
    of->part_ended(fail(errc::timeout, "no answer from " + link_.peer() + " by the deadline"));
  }
  issue();
  arm();
}

void stream::arm() {
  if (!io_ || deadlines_.empty()) return;
  const auto next = deadlines_.begin()->first;
  if (io_->deadline.expiry() == next) return;
  io_->deadline.expires_at(next);
  io_->deadline.async_wait([this, keep = link_.shared_from_this()](boost::system::error_code cancelled) {
    if (!cancelled) expire();
  });
}

void stream::end_all(const error& why) {
  ours_ = false;
  while (!deadlines_.empty()) {
    const auto id = deadlines_.begin()->second;
    const auto of = requests_.at(id).what.of;
    take_back(id);
    of->part_ended(fail(why));
  }
}

void stream::let_go(const error& why, bool polite) {
  if (!open_ || !io_) return;  // shut is on its way
  end_all(why);
  if (polite) {
    outgoing last;
    last.head.kind = kind::goodbye;
    enqueue(std::move(last));
  }
  io_->deadline.expires_after(linger);
  io_->deadline.async_wait([this, why, keep = link_.shared_from_this()](boost::system::error_code cancelled) {
    if (!cancelled) shut(why);
  });
}

void stream::shut(const error& why) {
  if (!open_) return;
  end_all(why);
  open_ = false;
  stopped_ = false;
  out_.clear();
  if (!io_) return;
  boost::system::error_code ignored;
  io_->to_write.cancel();
  io_->to_read.cancel();
  io_->deadline.cancel();
  io_->socket.close(ignored);
}

}  // namespace weir::tcp

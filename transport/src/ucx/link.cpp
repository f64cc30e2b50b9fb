#include "link.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace weir::ucx {

namespace {

/// How long a connection that said goodbye waits for the peer's end of it.
constexpr std::chrono::seconds linger{2};
/// Closer to a deadline than this (and than chunks took of late), bytes go by memory of the transport's own, so that
/// the user's can be given back at any time. What began earlier and still goes on at the deadline has stalled.
constexpr std::chrono::milliseconds margin{500};

const std::string gone = "the connection was closed";

}  // namespace

// ---- the user's thread

template <class Work>
void link::on_service(Work work) {
  around_.service->post([keep = shared_from_this(), work = std::move(work)]() mutable { work(*keep); });
}

std::optional<error> link::why_not() const {
  std::lock_guard lock(mutex_);
  if (closed_) return error{errc::unavailable, "the connection to " + peer_ + " was closed"};
  if (broken_) return error{errc::unavailable, broken_->message};
  return std::nullopt;
}

bool link::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

void link::transfer(std::shared_ptr<operation> op, const std::string& descriptor) {
  auto refusal = why_not();
  const auto address = read_descriptor(descriptor_prefix, descriptor);
  if (!refusal && !address)
    refusal = error{errc::unavailable, "no region of that descriptor: it is none of a UCX transport's"};
  if (!refusal && op->size > std::numeric_limits<std::uint64_t>::max() - op->offset)
    refusal = error{errc::invalid_argument, "bytes from " + std::to_string(op->offset) + " on lie outside any region"};
  if (refusal) return post([op, why = std::move(*refusal)] { op->done(fail(why)); });
  if (op->is_get && copied_from_memory(*op, *address)) return;
  op->key = address->key;
  on_service([op = std::move(op)](link& l) { l.order(op); });
}

/// False if it has to go by the wire. Should it arrive there, though the machine could do better, the user is told
/// once.
bool link::copied_from_memory(operation& op, const region_address& a) {
  std::string obstacle;
  const auto refused = [self = weak_from_this()]() -> std::optional<error> {
    const auto l = self.lock();
    return l ? l->why_not() : error{errc::unavailable, gone};
  };
  if (local_->get(a, op.offset, {op.into, op.size}, op.deadline, refused, op.done, obstacle)) return true;
  if (!obstacle.empty() && !local_failed_)
    op.done = [self = weak_from_this(), obstacle, done = std::move(op.done)](result<void> outcome) {
      if (const auto l = self.lock(); l && outcome && !std::exchange(l->local_failed_, true)) {
        const auto handlers = l->around_.handlers.lock();
        if (handlers && handlers->on_notice)
          handlers->on_notice("bulk data from " + l->peer_ + " goes by " + l->lane() +
                              ", not by mapped memory: " + obstacle);
      }
      done(std::move(outcome));
    };
  return false;
}

result<mapped_region> link::map(const std::string& descriptor) {
  if (const auto refusal = why_not()) return fail(*refusal);
  const auto address = read_descriptor(descriptor_prefix, descriptor);
  if (!address) return fail(errc::unavailable, "no region of that descriptor: it is none of a UCX transport's");
  return local_->map(*address, peer_);
}

std::string link::lane() const {
  return local_->same_host() && !local_failed_ ? std::string("mapped memory") : "ucx: " + wire_;
}

result<void> link::send(std::span<const std::byte> frame) {
  if (frame.size() > longest_frame)
    return fail(errc::invalid_argument, "a frame of " + std::to_string(frame.size()) + " bytes is longer than " +
                                            std::to_string(longest_frame));
  if (auto refusal = why_not()) return fail(*refusal);
  {
    std::lock_guard lock(mutex_);
    if (frames_out_ + frame_cost(frame.size()) > frames_bound)
      return fail(errc::unavailable, "no room for a frame to " + peer_ + ": " + std::to_string(frames_out_) +
                                         " bytes wait that it does not take");
    frames_out_ += frame_cost(frame.size());
  }
  on_service(
      [copy = std::vector<std::byte>(frame.begin(), frame.end())](link& l) mutable { l.send_frame(std::move(copy)); });
  return {};
}

void link::close() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  on_service([](link& l) { l.let_go(); });
}

// ---- the service's thread: beginning and end

void link::introduce(std::string peer, std::uint64_t id_there, const whereabouts& here, const whereabouts& there) {
  peer_ = std::move(peer);
  id_there_ = id_there;
  local_.emplace(around_.segments, around_.inbox, here, there);
}

void link::begin(std::shared_ptr<ucx::endpoint> e, side_socket socket, std::weak_ptr<connection> object) {
  endpoint_ = std::move(e);
  ++endpoint_->links;
  wire_ = endpoint_->path().bulk;
  socket_ = std::move(socket);
  object_ = std::move(object);
  state_ = state::up;
}

void link::tell_closed(const error& why) {
  std::lock_guard lock(mutex_);
  if (broken_) return;
  broken_ = why;
  if (closed_) return;
  post([keep = shared_from_this(), why] {
    const auto object = keep->object_.lock();
    const auto handlers = keep->around_.handlers.lock();
    if (object && handlers && !keep->closed() && handlers->on_closed) handlers->on_closed(*object, why);
  });
}

void link::on_socket() {
  std::string why;
  socket_.flush();
  const bool open = socket_.receive(why);
  for (;;) {
    auto message = socket_.next();
    if (!message) return broke({errc::invalid_data, peer_ + " broke the protocol: " + message.error().message});
    if (!*message) break;
    const auto frames = (*message)->as<farewell>();
    if ((*message)->head.said != said::goodbye || !frames)
      return broke({errc::invalid_data, peer_ + " broke the protocol: a message that is not expected here"});
    left(frames->frames);
    if (state_ == state::over) return;
  }
  if (open) return;
  if (state_ == state::leaving) return end();
  if (state_ == state::left_by_peer) return service_.unwatch(*this);  // its last frames are on the way
  broke({errc::unavailable, "the connection to " + peer_ + " was lost: " + why});
}

/// The peer's goodbye, after so many frames.
void link::left(std::uint64_t frames) {
  if (state_ == state::leaving) return end();
  if (state_ != state::up) return;
  state_ = state::left_by_peer;
  last_frame_ = frames;
  const error why{errc::unavailable, peer_ + " closed the connection"};
  end_all(why);
  linger_ = std::chrono::steady_clock::now() + linger;
  arm();
  if (frames_due_ >= frames) {
    tell_closed(why);
    end();
  }
}

void link::let_go() {
  if (state_ == state::left_by_peer) return end();
  if (state_ != state::up) return;
  state_ = state::leaving;
  end_all({errc::unavailable, "the connection to " + peer_ + " was closed"});
  socket_.send(side_struct(said::goodbye, farewell{frames_sent_}));
  linger_ = std::chrono::steady_clock::now() + linger;
  arm();
}

void link::broke(const error& why) {
  if (state_ == state::over) return;
  tell_closed(why);
  end_all({errc::unavailable, why.message});
  const auto e = endpoint_;
  end();
  // Whoever is gone, or talks nonsense, writes into no memory of ours any more.
  if (e) service_.doom(*e, why.message);
}

void link::shut() {
  if (state_ == state::over) return;
  end_all({errc::unavailable, "the transport is gone"});
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  end();
}

/// Nothing is heard or said any more. What UCX still holds of the user's memory ends by its callback.
void link::end() {
  if (state_ == state::over) return;
  state_ = state::over;
  linger_ = probed_ = time_point::max();
  socket_.close();
  at_.reset();
  early_.clear();
  if (endpoint_ && --endpoint_->links == 0) endpoint_->idle_since = std::chrono::steady_clock::now();
  arm();
  service_.forget(*this);
}

void link::expire(time_point now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const auto op = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    if (!op->failure) op->failure = error{errc::timeout, "no answer from " + peer_ + " by the deadline"};
    // UCX can't be asked to leave a buffer alone but by the end of the endpoint.
    if (op->held > 0) service_.doom(*endpoint_, "it stalled in the middle of a transfer until the deadline");
    settle(op);
  }
  if (probed_ <= now)
    return broke({errc::unavailable, "the connection to " + peer_ +
                                         " was lost: another peer's end stopped the memory that it is heard by"});
  if (linger_ <= now) {
    if (state_ == state::left_by_peer) tell_closed({errc::unavailable, peer_ + " closed the connection"});
    end();
  }
  issue();
  arm();
}

void link::arm() {
  auto next = std::min(linger_, probed_);
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  service_.wake(*this, next);
}

// ---- ours

void link::set_deadline(const std::shared_ptr<operation>& op, time_point when) {
  deadlines_.erase({op->deadline, op});
  op->deadline = when;
  deadlines_.emplace(when, op);
}

void link::order(std::shared_ptr<operation> op) {
  if (state_ != state::up) {
    op->failure = why_not().value_or(error{errc::unavailable, gone});
    return settle(op);
  }
  deadlines_.emplace(op->deadline, op);
  queue_.push_back(op);
  expire(std::chrono::steady_clock::now());
}

void link::issue() {
  while (state_ == state::up && chunks_.size() < around_.window && !queue_.empty()) {
    const auto op = queue_.front();
    if (op->over || op->failure || op->all_issued)
      queue_.pop_front();
    else
      issue_one(op);
  }
}

void link::issue_one(const std::shared_ptr<operation>& op) {
  const auto id = ++last_id_;
  auto& c = chunks_[id];
  c.of = op;
  c.offset = op->issued;
  c.size = std::min(around_.chunk, op->size - op->issued);
  c.began = std::chrono::steady_clock::now();
  op->issued += c.size;
  op->all_issued = op->issued == op->size;
  ++op->chunks;
  if (!op->is_get) return send_put(id, c);
  message m;
  m.link = id_there_;
  m.id = id;
  m.kind = kind::get;
  m.key = op->key;
  m.offset = op->offset + c.offset;
  m.length = c.size;
  endpoint_->send(m, {}, {}, 0);
}

void link::send_put(std::uint64_t id, chunk& c) {
  const auto op = c.of;
  message m;
  m.link = id_there_;
  m.id = id;
  m.kind = kind::put;
  m.key = op->key;
  m.offset = op->offset + c.offset;
  m.length = c.size;
  std::span<const std::byte> payload(op->from + c.offset, c.size);
  if (near(*op)) {
    auto copy = std::make_shared<const std::vector<std::byte>>(payload.begin(), payload.end());
    payload = *copy;
    return endpoint_->send(m, payload, std::move(copy), 0);
  }
  ++op->held;
  endpoint_->send(m, payload, {}, 0, [keep = shared_from_this(), op](ucs_status_t status) {
    --op->held;
    if (status != UCS_OK && !op->failure)
      op->failure = error{errc::unavailable, "the way to " + keep->peer_ + " was lost: " + ucs_status_string(status)};
    keep->settle(op);
  });
}

bool link::near(const operation& op) const {
  return op.deadline - std::chrono::steady_clock::now() < margin + 2 * slowest_;
}

/// The operation's end, if it has come.
void link::settle(const std::shared_ptr<operation>& op) {
  if (op->over || op->held > 0) return;
  if (!op->failure && !(op->all_issued && op->chunks == 0)) return;
  op->over = true;
  deadlines_.erase({op->deadline, op});
  post([keep = shared_from_this(), op] {
    if (keep->closed()) return op->done(fail(errc::unavailable, "the connection to " + keep->peer_ + " was closed"));
    if (op->failure) return op->done(fail(*op->failure));
    op->done({});
  });
}

/// All of ours fails. What UCX may still use of the user's memory is waited for a moment, then ended by force.
void link::end_all(const error& why) {
  const auto soon = std::chrono::steady_clock::now() + margin;
  const auto all = std::exchange(deadlines_, {});
  queue_.clear();
  for (const auto& [deadline, op] : all) {
    if (!op->failure) op->failure = why;
    if (op->held > 0) {
      op->deadline = std::min(deadline, soon);
      deadlines_.emplace(op->deadline, op);
    }
    settle(op);
  }
  arm();
}

void link::arrived(std::uint64_t id, ucs_status_t status) {
  const auto found = chunks_.find(id);
  auto& c = found->second;
  const auto op = c.of;
  if (c.direct) --op->held;
  --op->chunks;
  const auto took = std::chrono::steady_clock::now() - c.began;
  slowest_ = std::max(took, slowest_ - slowest_ / 16);
  if (status != UCS_OK) {
    if (!op->failure)
      op->failure = error{errc::unavailable, "the way to " + peer_ + " was lost: " + ucs_status_string(status)};
  } else if (!c.direct && !op->over && !op->failure) {
    std::memcpy(op->into + c.offset, c.bounce.data(), c.size);
  }
  chunks_.erase(found);
  settle(op);
  issue();
}

ucs_status_t link::on_data(const message& m, void* data, std::size_t length, bool announced) {
  const auto found = chunks_.find(m.id);
  if (found == chunks_.end() || found->second.receiving) return breach("an answer to no request");
  auto& c = found->second;
  const auto op = c.of;
  if (!op->is_get || length != c.size) return breach("an answer to another request");
  c.receiving = true;
  if (op->over || op->failure) {  // passed over
    --op->chunks;
    chunks_.erase(found);
    issue();
    return UCS_OK;
  }
  if (!announced) {
    if (length > 0) std::memcpy(op->into + c.offset, data, length);
    c.direct = true;
    ++op->held;
    arrived(m.id, UCS_OK);
    return UCS_OK;
  }
  c.direct = !near(*op);
  std::span<std::byte> into(op->into + c.offset, c.size);
  if (c.direct) {
    ++op->held;
  } else {
    c.bounce.resize(c.size);
    into = c.bounce;
  }
  endpoint_->receive(data, into,
                     [keep = shared_from_this(), id = m.id](ucs_status_t status) { keep->arrived(id, status); });
  return UCS_INPROGRESS;
}

ucs_status_t link::on_verdict(const message& m, void* data, std::size_t length) {
  const auto found = chunks_.find(m.id);
  if (found == chunks_.end() || found->second.receiving) return breach("an answer to no request");
  const auto op = found->second.of;
  if (m.kind == kind::stored
          ? op->is_get
          : length > longest_reason || m.code == 0 || m.code > static_cast<std::uint8_t>(errc::internal))
    return breach("an answer to another request");
  const auto took = std::chrono::steady_clock::now() - found->second.began;
  slowest_ = std::max(took, slowest_ - slowest_ / 16);
  --op->chunks;
  if (m.kind == kind::refused && !op->failure)
    op->failure = error{static_cast<errc>(m.code), std::string(static_cast<const char*>(data), length)};
  chunks_.erase(found);
  settle(op);
  issue();
  return UCS_OK;
}

void link::send_frame(std::vector<std::byte> frame) {
  if (state_ != state::up) return;
  auto kept = std::make_shared<const std::vector<std::byte>>(std::move(frame));
  message m;
  m.link = id_there_;
  m.id = frames_sent_++;
  m.kind = kind::frame;
  m.length = kept->size();
  endpoint_->send(m, *kept, kept, UCP_AM_SEND_FLAG_EAGER);
}

}  // namespace weir::ucx

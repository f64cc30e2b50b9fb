// The other half of link.cpp: what the peer says and asks.
#include <algorithm>
#include <cstring>

#include "link.hpp"

namespace weir::ucx {

ucs_status_t link::breach(const std::string& what) {
  broke({errc::invalid_data, peer_ + " broke the protocol: " + what});
  return UCS_OK;  // whatever came is dropped
}

ucs_status_t link::on_message(const message& m, void* data, std::size_t length, bool announced) {
  if (state_ == state::new_ || state_ == state::over) return UCS_OK;
  const bool bulk = m.kind == kind::data || m.kind == kind::put;
  if (m.version != protocol_version || m.zero != 0) return breach("a message of another version");
  if (announced && !bulk) return breach("a long message that should be short");
  // Of a peer that said goodbye frames count, of one that was let go of nothing but what is under way.
  if (state_ == state::leaving && m.kind != kind::data) return UCS_OK;
  switch (m.kind) {
    case kind::get:
      return on_get(m);
    case kind::data:
      return on_data(m, data, length, announced);
    case kind::put:
      return on_put(m, data, length, announced);
    case kind::stored:
    case kind::refused:
      return on_verdict(m, data, length);
    case kind::frame:
      return on_frame(m, data, length);
    case kind::taken:
      return on_taken(m);
    case kind::ping:
      return on_ping();
    case kind::pong:
      return on_pong();
  }
  return breach("message " + std::to_string(static_cast<int>(m.kind)) + " is not expected here");
}

void link::answer(const message& m, std::span<const std::byte> payload, std::shared_ptr<const void> keep,
                  unsigned flags, ended then) {
  ++answers_;
  endpoint_->send(m, payload, std::move(keep), flags,
                  [self = shared_from_this(), then = std::move(then)](ucs_status_t status) {
                    --self->answers_;
                    if (then) then(status);
                  });
}

void link::refuse(std::uint64_t id, errc code, const std::string& reason) {
  auto text = std::make_shared<const std::string>(reason.substr(0, longest_reason));
  message m;
  m.link = id_there_;
  m.id = id;
  m.kind = kind::refused;
  m.code = static_cast<std::uint8_t>(code);
  m.length = text->size();
  const auto bytes = std::as_bytes(std::span(*text));
  answer(m, bytes, std::move(text), UCP_AM_SEND_FLAG_EAGER);
}

ucs_status_t link::on_get(const message& m) {
  if (answers_ >= most_requests) return breach("more requests than may wait");
  auto from = around_.regions->find(m.key);
  if (!from) return refuse(m.id, errc::unavailable, no_such_region), UCS_OK;
  if (m.offset > from->size || m.length > from->size - m.offset)
    return refuse(m.id, errc::invalid_argument, outside(m.offset, m.length, from->size)), UCS_OK;
  message d;
  d.link = id_there_;
  d.id = m.id;
  d.kind = kind::data;
  d.length = m.length;
  const std::span<const std::byte> bytes(from->data + m.offset, m.length);
  answer(d, bytes, std::move(from), 0);
  return UCS_OK;
}

ucs_status_t link::on_put(const message& m, void* data, std::size_t length, bool announced) {
  if (answers_ >= most_requests) return breach("more requests than may wait");
  if (m.length != length) return breach("a put of another length than it says");
  auto into = around_.regions->find(m.key);
  if (!into) return refuse(m.id, errc::unavailable, no_such_region), UCS_OK;
  if (m.offset > into->size || length > into->size - m.offset)
    return refuse(m.id, errc::invalid_argument, outside(m.offset, length, into->size)), UCS_OK;
  if (!announced) {
    if (length > 0) std::memcpy(into->data + m.offset, data, length);
    stored(m, into, UCS_OK);
    return UCS_OK;
  }
  ++answers_;
  const std::span<std::byte> to(into->data + m.offset, length);
  endpoint_->receive(data, to, [self = shared_from_this(), m, into](ucs_status_t status) {
    --self->answers_;
    self->stored(m, into, status);
  });
  return UCS_INPROGRESS;
}

void link::stored(const message& m, const std::shared_ptr<memory>& into, ucs_status_t status) {
  if (state_ != state::up || status != UCS_OK) return;  // a peer that is lost wants no answer
  if (!into->registered) return refuse(m.id, errc::unavailable, "the region was taken back");
  message s;
  s.link = id_there_;
  s.id = m.id;
  s.kind = kind::stored;
  answer(s, {}, {}, 0);
}

ucs_status_t link::on_frame(const message& m, const void* data, std::size_t length) {
  if (length > longest_frame || m.id < frames_due_ || early_.contains(m.id)) return breach("a frame that is none");
  frames_in_ += frame_cost(length);
  if (frames_in_ > frames_bound) return breach("more frames than may wait");
  const auto* bytes = static_cast<const std::byte*>(data);
  early_.emplace(m.id, std::vector<std::byte>(bytes, bytes + length));
  // In their order, whatever the way that each took.
  for (auto next = early_.find(frames_due_); next != early_.end(); next = early_.find(frames_due_)) {
    deliver(std::move(next->second));
    early_.erase(next);
    ++frames_due_;
  }
  if (last_frame_ && frames_due_ >= *last_frame_) {
    tell_closed({errc::unavailable, peer_ + " closed the connection"});
    end();
  }
  return UCS_OK;
}

void link::deliver(std::vector<std::byte> frame) {
  post([keep = shared_from_this(), frame = std::move(frame)] {
    const auto object = keep->object_.lock();
    const auto handlers = keep->around_.handlers.lock();
    if (object && handlers && !keep->closed() && handlers->on_frame) handlers->on_frame(*object, frame);
    keep->around_.service->post([keep, bytes = frame_cost(frame.size())] { keep->frames_taken(bytes); });
  });
}

/// The peer hears of it now and then: soon enough that it never waits for what is long taken.
void link::frames_taken(std::size_t bytes) {
  frames_in_ -= bytes;
  taken_ += bytes;
  if (state_ != state::up || taken_ < frames_bound / 4) return;
  message m;
  m.link = id_there_;
  m.kind = kind::taken;
  m.length = std::exchange(taken_, 0);
  endpoint_->send(m, {}, {}, 0);
}

void link::probe(std::chrono::steady_clock::duration patience) {
  if (state_ != state::up || probed_ != time_point::max()) return;
  probed_ = std::chrono::steady_clock::now() + patience;
  message m;
  m.link = id_there_;
  m.kind = kind::ping;
  endpoint_->send(m, {}, {}, 0);
  arm();
}

ucs_status_t link::on_ping() {
  if (answers_ >= most_requests) return breach("more requests than may wait");
  message m;
  m.link = id_there_;
  m.kind = kind::pong;
  answer(m, {}, {}, 0);
  return UCS_OK;
}

ucs_status_t link::on_pong() {
  if (probed_ == time_point::max()) return breach("an answer to no request");
  probed_ = time_point::max();
  arm();
  return UCS_OK;
}

ucs_status_t link::on_taken(const message& m) {
  {
    std::lock_guard lock(mutex_);
    if (m.length <= frames_out_) {
      frames_out_ -= m.length;
      return UCS_OK;
    }
  }
  return breach("it took frames that were not sent");
}

}  // namespace weir::ucx

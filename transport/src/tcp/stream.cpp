#include "stream.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>

#include "link.hpp"

namespace weir::tcp {

namespace asio = boost::asio;

namespace {

/// After so many bytes another stream of the thread has its turn.
constexpr std::size_t turn_bytes = std::size_t{8} << 20;

std::string reason_of(int number) { return std::generic_category().message(number); }

bool is_answer(kind k) noexcept { return k == kind::data || k == kind::stored || k == kind::refused; }

}  // namespace

void operation::part_ended(const result<void>& outcome) {
  {
    std::lock_guard lock(mutex_);
    if (!outcome && !first_failure_) first_failure_ = outcome.error();
    if (--left_ > 0) return;
  }
  link_->post([on = link_, failure = std::move(first_failure_), done = std::move(done_)] {
    if (on->closed()) return done(fail(errc::unavailable, "the connection to " + on->peer() + " was closed"));
    if (failure) return done(fail(*failure));
    done({});
  });
}

stream::stream(link& owner, std::size_t number, asio::ip::tcp::socket socket)
    : link_(owner), number_(number), context_(static_cast<asio::io_context&>(socket.get_executor().context())) {
  io_.emplace(
      io{std::move(socket), asio::steady_timer(context_), asio::steady_timer(context_), asio::steady_timer(context_)});
}

void stream::begin(const std::shared_ptr<link>& keep) {
  auto ended = [this, keep](const std::exception_ptr& thrown) {
    if (thrown) link_.broke({errc::internal, "the connection to " + link_.peer() + " failed: no memory"});
    loop_ended();
  };
  asio::co_spawn(context_, read_loop(), ended);
  asio::co_spawn(context_, write_loop(), ended);
}

void stream::loop_ended() {
  if (--loops_ == 0) io_.reset();
}

// ---- reading

asio::awaitable<void> stream::read_loop() {
  std::size_t turn = 0;
  while (open_) {
    boost::system::error_code failed;
    if (stopped_) {
      io_->to_read.expires_at(time_point::max());
      co_await io_->to_read.async_wait(asio::redirect_error(asio::use_awaitable, failed));
      continue;
    }
    iovec into[2];
    msghdr message{};
    message.msg_iov = into;
    message.msg_iovlen = wanted(into);
    const auto got = ::recvmsg(io_->socket.native_handle(), &message, MSG_DONTWAIT);
    if (got > 0) {
      if (!received(static_cast<std::size_t>(got))) co_return;
      turn += static_cast<std::size_t>(got);
      if (turn < turn_bytes) continue;
      turn = 0;
      co_await asio::post(context_, asio::use_awaitable);
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      co_await io_->socket.async_wait(asio::ip::tcp::socket::wait_read,
                                      asio::redirect_error(asio::use_awaitable, failed));
      turn = 0;
      continue;
    }
    const auto why = got == 0 ? std::string("it ended without a goodbye") : reason_of(errno);
    link_.broke({errc::unavailable, "the connection to " + link_.peer() + " was lost: " + why});
    co_return;
  }
}

/// The payload's rest and the header after it, or the header's rest.
std::size_t stream::wanted(iovec (&into)[2]) noexcept {
  static thread_local std::array<std::byte, 65536> passed_over;
  if (in_have_ < sizeof in_) {
    into[0] = {reinterpret_cast<std::byte*>(&in_) + in_have_, sizeof in_ - in_have_};
    return 1;
  }
  if (to_ == nullptr && left_ > passed_over.size()) {
    into[0] = {passed_over.data(), passed_over.size()};
    return 1;
  }
  into[0] = {to_ == nullptr ? passed_over.data() : to_, static_cast<std::size_t>(left_)};
  into[1] = {&next_, sizeof next_};
  return 2;
}

bool stream::received(std::size_t bytes) {
  if (in_have_ == sizeof in_) {
    const auto of_payload = std::min<std::uint64_t>(bytes, left_);
    if (to_ != nullptr) to_ += of_payload;
    left_ -= of_payload;
    bytes -= of_payload;
    if (left_ > 0) return true;
    if (!payload_ended()) return false;
    in_ = next_;
    in_have_ = 0;
  }
  in_have_ += bytes;
  if (in_have_ < sizeof in_) return true;
  to_ = nullptr;
  left_ = payload_of(in_);
  if (!began(in_)) return false;
  if (left_ > 0) return true;
  in_have_ = 0;
  return payload_ended();
}

bool stream::breach(const std::string& what) {
  link_.broke({errc::invalid_data, link_.peer() + " broke the protocol: " + what});
  return false;
}

bool stream::began(const header& h) {
  if (h.word != magic) return breach("a header that is none");
  switch (h.kind) {
    case kind::frame:
      return began_frame(h);
    case kind::data:
    case kind::stored:
    case kind::refused:
      return began_answer(h);
    case kind::get:
      return began_get(h);
    case kind::put:
      return began_put(h);
    case kind::goodbye:
      if (h.length != 0) return breach("a goodbye with a payload");
      link_.broke({errc::unavailable, link_.peer() + " closed the connection"});
      return false;
    default:
      return breach("message " + std::to_string(static_cast<int>(h.kind)) + " is not expected here");
  }
}

bool stream::began_frame(const header& h) {
  if (number_ != 0 || h.length > longest_frame) return breach("a frame of " + std::to_string(h.length) + " bytes");
  buffer_.resize(h.length);
  to_ = buffer_.data();
  return true;
}

bool stream::began_answer(const header& h) {
  const auto found = requests_.find(h.id);
  if (found == requests_.end() || found->second.at != place::under_way) return breach("an answer to no request");
  const auto& asked = found->second.what;
  if (h.kind == kind::refused) {
    if (h.length > longest_reason || h.code == 0 || h.code > static_cast<std::uint8_t>(errc::internal))
      return breach("a refusal that is none");
    buffer_.resize(h.length);
    to_ = buffer_.data();
    return true;
  }
  if ((h.kind == kind::data) != asked.is_get || h.length != (asked.is_get ? asked.size : 0))
    return breach("an answer to another request");
  if (asked.of) to_ = asked.into;
  return true;
}

bool stream::began_get(const header& h) {
  if (number_ == 0 || answers_waiting_ >= window) return breach("more requests than may wait");
  auto m = link_.regions().find(h.key);
  if (!m) return refuse(h.id, errc::unavailable, no_such_region), true;
  if (h.offset > m->size || h.length > m->size - h.offset)
    return refuse(h.id, errc::invalid_argument, outside(h.offset, h.length, m->size)), true;
  outgoing answer;
  answer.head.kind = kind::data;
  answer.head.id = h.id;
  answer.head.length = h.length;
  answer.payload = {m->data + h.offset, static_cast<std::size_t>(h.length)};
  answer.keep = std::move(m);
  enqueue(std::move(answer));
  return true;
}

bool stream::began_put(const header& h) {
  if (number_ == 0 || answers_waiting_ >= window) return breach("more requests than may wait");
  put_refusal_.reset();
  written_to_ = link_.regions().find(h.key);
  if (!written_to_) {
    put_refusal_ = error{errc::unavailable, no_such_region};
  } else if (h.offset > written_to_->size || h.length > written_to_->size - h.offset) {
    put_refusal_ = error{errc::invalid_argument, outside(h.offset, h.length, written_to_->size)};
  } else {
    to_ = written_to_->data + h.offset;
  }
  return true;
}

bool stream::payload_ended() {
  switch (in_.kind) {
    case kind::frame:
      stopped_ = !link_.deliver(std::exchange(buffer_, {}));
      break;
    case kind::data:
    case kind::stored:
      end(in_.id, {});
      break;
    case kind::refused:
      end(in_.id, fail(static_cast<errc>(in_.code),
                       std::string(reinterpret_cast<const char*>(buffer_.data()), buffer_.size())));
      break;
    case kind::put: {
      const auto m = std::exchange(written_to_, nullptr);
      if (!put_refusal_ && !m->registered) put_refusal_ = error{errc::unavailable, "the region was taken back"};
      if (put_refusal_) {
        refuse(in_.id, put_refusal_->code, put_refusal_->message);
        break;
      }
      outgoing answer;
      answer.head.kind = kind::stored;
      answer.head.id = in_.id;
      enqueue(std::move(answer));
      break;
    }
    default:
      break;
  }
  return true;
}

void stream::refuse(std::uint64_t id, errc code, std::string reason) {
  reason.resize(std::min(reason.size(), longest_reason));
  auto text = std::make_shared<const std::string>(std::move(reason));
  outgoing answer;
  answer.head.kind = kind::refused;
  answer.head.code = static_cast<std::uint8_t>(code);
  answer.head.id = id;
  answer.head.length = text->size();
  answer.payload = std::as_bytes(std::span(*text));
  answer.keep = std::move(text);
  enqueue(std::move(answer));
}

void stream::resume() {
  stopped_ = false;
  if (io_) io_->to_read.cancel();
}

// ---- writing

void stream::enqueue(outgoing item) {
  if (!open_ || !io_) return;
  if (is_answer(item.head.kind)) ++answers_waiting_;
  out_.push_back(std::move(item));
  io_->to_write.cancel();
}

std::size_t stream::gathered(iovec (&from)[16]) noexcept {
  std::size_t count = 0;
  for (auto& item : out_) {
    if (count + 2 > std::size(from)) break;
    auto skipped = item.written;
    if (skipped < sizeof item.head) {
      from[count++] = {reinterpret_cast<std::byte*>(&item.head) + skipped, sizeof item.head - skipped};
      skipped = sizeof item.head;
    }
    const auto rest = item.payload.subspan(skipped - sizeof item.head);
    if (!rest.empty()) from[count++] = {const_cast<std::byte*>(rest.data()), rest.size()};
  }
  return count;
}

void stream::wrote(std::size_t bytes) {
  while (bytes > 0) {
    auto& item = out_.front();
    const auto taken = std::min(bytes, sizeof item.head + item.payload.size() - item.written);
    item.written += taken;
    bytes -= taken;
    if (item.written < sizeof item.head + item.payload.size()) return;
    if (item.head.kind == kind::frame) link_.frame_written(item.payload.size());
    if (is_answer(item.head.kind)) --answers_waiting_;
    out_.pop_front();
  }
}

asio::awaitable<void> stream::write_loop() {
  std::size_t turn = 0;
  while (open_) {
    boost::system::error_code failed;
    if (out_.empty()) {
      io_->to_write.expires_at(time_point::max());
      co_await io_->to_write.async_wait(asio::redirect_error(asio::use_awaitable, failed));
      continue;
    }
    iovec from[16];
    msghdr message{};
    message.msg_iov = from;
    message.msg_iovlen = gathered(from);
    const auto sent = ::sendmsg(io_->socket.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      wrote(static_cast<std::size_t>(sent));
      turn += static_cast<std::size_t>(sent);
      if (turn < turn_bytes) continue;
      turn = 0;
      co_await asio::post(context_, asio::use_awaitable);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      co_await io_->socket.async_wait(asio::ip::tcp::socket::wait_write,
                                      asio::redirect_error(asio::use_awaitable, failed));
      turn = 0;
      continue;
    }
    link_.broke({errc::unavailable, "the connection to " + link_.peer() + " was lost: " + reason_of(errno)});
    co_return;
  }
}

void stream::send_frame(std::vector<std::byte> frame) {
  auto kept = std::make_shared<const std::vector<std::byte>>(std::move(frame));
  outgoing item;
  item.head.kind = kind::frame;
  item.head.length = kept->size();
  item.payload = *kept;
  item.keep = std::move(kept);
  enqueue(std::move(item));
}

}  // namespace weir::tcp

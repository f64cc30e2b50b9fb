#include "side.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "tcp/handshake.hpp"

namespace weir::ucx {

namespace {

std::string reason_of(int number) { return std::generic_category().message(number); }

/// Waits for `events`; false at the deadline.
bool wait_for(int fd, short events, time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd waiting{fd, events, 0};
    const int n = ::poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 1'000'000)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return true;  // the next call on it says what is wrong
  }
}

}  // namespace

descriptor::~descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

std::string side_text(said what, std::string_view body, errc code) {
  side_header head;
  head.said = what;
  head.code = static_cast<std::uint8_t>(code);
  head.length = static_cast<std::uint32_t>(body.size());
  head.library = 0;
  return std::string(reinterpret_cast<const char*>(&head), sizeof head).append(body);
}

error refusal_of(const side_message& m, const std::string& peer) {
  if (m.head.said != said::refused || m.body.size() > longest_reason || m.head.code == 0 ||
      m.head.code > static_cast<std::uint8_t>(errc::internal))
    return {errc::invalid_data, peer + " broke the protocol: an answer that is none"};
  return {static_cast<errc>(m.head.code), peer + " refused: " + m.body};
}

bool side_socket::receive(std::string& why) {
  char bytes[65536];
  for (;;) {
    const auto got = ::recv(fd_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) {
      in_.append(bytes, static_cast<std::size_t>(got));
      if (in_.size() > 2 * longest_side_message) return true;  // as much as is ever of use; the rest can wait
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    why = got == 0 ? "it ended without a goodbye" : reason_of(errno);
    return false;
  }
}

result<std::optional<side_message>> side_socket::next() {
  side_message m;
  if (in_.size() < sizeof m.head) return std::optional<side_message>();
  std::memcpy(&m.head, in_.data(), sizeof m.head);
  if (m.head.magic != side_header::expected_magic) return fail(errc::invalid_data, "it is no Weir UCX transport");
  if (m.head.length > longest_side_message) return fail(errc::invalid_data, "a message that no Weir sends");
  if (in_.size() < sizeof m.head + m.head.length) return std::optional<side_message>();
  m.body = in_.substr(sizeof m.head, m.head.length);
  in_.erase(0, sizeof m.head + m.head.length);
  return std::optional(std::move(m));
}

void side_socket::send(std::string text) {
  out_ += text;
  flush();
}

void side_socket::flush() {
  while (!out_.empty()) {
    const auto sent = ::send(fd_.get(), out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0)
      out_.erase(0, static_cast<std::size_t>(sent));
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      return;
    else if (errno != EINTR)
      out_.clear();  // reading will say that it is over
  }
}

result<std::pair<descriptor, std::string>> listen_at(const std::string& address) {
  auto endpoints = tcp::resolve(address, true, std::chrono::steady_clock::now() + std::chrono::seconds(5));
  if (!endpoints) return fail(endpoints.error());
  std::string reasons;
  for (const auto& e : *endpoints) {
    descriptor fd(::socket(e.data()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    sockaddr_storage at{};
    socklen_t size = sizeof at;
    if (fd && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        ::bind(fd.get(), e.data(), static_cast<socklen_t>(e.size())) == 0 && ::listen(fd.get(), 4096) == 0 &&
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0) {
      const auto port = at.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(at).sin6_port
                                                 : reinterpret_cast<sockaddr_in&>(at).sin_port;
      return std::pair{std::move(fd), address.substr(0, address.rfind(':') + 1) + std::to_string(ntohs(port))};
    }
    reasons += (reasons.empty() ? "" : "; ") + tcp::written(e) + ": " + reason_of(errno);
  }
  return fail(errc::invalid_argument, "cannot listen at " + address + ": " + reasons);
}

result<descriptor> connect_to(const std::string& address, time_point deadline) {
  auto endpoints = tcp::resolve(address, false, deadline);
  if (!endpoints) return fail(endpoints.error());
  std::string reasons;
  auto code = errc::not_found;
  for (const auto& e : *endpoints) {
    descriptor fd(::socket(e.data()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int failed = fd ? 0 : errno;
    if (!fd) code = errc::unavailable;
    if (fd && ::connect(fd.get(), e.data(), static_cast<socklen_t>(e.size())) != 0) {
      failed = errno;
      if (failed == EINPROGRESS) {
        if (!wait_for(fd.get(), POLLOUT, deadline))
          return fail(errc::timeout, "no answer from " + address + " by the deadline");
        socklen_t size = sizeof failed;
        ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &failed, &size);
      }
    }
    if (failed == 0) return fd;
    reasons += (reasons.empty() ? "" : "; ") + tcp::written(e) + ": " + reason_of(failed);
  }
  return fail(code, "nobody listens there: " + reasons);
}

result<side_message> ask(side_socket& socket, std::string text, const std::string& peer, time_point deadline) {
  const auto late = [&] { return fail(errc::timeout, "no answer from " + peer + " by the deadline"); };
  socket.send(std::move(text));
  for (std::string why;;) {
    auto message = socket.next();
    if (!message) return fail(message.error().code, peer + ": " + message.error().message);
    if (*message) return std::move(**message);
    const short events = socket.wants_to_write() ? POLLIN | POLLOUT : POLLIN;
    if (!wait_for(socket.fd(), events, deadline)) return late();
    socket.flush();
    if (!socket.receive(why)) {
      // What it said before its end counts.
      auto last = socket.next();
      if (last && *last) return std::move(**last);
      return fail(errc::unavailable, peer + " ended the handshake: " + why);
    }
  }
}

void prepare(int fd, std::chrono::milliseconds silence) {
  const int on = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  (void)::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const auto set = [fd](int option, int value) { (void)::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value); };
  const int milliseconds = static_cast<int>(std::clamp<std::int64_t>(silence.count(), 1000, 1 << 30));
  set(TCP_USER_TIMEOUT, milliseconds);
  set(TCP_KEEPIDLE, std::max(1, milliseconds / 2000));
  set(TCP_KEEPINTVL, std::max(1, milliseconds / 6000));
  set(TCP_KEEPCNT, 3);
}

std::string peer_of(int fd) {
  boost::asio::ip::tcp::endpoint e;
  auto size = static_cast<socklen_t>(e.capacity());
  if (::getpeername(fd, e.data(), &size) != 0) return "a peer";
  e.resize(size);
  return tcp::written(e);
}

}  // namespace weir::ucx

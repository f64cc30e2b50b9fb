#include "handshake.hpp"

#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <charconv>
#include <cstring>
#include <future>
#include <memory>
#include <thread>

namespace weir::tcp {

namespace asio = boost::asio;
using asio::ip::tcp;
using failure = boost::system::error_code;

namespace {

constexpr std::size_t most_streams = 65;
constexpr std::size_t longest_token = 255;

auto tell(failure& failed) { return asio::redirect_error(asio::use_awaitable, failed); }

result<std::vector<tcp::endpoint>> look_up(const std::string& host, std::uint16_t port, const std::string& address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int rc = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (rc != 0) return fail(errc::not_found, "no host of the address " + address + ": " + ::gai_strerror(rc));
  std::vector<tcp::endpoint> endpoints;
  for (const auto* a = found; a != nullptr; a = a->ai_next) {
    tcp::endpoint e;
    if (a->ai_addrlen > e.capacity()) continue;
    std::memcpy(e.data(), a->ai_addr, a->ai_addrlen);
    e.resize(a->ai_addrlen);
    e.port(port);
    endpoints.push_back(e);
  }
  ::freeaddrinfo(found);
  return endpoints;
}

/// The answer to a hello that is not in order.
asio::awaitable<unexpected> refuse(tcp::socket& peer, errc code, std::string reason) {
  header h;
  h.kind = kind::refused;
  h.code = static_cast<std::uint8_t>(code);
  h.id = protocol_version;
  h.length = reason.size();
  failure failed;
  co_await asio::async_write(peer, std::array<asio::const_buffer, 2>{asio::buffer(&h, sizeof h), asio::buffer(reason)},
                             tell(failed));
  co_return fail(code, std::move(reason));
}

/// One hello and its answer: where the peer is.
asio::awaitable<result<whereabouts>> introduce(tcp::socket& socket, const std::string& name, header hello,
                                               const introduction& ours) {
  failure failed;
  whereabouts there;
  hello.length = sizeof ours.here + ours.token.size();
  co_await asio::async_write(
      socket,
      std::array<asio::const_buffer, 3>{asio::buffer(&hello, sizeof hello), asio::buffer(&ours.here, sizeof ours.here),
                                        asio::buffer(ours.token)},
      tell(failed));
  header h;
  if (!failed) co_await asio::async_read(socket, asio::buffer(&h, sizeof h), tell(failed));
  if (failed) co_return fail(errc::unavailable, name + " ended the handshake: " + failed.message());
  if (h.word != magic) co_return fail(errc::invalid_data, name + " is no Weir TCP transport");
  if (h.kind == kind::welcome) {
    if (h.length != sizeof there) co_return fail(errc::invalid_data, name + " broke the protocol: an odd welcome");
    co_await asio::async_read(socket, asio::buffer(&there, sizeof there), tell(failed));
    if (failed) co_return fail(errc::unavailable, name + " ended the handshake: " + failed.message());
    co_return there;
  }
  if (h.kind != kind::refused || h.length > longest_reason || h.code == 0 ||
      h.code > static_cast<std::uint8_t>(errc::internal))
    co_return fail(errc::invalid_data, name + " broke the protocol: an answer that is none");
  std::string reason(h.length, '\0');
  co_await asio::async_read(socket, asio::buffer(reason), tell(failed));
  co_return fail(static_cast<errc>(h.code), name + " refused: " + reason);
}

}  // namespace

std::string written(const tcp::endpoint& e) {
  const auto host = e.address().to_string();
  return (e.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(e.port());
}

result<std::vector<tcp::endpoint>> resolve(const std::string& address, bool to_listen,
                                           std::chrono::steady_clock::time_point deadline) {
  const auto colon = address.rfind(':');
  std::uint16_t port = 0;
  const auto* end = address.data() + address.size();
  const auto* digits = address.data() + (colon == std::string::npos ? address.size() : colon + 1);
  const auto [rest, failed] = std::from_chars(digits, end, port);
  if (failed != std::errc{} || rest != end || colon == 0)
    return fail(errc::invalid_argument, "a TCP address is HOST:PORT or [IPV6]:PORT, found " + address);
  auto host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (to_listen && host == "*") return std::vector{tcp::endpoint(tcp::v6(), port), tcp::endpoint(tcp::v4(), port)};
  failure not_numeric;
  const auto numeric = asio::ip::make_address(host, not_numeric);
  if (!not_numeric) return std::vector{tcp::endpoint(numeric, port)};
  auto promise = std::make_shared<std::promise<result<std::vector<tcp::endpoint>>>>();
  auto found = promise->get_future();
  std::thread([promise, host, port, address] { promise->set_value(look_up(host, port, address)); }).detach();
  if (found.wait_until(deadline) != std::future_status::ready)
    return fail(errc::timeout, "the host of the address " + address + " was not found by the deadline");
  return found.get();
}

asio::awaitable<result<greeted>> greet(std::vector<tcp::endpoint> peers, std::size_t streams, introduction ours,
                                       key connection) {
  const auto executor = co_await asio::this_coro::executor;
  greeted found;
  auto& sockets = found.sockets;
  std::string reasons;
  failure failed;
  tcp::endpoint peer;
  for (const auto& candidate : peers) {
    peer = candidate;
    sockets.clear();
    co_await sockets.emplace_back(executor).async_connect(peer, tell(failed));
    if (!failed) break;
    reasons += (reasons.empty() ? "" : "; ") + written(peer) + ": " + failed.message();
  }
  if (sockets.empty() || failed) co_return fail(errc::not_found, "nobody listens there: " + reasons);
  header hello;
  hello.kind = kind::hello;
  hello.id = protocol_version;
  hello.streams = static_cast<std::uint16_t>(streams);
  hello.key = connection;
  for (std::size_t i = 0; i < streams; ++i) {
    if (i > 0) co_await sockets.emplace_back(executor).async_connect(peer, tell(failed));
    if (failed)
      co_return fail(errc::unavailable, written(peer) + " took one connection and no more: " + failed.message());
    hello.offset = i;
    auto welcome = co_await introduce(sockets.back(), written(peer), hello, ours);
    if (!welcome) co_return fail(welcome.error());
    found.there = *welcome;
  }
  co_return found;
}

asio::awaitable<result<greeting>> answer(tcp::socket& peer, const introduction& ours) {
  failure failed;
  header h;
  co_await asio::async_read(peer, asio::buffer(&h, sizeof h), tell(failed));
  if (failed) co_return fail(errc::unavailable, "the handshake ended: " + failed.message());
  // The word, the kind and the id keep their places in every version.
  if (h.word != magic || h.kind != kind::hello) co_return fail(errc::invalid_data, "the peer is no Weir TCP transport");
  if (h.id != protocol_version)
    co_return co_await refuse(peer, errc::unsupported,
                              "this side speaks version " + std::to_string(protocol_version) +
                                  " of the TCP transport's protocol, the other " + std::to_string(h.id) +
                                  ": run the same Weir on both");
  if (h.length < sizeof(whereabouts) || h.length > sizeof(whereabouts) + longest_token || h.streams < 2 ||
      h.streams > most_streams || h.offset >= h.streams)
    co_return co_await refuse(peer, errc::invalid_data, "a hello that no Weir sends");
  whereabouts there;
  std::string theirs(h.length - sizeof there, '\0');
  co_await asio::async_read(
      peer, std::array<asio::mutable_buffer, 2>{asio::buffer(&there, sizeof there), asio::buffer(theirs)},
      tell(failed));
  if (failed) co_return fail(errc::unavailable, "the handshake ended: " + failed.message());
  if (theirs != ours.token)
    co_return co_await refuse(peer, errc::unavailable, "the peer belongs to another run: its token differs");
  header welcome;
  welcome.kind = kind::welcome;
  welcome.id = protocol_version;
  welcome.length = sizeof ours.here;
  co_await asio::async_write(peer,
                             std::array<asio::const_buffer, 2>{asio::buffer(&welcome, sizeof welcome),
                                                               asio::buffer(&ours.here, sizeof ours.here)},
                             tell(failed));
  if (failed) co_return fail(errc::unavailable, "the handshake ended: " + failed.message());
  co_return greeting{h.key, static_cast<std::size_t>(h.offset), h.streams, there};
}

void prepare(tcp::socket& socket, std::chrono::milliseconds silence) {
  failure ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto set = [fd = socket.native_handle()](int option, int value) {
    (void)::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value);
  };
  const int milliseconds = static_cast<int>(std::clamp<std::int64_t>(silence.count(), 1000, 1 << 30));
  set(TCP_USER_TIMEOUT, milliseconds);
  set(TCP_KEEPIDLE, std::max(1, milliseconds / 4000));
  set(TCP_KEEPINTVL, std::max(1, milliseconds / 4000));
  set(TCP_KEEPCNT, 3);
}

}  // namespace weir::tcp

#pragma once
// The plain TCP socket beside UCX: it introduces two transports to each other, shows at once when a process is gone,
// and carries the goodbye.

#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "weir/transport/result.hpp"
#include "wire.hpp"

namespace weir::ucx {

using time_point = std::chrono::steady_clock::time_point;

/// A file descriptor, closed with it.
class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int fd) noexcept : fd_(fd) {}
  descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~descriptor();
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// What came in whole.
struct side_message {
  side_header head;
  std::string body;
  /// The body's first bytes as a struct, if there are as many.
  template <class T>
  std::optional<T> as() const {
    T value;
    if (body.size() < sizeof value) return std::nullopt;
    std::memcpy(static_cast<void*>(&value), body.data(), sizeof value);
    return value;
  }
};

std::string side_text(said what, std::string_view body = {}, errc code = {});
template <class T>
std::string side_struct(said what, const T& body) {
  return side_text(what, std::string_view(reinterpret_cast<const char*>(&body), sizeof body));
}
/// The error that a refusal says; `peer` is its name. invalid_data if it is none.
error refusal_of(const side_message& m, const std::string& peer);

/// A connected socket that never waits.
class side_socket {
 public:
  side_socket() = default;
  explicit side_socket(descriptor fd) : fd_(std::move(fd)) {}

  int fd() const noexcept { return fd_.get(); }
  bool wants_to_write() const noexcept { return !out_.empty(); }
  /// Takes what has come. False once the peer's end is reached, or the connection lost; then `why` says how.
  bool receive(std::string& why);
  /// The next whole message; invalid_data for what is none.
  result<std::optional<side_message>> next();
  void send(std::string text);
  void flush();
  void close() { fd_ = descriptor(); }

 private:
  descriptor fd_;
  std::string in_, out_;
};

/// A socket that listens at `address`, and the address that peers connect to.
result<std::pair<descriptor, std::string>> listen_at(const std::string& address);
/// A connected socket; waits until the deadline.
result<descriptor> connect_to(const std::string& address, time_point deadline);
/// Sends a text and waits for the answer, both until the deadline.
result<side_message> ask(side_socket& socket, std::string text, const std::string& peer, time_point deadline);
/// No delay, and an end to peers that are silent for so long.
void prepare(int fd, std::chrono::milliseconds silence);
/// The other end's address as text.
std::string peer_of(int fd);

}  // namespace weir::ucx

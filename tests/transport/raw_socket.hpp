#pragma once
// Half of a TCP connection, for peers that say what no transport says.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include "catch.hpp"

namespace weir::testing {

/// A socket without a transport behind it.
class raw_socket {
 public:
  explicit raw_socket(const std::string& address) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    REQUIRE(::connect(fd_, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
    const timeval patience{10, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  ~raw_socket() { ::close(fd_); }
  raw_socket(const raw_socket&) = delete;
  raw_socket& operator=(const raw_socket&) = delete;
  void write(const std::string& bytes) const { (void)!::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// What is said next: a header with the `length` of its body, and that; nothing at the end.
  template <class Header>
  std::optional<std::pair<Header, std::string>> read() const {
    Header head;
    if (::recv(fd_, &head, sizeof head, MSG_WAITALL) != sizeof head) return std::nullopt;
    std::string body(head.length, '\0');
    if (head.length > 0 && ::recv(fd_, body.data(), body.size(), MSG_WAITALL) != static_cast<ssize_t>(body.size()))
      return std::nullopt;
    return std::pair{head, body};
  }
  /// Whether the other side ends the connection.
  bool ended() const {
    char c[4096];
    ssize_t n = 0;
    while ((n = ::recv(fd_, c, sizeof c, 0)) > 0) {
    }
    return n == 0 || errno == ECONNRESET;
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace weir::testing

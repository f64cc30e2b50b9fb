#pragma once
// The operating system's file descriptors, owned.

#include <unistd.h>

#include <string_view>
#include <utility>

namespace weir {

/// A file descriptor that closes itself; -1: none.
class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int fd) noexcept : fd_(fd) {}
  ~descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const noexcept { return fd_; }

 private:
  int fd_ = -1;
};

/// Writes all bytes, in one system call if the system takes them in one. Returns 0 or the errno; on an error some of
/// the bytes may have been written.
int write_all(int fd, std::string_view bytes) noexcept;

}  // namespace weir

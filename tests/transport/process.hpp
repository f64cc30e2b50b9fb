#pragma once
// A transport in a process of its own (peer.cpp), told what to do by lines, and answering each with one.

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "conformance.hpp"

extern char** environ;

namespace weir::testing {

inline std::string to_hex(const std::string& bytes) {
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (const unsigned char c : bytes) text += {digits[c >> 4U], digits[c & 15U]};
  return text;
}

inline std::string from_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

class peer_process {
 public:
  /// `words`: what peer.cpp takes. `environment`: NAME=VALUE beside what this process has. `before`: the command that
  /// runs it, and that becomes it.
  explicit peer_process(std::vector<std::string> words, std::vector<std::string> environment = {},
                        std::vector<std::string> before = {}) {
    words.insert(words.begin(), WEIR_TEST_PEER);
    words.insert(words.begin(), before.begin(), before.end());
    int in[2], out[2];
    REQUIRE((::pipe2(in, O_CLOEXEC) == 0 && ::pipe2(out, O_CLOEXEC) == 0));
    std::vector<char*> arguments, variables;
    for (auto& w : words) arguments.push_back(w.data());
    arguments.push_back(nullptr);
    for (auto& e : environment) variables.push_back(e.data());
    for (char** e = environ; *e != nullptr; ++e) variables.push_back(*e);
    variables.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    const int failed = posix_spawnp(&pid_, words[0].c_str(), &actions, nullptr, arguments.data(), variables.data());
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    to_ = in[1];
    from_ = out[0];
    REQUIRE(failed == 0);
  }
  ~peer_process() {
    if (pid_ > 0) kill();
    ::close(to_);
    ::close(from_);
  }
  peer_process(const peer_process&) = delete;
  peer_process& operator=(const peer_process&) = delete;

  /// The next line, in words; empty after the process's end or 20 s.
  std::vector<std::string> line() {
    std::string text;
    for (char c = 0;;) {
      pollfd waiting{from_, POLLIN, 0};
      if (::poll(&waiting, 1, 20'000) <= 0 || ::read(from_, &c, 1) != 1) return {};
      if (c == '\n') break;
      text += c;
    }
    std::istringstream words(text);
    return {std::istream_iterator<std::string>(words), {}};
  }
  std::vector<std::string> ask(const std::string& what) {
    tell(what);
    return line();
  }
  void tell(const std::string& what) const {
    const auto text = what + "\n";
    REQUIRE(::write(to_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  void signal(int number) const { ::kill(pid_, number); }
  /// And waits until it is gone.
  void kill() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  /// Its standard input ends, and with it the process. Its exit status.
  int end() {
    ::close(std::exchange(to_, -1));
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
};

/// A peer that listens and has one region, whose bytes are `pattern(size, 1)`.
struct serving_process {
  /// `options` are the transport's settings, KEY=VALUE.
  serving_process(const std::string& transport, std::size_t size, std::vector<std::string> options = {},
                  std::vector<std::string> environment = {})
      : process(words(transport, size, std::move(options)), std::move(environment)) {
    const auto said = process.line();
    REQUIRE(said.size() == 2);
    address = said[0];
    descriptor = from_hex(said[1]);
  }
  peer_process process;
  std::string address, descriptor;

 private:
  static std::vector<std::string> words(const std::string& transport, std::size_t size,
                                        std::vector<std::string> options) {
    options.insert(options.begin(), {"serve", transport, std::to_string(size)});
    return options;
  }
};

/// This side of it.
struct client_of {
  std::vector<std::string> notices;
  int closed = 0;
  std::vector<std::vector<std::byte>> frames;
  std::unique_ptr<transport> mine;
  std::shared_ptr<connection> to_server;

  client_of(const transport_maker& make, const std::string& address) {
    mine = make({{},
                 [this](connection&, std::span<const std::byte> f) { frames.emplace_back(f.begin(), f.end()); },
                 [this](connection&, const error&) { ++closed; },
                 [this](const std::string& what) { notices.push_back(what); }});
    auto connected = mine->connect(address, pair_of_transports::soon());
    INFO((connected ? std::string() : connected.error().message));
    REQUIRE(connected);
    to_server = *connected;
  }
  template <class Condition>
  bool until(Condition condition, std::chrono::milliseconds time = std::chrono::seconds(10)) {
    for (const auto end = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < end;) {
      if (condition()) return true;
      pollfd waiting{mine->event_fd(), POLLIN, 0};
      if (mine->progress() == 0) ::poll(&waiting, 1, 10);
    }
    return condition();
  }
  result<void> get(const std::string& descriptor, std::uint64_t offset, std::span<std::byte> into,
                   std::chrono::milliseconds time = std::chrono::seconds(10)) {
    std::optional<result<void>> outcome;
    to_server->get(descriptor, offset, into, std::chrono::steady_clock::now() + time,
                   [&](result<void> r) { outcome = std::move(r); });
    REQUIRE(until([&] { return outcome.has_value(); }, time + std::chrono::seconds(5)));
    return *outcome;
  }
};

}  // namespace weir::testing

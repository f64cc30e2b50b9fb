#pragma once
// A child process whose stdin we hold open, and whose stdout we read by lines.

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

extern char** environ;

namespace weir::bench {

class process {
 public:
  explicit process(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (auto& w : words) arguments.push_back(w.data());
    arguments.push_back(nullptr);
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    if (posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    in_ = in[1];
    out_ = out[0];
    ::fcntl(out_, F_SETFL, O_NONBLOCK);
  }
  ~process() {
    ::close(in_);
    ::close(out_);
    if (pid_ <= 0) return;
    for (int i = 0; i < 500; ++i) {
      if (::waitpid(pid_, nullptr, WNOHANG) != 0) return;
      ::usleep(10'000);
    }
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  process(const process&) = delete;
  process& operator=(const process&) = delete;

  /// The next whole line, if there is one.
  std::optional<std::string> line() {
    char buffer[4096];
    for (ssize_t n; (n = ::read(out_, buffer, sizeof buffer)) > 0;) text_.append(buffer, static_cast<std::size_t>(n));
    const auto end = text_.find('\n');
    if (end == std::string::npos) return {};
    auto first = text_.substr(0, end);
    text_.erase(0, end + 1);
    return first;
  }
  void ask() { [[maybe_unused]] const auto written = ::write(in_, "?", 1); }
  bool ended() {
    if (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
    return pid_ <= 0;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
  std::string text_;
};

}  // namespace weir::bench

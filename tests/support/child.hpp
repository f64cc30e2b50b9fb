#pragma once
// Runs a program as a child process, with its output in a string and its end in sight.

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace weir::testing {

class child {
 public:
  /// Starts `words[0]`, found by path; stdout and stderr go to the file `output`, or stderr to `errors` if it is named.
  child(std::vector<std::string> words, std::string output, const std::string& errors = {})
      : output_(std::move(output)) {
    std::vector<char*> arguments;
    for (auto& w : words) arguments.push_back(w.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    if (errors.empty())
      posix_spawn_file_actions_adddup2(&actions, 1, 2);
    else
      posix_spawn_file_actions_addopen(&actions, 2, errors.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    const int failed = posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) throw std::runtime_error("cannot start " + words[0]);
  }
  ~child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  child(const child&) = delete;
  child& operator=(const child&) = delete;

  void signal(int number) { ::kill(pid_, number); }

  /// The exit status, 128 + signal if one ended it, or -1 if it still runs after `longest`.
  int wait(std::chrono::milliseconds longest) {
    const auto end = std::chrono::steady_clock::now() + longest;
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() >= end) return -1;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::string output() const {
    std::ifstream file(output_);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  std::string output_;
  pid_t pid_ = -1;
};

}  // namespace weir::testing

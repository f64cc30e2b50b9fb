// Signals as requests to stop. Each case runs in a child: handlers belong to the whole process.
#include "weir/runtime/interrupt.hpp"

#include <stdexcept>
#include <thread>

#include "catch.hpp"
#include "temporary.hpp"

using namespace std::chrono_literals;

TEST_CASE("a signal is a request, and its exit code says which one came") {
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}}) {
    const int status = in_child([s = signal] {
      weir::interrupt stop;
      if (stop.requested() || stop.exit_code() != 0 || stop.wait_for(1ms)) return 1;
      ::raise(s);
      return stop.requested() && stop.wait_for(0ms) && stop.wait_for(1h) ? stop.exit_code() : 2;
    });
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == code);
  }
}

TEST_CASE("a signal wakes the one who waits") {
  const int status = in_child([] {
    ::alarm(60);  // ends the child if the wait does not
    weir::interrupt stop;
    std::thread other([] {
      std::this_thread::sleep_for(20ms);
      ::kill(::getpid(), SIGTERM);
    });
    const bool woken = stop.wait_for(std::chrono::milliseconds::max());
    other.join();
    return woken ? stop.exit_code() : 1;
  });
  CHECK(WEXITSTATUS(status) == 143);
}

TEST_CASE("a second signal ends the process, but not a repetition of the first") {
  const int status = in_child([] {
    weir::interrupt stop;
    ::raise(SIGTERM);
    ::raise(SIGTERM);
    if (!stop.requested()) return 1;
    std::this_thread::sleep_for(150ms);
    ::raise(SIGINT);
    return 2;
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 130);
}

TEST_CASE("the old handlers come back, and a new interrupt starts afresh") {
  const int status = in_child([] {
    ::signal(SIGTERM, SIG_DFL);
    {
      weir::interrupt stop;
      ::raise(SIGINT);
    }
    {
      weir::interrupt stop;
      if (stop.requested() || stop.wait_for(1ms)) return 1;
    }
    ::raise(SIGTERM);
    return 2;
  });
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGTERM);
}

TEST_CASE("two interrupts at a time are a fault of the program") {
  const int status = in_child([] {
    {
      weir::interrupt first;
      try {
        weir::interrupt second;
        return 1;
      } catch (const std::logic_error&) {
      }
      ::raise(SIGINT);
      if (!first.requested()) return 2;
    }
    weir::interrupt third;
    return 0;
  });
  CHECK(status == 0);
}

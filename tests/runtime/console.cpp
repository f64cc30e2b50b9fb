// The console on a terminal and on a pipe, durations, and the log.
#include "weir/runtime/console.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "temporary.hpp"
#include "weir/runtime/descriptor.hpp"
#include "weir/runtime/log.hpp"

using namespace std::chrono_literals;
using weir::console;

namespace {

constexpr weir::console_settings always{0ms, 0ms};
constexpr weir::console_settings rarely{1h, 1h};
const std::string erase = "\r\x1b[K";

/// Sets an environment variable for as long as it lives; null removes it.
class environment_variable {
 public:
  environment_variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~environment_variable() { set(old_ ? old_->c_str() : nullptr); }
  environment_variable(const environment_variable&) = delete;
  environment_variable& operator=(const environment_variable&) = delete;

 private:
  void set(const char* value) {
    if (value != nullptr)
      ::setenv(name_, value, 1);
    else
      ::unsetenv(name_);
  }
  const char* name_;
  std::optional<std::string> old_;
};

/// Two ends of a channel: what is written to `in` is read from `out`.
struct channel {
  weir::descriptor in, out;

  std::string written() const {
    std::string text;
    char block[4096];
    for (pollfd ready{out.get(), POLLIN, 0}; ::poll(&ready, 1, 0) == 1 && (ready.revents & POLLIN) != 0;) {
      const auto got = ::read(out.get(), block, sizeof block);
      if (got <= 0) break;
      text.append(block, static_cast<std::size_t>(got));
    }
    return text;
  }
};

channel make_pipe() {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  return {weir::descriptor(ends[1]), weir::descriptor(ends[0])};
}

channel make_terminal(unsigned short columns) {
  int master = -1;
  int slave = -1;
  termios raw{};
  ::cfmakeraw(&raw);
  const winsize size{24, columns, 0, 0};
  REQUIRE(::openpty(&master, &slave, nullptr, &raw, &size) == 0);
  return {weir::descriptor(slave), weir::descriptor(master)};
}

struct terminal_environment {
  environment_variable term{"TERM", "xterm"};
  environment_variable color{"NO_COLOR", nullptr};
};

}  // namespace

TEST_CASE("on a pipe everything is plain lines, and a status is one from time to time") {
  terminal_environment environment;
  auto pipe = make_pipe();
  {
    console screen(pipe.in.get(), rarely);
    CHECK_FALSE(screen.is_live());
    CHECK_FALSE(screen.has_color());
    screen.status("step 1");
    screen.status("step 2");
    screen.line("hello", console::tone::error);
    screen.line("two\nlines\n");
  }
  CHECK(pipe.written() == "step 1\nhello\ntwo\nlines\n");
}

TEST_CASE("on a terminal the status is redrawn in place and lines appear above it") {
  terminal_environment environment;
  auto terminal = make_terminal(80);
  console screen(terminal.in.get(), always);
  CHECK(screen.is_live());
  screen.line("before");
  CHECK(terminal.written() == "before\n");
  screen.status("one");
  CHECK(terminal.written() == "one");
  screen.status("two");
  CHECK(terminal.written() == erase + "two");
  screen.line("above");
  CHECK(terminal.written() == erase + "above\ntwo");
  screen.finish();
  CHECK(terminal.written() == erase);
  screen.finish();
  screen.line("after");
  CHECK(terminal.written() == "after\n");
}

TEST_CASE("a console that goes away leaves no live line") {
  terminal_environment environment;
  auto terminal = make_terminal(80);
  { console(terminal.in.get(), always).status("x"); }
  CHECK(terminal.written() == "x" + erase);
}

TEST_CASE("the live line is not redrawn too often, but never older than a line above it") {
  terminal_environment environment;
  auto terminal = make_terminal(80);
  console screen(terminal.in.get(), rarely);
  screen.status("one");
  screen.status("two");
  CHECK(terminal.written() == "one");
  screen.line("above");
  CHECK(terminal.written() == erase + "above\ntwo");
}

TEST_CASE("the live line is cut to the terminal's width, between characters, as the width is now") {
  terminal_environment environment;
  auto terminal = make_terminal(6);
  console screen(terminal.in.get(), always);
  screen.status("1234567");
  CHECK(terminal.written() == "12345");
  screen.status("äöüßé!");
  CHECK(terminal.written() == erase + "äöüßé");
  screen.status("a\nb\tc\x1b[");
  CHECK(terminal.written() == erase + "a b c");
  const winsize wider{24, 8, 0, 0};
  REQUIRE(::ioctl(terminal.in.get(), TIOCSWINSZ, &wider) == 0);
  screen.status("123456789");
  CHECK(terminal.written() == erase + "1234567");
}

TEST_CASE("a terminal that does not tell its width is taken to have 80 columns") {
  terminal_environment environment;
  auto terminal = make_terminal(0);
  console screen(terminal.in.get(), always);
  screen.status(std::string(100, 'x'));
  CHECK(terminal.written() == std::string(79, 'x'));
}

TEST_CASE("a dumb terminal gets plain lines, and NO_COLOR turns colour off only") {
  auto terminal = make_terminal(80);
  {
    environment_variable dumb("TERM", "dumb");
    console screen(terminal.in.get(), always);
    screen.status("one");
    screen.line("two", console::tone::warning);
    CHECK(terminal.written() == "one\ntwo\n");
  }
  terminal_environment environment;
  {
    console screen(terminal.in.get(), always);
    screen.line("red", console::tone::error);
    CHECK(terminal.written() == "\x1b[31mred\x1b[0m\n");
  }
  environment_variable no_color("NO_COLOR", "1");
  console screen(terminal.in.get(), always);
  CHECK(screen.is_live());
  screen.line("red", console::tone::error);
  CHECK(terminal.written() == "red\n");
}

TEST_CASE("a text cannot steer the terminal") {
  terminal_environment environment;
  auto terminal = make_terminal(80);
  console screen(terminal.in.get(), always);
  screen.line(
      "a\x1b]0;title\x07 b\r\tc\xC2\x9B"
      "31m ü");
  CHECK(terminal.written() == "a?]0;title? b?\tc??31m ü\n");
}

TEST_CASE("lines of many threads stay whole") {
  auto pipe = make_pipe();
  console screen(pipe.in.get(), always);
  std::vector<std::thread> threads;
  for (char c : {'a', 'b', 'c', 'd'})
    threads.emplace_back([&screen, c] {
      for (int i = 0; i < 50; ++i) {
        screen.line(std::string(60, c));
        screen.status(std::string(60, c));
      }
    });
  for (auto& thread : threads) thread.join();
  const auto text = pipe.written();
  REQUIRE(text.size() == 4 * 50 * 2 * 61);
  for (std::size_t at = 0; at < text.size(); at += 61) CHECK(text.substr(at, 61) == std::string(60, text[at]) + "\n");
}

TEST_CASE("a stream that takes nothing does no harm") {
  weir::descriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  console screen(full.get(), always);
  screen.status("x");
  screen.line("y");
  console closed(-1, always);
  closed.line("z");
}

TEST_CASE("durations are two units long") {
  CHECK(weir::format_duration(0) == "0s");
  CHECK(weir::format_duration(59.4) == "59s");
  CHECK(weir::format_duration(59.6) == "1m 00s");
  CHECK(weir::format_duration(123) == "2m 03s");
  CHECK(weir::format_duration(3600) == "1h 00m");
  CHECK(weir::format_duration(86399) == "23h 59m");
  CHECK(weir::format_duration(90000) == "1d 01h");
  CHECK(weir::format_duration(-1) == "?");
  CHECK(weir::format_duration(std::nan("")) == "?");
  CHECK(weir::format_duration(std::numeric_limits<double>::infinity()) == "?");
  CHECK(weir::format_duration(1e300) == "over 30 years");
}

TEST_CASE("the time left follows the recent pace") {
  weir::eta left(1000, 10);
  CHECK_FALSE(left.remaining());
  left.update(100, 5000);  // a resumed run: nothing is known of the pace
  CHECK_FALSE(left.remaining());
  left.update(110, 5020);
  REQUIRE(left.remaining());
  CHECK(*left.remaining() == Approx(890 * 2.0));
  left.update(110, 5030);
  CHECK(*left.remaining() > 890 * 2.0);
  for (int i = 1; i <= 200; ++i) left.update(110 + i, 5030 + i);
  CHECK(*left.remaining() == Approx(690).epsilon(1e-3));
  left.update(5, 6000);
  CHECK_FALSE(left.remaining());
  left.update(1000, 6001);
  CHECK(*left.remaining() == 0);
}

TEST_CASE("a log goes to the console by level and to the file with its time") {
  temporary_folder folder;
  auto pipe = make_pipe();
  console screen(pipe.in.get(), always);
  put(folder / "run.log", "earlier\n");
  {
    auto log = weir::logger::open(screen, folder / "run.log");
    REQUIRE(log);
    log->debug("not shown");
    log->info("started {} %s");
    log->warn("slow");
    log->error("bad");
    CHECK(pipe.written() == "started {} %s\nwarning: slow\nerror: bad\n");
  }
  const auto text = content(folder / "run.log");
  CHECK(text.starts_with("earlier\n2"));
  CHECK(text.find("Z info started {} %s\n") != std::string::npos);
  CHECK(text.find("Z warning slow\n") != std::string::npos);
  CHECK(text.find("Z error bad\n") != std::string::npos);
  CHECK(text.find("not shown") == std::string::npos);
}

TEST_CASE("a message takes one line of the log, whatever is in it") {
  CHECK(weir::one_line("\n\na\nb\r\n\tc\x1b[31m\x7F ü\n\r\n") == "a\\nb\\x0d\\n\tc\\x1b[31m\\x7f ü");
  CHECK(weir::one_line(std::string("\0", 1)) == "\\x00");
  CHECK(weir::one_line("\n").empty());
  temporary_folder folder;
  auto pipe = make_pipe();
  console screen(pipe.in.get(), always);
  auto log = weir::logger::open(screen, folder / "run.log");
  REQUIRE(log);
  log->warn("it failed:\nline 2\n2020-01-01T00:00:00.000Z info forged\n");
  CHECK(pipe.written() == "warning: it failed:\\nline 2\\n2020-01-01T00:00:00.000Z info forged\n");
  const auto text = content(folder / "run.log");
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
}

TEST_CASE("a log without a file, at debug level") {
  auto pipe = make_pipe();
  console screen(pipe.in.get(), always);
  auto log = weir::logger::open(screen, std::nullopt, weir::log_level::debug);
  REQUIRE(log);
  log->debug("x");
  CHECK(pipe.written() == "debug: x\n");
}

TEST_CASE("a log file that cannot be opened is an error, one that cannot be written is said once") {
  temporary_folder folder;
  auto pipe = make_pipe();
  console screen(pipe.in.get(), always);
  auto none = weir::logger::open(screen, folder / "none/run.log");
  REQUIRE_FALSE(none);
  CHECK(none.error().message.find("none/run.log") != std::string::npos);
  auto log = weir::logger::open(screen, "/dev/full");
  REQUIRE(log);
  log->info("a");
  log->info("b");
  const auto text = pipe.written();
  CHECK(text.starts_with("a\nerror: cannot write /dev/full: "));
  CHECK(text.ends_with("\nb\n"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);
}

#include "weir/runtime/console.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "weir/runtime/descriptor.hpp"

namespace weir {

namespace {

constexpr const char* erase_line = "\r\x1b[K";

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

bool can_redraw(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) == 1 && term != nullptr && *term != '\0' && std::strcmp(term, "dumb") != 0;
}

std::size_t width_of(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

/// Makes a text harmless; C1 controls are encoded as C2 80 to C2 9F.
std::string harmless(std::string text, bool one_line) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '\n' || c == '\t') {
      if (one_line) text[i] = ' ';
    } else if (c < 0x20 || c == 0x7F) {
      text[i] = '?';
    } else if (c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0) {
      text[i] = text[i + 1] = '?';
    }
  }
  return text;
}

/// The first `columns` characters of UTF-8.
std::string cut(const std::string& text, std::size_t columns) {
  std::size_t characters = 0;
  for (std::size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80 && ++characters > columns) return text.substr(0, i);
  return text;
}

const char* color_of(console::tone how) {
  static constexpr std::array codes{"", "\x1b[2m", "\x1b[33m", "\x1b[31m"};
  return codes[static_cast<std::size_t>(how)];
}

}  // namespace

console::console(int fd, console_settings settings)
    : fd_(fd), settings_(settings), live_(can_redraw(fd)), color_(live_ && !is_set("NO_COLOR")) {}

console::~console() { finish(); }

/// Cut one short of the width: a character in the last column would move some terminals to the next line.
std::string console::live_line() const { return cut(status_, width_of(fd_) - 1); }

std::string console::erase() const { return drawn_ ? erase_line : ""; }

bool console::due(std::chrono::milliseconds least) {
  const auto now = clock::now();
  if (last_ && now - *last_ < least) return false;
  last_ = now;
  return true;
}

void console::status(std::string text) {
  std::lock_guard lock(mutex_);
  status_ = harmless(std::move(text), true);
  if (!due(live_ ? settings_.redraw : settings_.plain_status)) return;
  write_all(fd_, live_ ? erase() + live_line() : status_ + "\n");
  drawn_ = live_;
}

void console::line(std::string text, tone how) {
  std::lock_guard lock(mutex_);
  if (text.ends_with('\n')) text.pop_back();
  text = harmless(std::move(text), false);
  if (color_ && how != tone::plain) text = color_of(how) + text + "\x1b[0m";
  text = erase() + text + "\n";
  if (live_ && !status_.empty()) {
    text += live_line();
    drawn_ = true;
    last_ = clock::now();
  }
  write_all(fd_, text);
}

void console::finish() {
  std::lock_guard lock(mutex_);
  write_all(fd_, erase());
  drawn_ = false;
  status_.clear();
  last_.reset();
}

std::string one_line(std::string_view text) {
  while (text.ends_with('\n') || text.ends_with('\r')) text.remove_suffix(1);
  while (text.starts_with('\n') || text.starts_with('\r')) text.remove_prefix(1);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '\n')
      out += "\\n";
    else if ((code < 0x20 && c != '\t') || code == 0x7F)
      out += {'\\', 'x', "0123456789abcdef"[code >> 4U], "0123456789abcdef"[code & 15U]};
    else
      out += c;
  }
  return out;
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds >= 1e9) return "over 30 years";
  const auto whole = std::llround(seconds);
  std::array<char, 32> text{};
  if (whole < 60)
    std::snprintf(text.data(), text.size(), "%llds", whole);
  else if (whole < 3600)
    std::snprintf(text.data(), text.size(), "%lldm %02llds", whole / 60, whole % 60);
  else if (whole < 86400)
    std::snprintf(text.data(), text.size(), "%lldh %02lldm", whole / 3600, whole / 60 % 60);
  else
    std::snprintf(text.data(), text.size(), "%lldd %02lldh", whole / 86400, whole / 3600 % 24);
  return text.data();
}

void eta::update(double done, double now) {
  const double work = done - done_;
  const double time = now - now_;
  done_ = done;
  now_ = now;
  if (!begun_ || work < 0 || time < 0) {
    begun_ = true;
    recent_work_ = recent_time_ = 0;
    return;
  }
  const double fade = std::exp(-time / memory_);
  recent_work_ = recent_work_ * fade + work;
  recent_time_ = recent_time_ * fade + time;
}

std::optional<double> eta::remaining() const {
  if (begun_ && done_ >= total_) return 0;
  if (recent_work_ <= 0 || recent_time_ <= 0) return std::nullopt;
  return (total_ - done_) * recent_time_ / recent_work_;
}

}  // namespace weir

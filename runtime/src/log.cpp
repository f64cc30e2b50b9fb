#include "weir/runtime/log.hpp"

#include <fcntl.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>

#include <cerrno>
#include <mutex>
#include <string_view>
#include <vector>

#include "weir/runtime/descriptor.hpp"
#include "weir/runtime/files.hpp"

namespace weir {

namespace {

class console_sink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit console_sink(console& screen) : screen_(screen) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string text(message.payload.data(), message.payload.size());
    switch (message.level) {
      case spdlog::level::debug:
        return screen_.line("debug: " + text, console::tone::faint);
      case spdlog::level::warn:
        return screen_.line("warning: " + text, console::tone::warning);
      case spdlog::level::err:
        return screen_.line("error: " + text, console::tone::error);
      default:
        return screen_.line(text);
    }
  }
  void flush_() override {}

  console& screen_;
};

/// A line a write, so that what was logged is in the file even if the process dies next.
class file_sink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  file_sink(std::filesystem::path path, descriptor file, console& screen)
      : base_sink(std::make_unique<spdlog::pattern_formatter>("%Y-%m-%dT%H:%M:%S.%eZ %l %v",
                                                              spdlog::pattern_time_type::utc, "\n")),
        path_(std::move(path)),
        file_(std::move(file)),
        screen_(screen) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    const int failed = write_all(file_.get(), std::string_view(text.data(), text.size()));
    if (failed != 0 && !reported_)
      screen_.line("error: " + os_error("cannot write " + path_.string(), failed).message, console::tone::error);
    reported_ = failed != 0;
  }
  void flush_() override {}

  std::filesystem::path path_;
  descriptor file_;
  console& screen_;
  bool reported_ = false;
};

spdlog::level::level_enum to_spdlog(log_level level) {
  switch (level) {
    case log_level::debug:
      return spdlog::level::debug;
    case log_level::info:
      return spdlog::level::info;
    case log_level::warn:
      return spdlog::level::warn;
    case log_level::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

struct logger::state {
  spdlog::logger log;
};

logger::logger(std::unique_ptr<state> made) : state_(std::move(made)) {}
logger::~logger() = default;
logger::logger(logger&&) noexcept = default;
logger& logger::operator=(logger&&) noexcept = default;

result<logger> logger::open(console& screen, const std::optional<std::filesystem::path>& file, log_level least) {
  std::vector<spdlog::sink_ptr> sinks{std::make_shared<console_sink>(screen)};
  if (file) {
    descriptor opened(::open(file->c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
    if (opened.get() < 0) return fail(os_error("cannot write " + file->string(), errno));
    sinks.push_back(std::make_shared<file_sink>(*file, std::move(opened), screen));
  }
  auto made = std::make_unique<state>(state{spdlog::logger("weir", sinks.begin(), sinks.end())});
  made->log.set_level(to_spdlog(least));
  return logger(std::move(made));
}

void logger::write(log_level level, const std::string& message) {
  state_->log.log(to_spdlog(level), spdlog::string_view_t(one_line(message)));
}

}  // namespace weir

#include "weir/runtime/metrics.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <string_view>

#include "weir/runtime/files.hpp"

namespace weir {

namespace {

using nlohmann::json;

/// A line's step, if it has one.
std::optional<double> step_of(const json& line) {
  const auto at = line.find("step");
  return at != line.end() && at->is_number() ? std::optional(at->get<double>()) : std::nullopt;
}

/// The part of a metrics file that a run goes on from.
result<std::string> kept_lines(std::string_view text, const std::string& path, std::optional<std::uint64_t> through) {
  std::string kept;
  bool keeping = true;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) break;  // torn: a whole line ends
    const auto line = text.substr(0, end + 1);
    text.remove_prefix(line.size());
    const auto value = json::parse(line, nullptr, false);
    if (!value.is_object()) {
      if (text.empty()) break;  // a crash of the machine can also leave a line of zeros
      return fail(errc::invalid_data, path + " line " + std::to_string(number) + " is no JSON object");
    }
    if (const auto step = step_of(value); step && through) keeping = *step <= static_cast<double>(*through);
    if (keeping) kept += line;
  }
  return kept;
}

std::int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

result<metrics_log> metrics_log::open(const std::filesystem::path& path, std::optional<std::uint64_t> keep_through_step) {
  struct stat about{};
  if (::stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode)) {
    auto text = read_file(path, std::uint64_t{1} << 36);
    if (!text) return fail(text.error());
    auto kept = kept_lines(*text, path.string(), keep_through_step);
    if (!kept) return fail(kept.error());
    if (*kept != *text)
      if (auto written = write_file_atomically(path, *kept); !written) return fail(written.error());
  }
  descriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (file.get() < 0) return fail(os_error("cannot write " + path.string(), errno));
  return metrics_log(path, std::move(file));
}

result<void> metrics_log::append(const nlohmann::ordered_json& line) {
  if (torn_at_) {
    if (::ftruncate(file_.get(), static_cast<off_t>(*torn_at_)) != 0)
      return fail(os_error("cannot take half a line back from " + path_.string(), errno));
    torn_at_.reset();
  }
  struct stat about{};
  if (::fstat(file_.get(), &about) != 0) return fail(os_error("cannot write " + path_.string(), errno));
  const auto text = line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const int failed = write_all(file_.get(), text);
  if (failed == 0) return {};
  if (S_ISREG(about.st_mode) && ::ftruncate(file_.get(), about.st_size) != 0)
    torn_at_ = static_cast<std::uint64_t>(about.st_size);
  return fail(os_error("cannot write " + path_.string(), failed));
}

template <class Value>
Value metrics_registry::find_or_add(const std::string& name, const char* kind) {
  std::lock_guard lock(mutex_);
  const auto [at, added] = index_.emplace(name, entries_.size());
  if (added) entries_.emplace_back(name, std::make_shared<typename Value::element_type>(0));
  if (const auto* value = std::get_if<Value>(&entries_[at->second].second)) return *value;
  throw std::logic_error("metric " + name + " is no " + kind);
}

metrics_registry::gauge_value metrics_registry::gauge(const std::string& name) {
  return find_or_add<gauge_value>(name, "gauge");
}

metrics_registry::counter_value metrics_registry::counter(const std::string& name) {
  return find_or_add<counter_value>(name, "counter");
}

std::vector<metrics_registry::sample> metrics_registry::snapshot() const {
  std::lock_guard lock(mutex_);
  std::vector<sample> samples;
  samples.reserve(entries_.size());
  for (const auto& [name, value] : entries_) {
    if (const auto* counter = std::get_if<counter_value>(&value)) samples.push_back({name, (*counter)->load()});
    else samples.push_back({name, std::get<gauge_value>(value)->load()});
  }
  return samples;
}

void busy_meter::enter() noexcept {
  const auto state = state_.load(std::memory_order_relaxed);
  if ((state & 1) == 0) state_.store(state - now_ns() * 2 + 1, std::memory_order_release);
}

void busy_meter::leave() noexcept {
  const auto state = state_.load(std::memory_order_relaxed);
  if ((state & 1) != 0) state_.store(state - 1 + now_ns() * 2, std::memory_order_release);
}

double busy_meter::seconds() const noexcept {
  // The clock must have been read while the state held: a stretch that ended meanwhile would count for too long.
  std::int64_t total = 0;
  for (auto state = state_.load();;) {
    total = (state & 1) != 0 ? state - 1 + now_ns() * 2 : state;
    const auto again = state_.load();
    if (again == state) break;
    state = again;
  }
  // `leave` may have read the clock before we did and not have stored yet: then the final total is a little less.
  auto reported = reported_.load();
  while (reported < total && !reported_.compare_exchange_weak(reported, total)) {
  }
  return static_cast<double>(std::max(reported, total)) * 0.5e-9;
}

}  // namespace weir

#include "spread.hpp"

#include <poll.h>
#include <sys/resource.h>
#include <xxhash.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "process.hpp"
#include "weir/runtime/random.hpp"
#include "weir/transport/load.hpp"

namespace weir::bench {

namespace {

using clock_ = std::chrono::steady_clock;
using namespace std::chrono_literals;
constexpr auto longest_round = 120s;

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

std::string hash_of(std::span<const std::byte> bytes) {
  const auto h = XXH3_128bits(bytes.data(), bytes.size());
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(h.high64),
                static_cast<unsigned long long>(h.low64));
  return text;
}

/// Writes the next version: all words others, or the given fraction moved by one unit in the last place.
void next_content(std::span<const std::byte> base, std::span<std::byte> next, double fraction, random_stream& random) {
  const auto count = base.size() / 2;
  const auto* from = reinterpret_cast<const std::uint16_t*>(base.data());
  auto* to = reinterpret_cast<std::uint16_t*>(next.data());
  if (fraction < 0) {
    const auto key = static_cast<std::uint16_t>(random.below(65535) + 1);
    for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<std::uint16_t>(from[i] ^ key);
    return;
  }
  std::memcpy(next.data(), base.data(), base.size());
  if (fraction == 0) return;
  for (double at = 0;;) {
    at += std::floor(std::log(1 - random.uniform()) / std::log1p(-fraction));
    if (at >= static_cast<double>(count)) return;
    auto& word = to[static_cast<std::size_t>(at)];
    word = static_cast<std::uint16_t>(random.below(2) == 0 ? word + 1 : word - 1);
    at += 1;
  }
}

class spread {
 public:
  explicit spread(const spread_settings& settings) : settings_(settings), random_(7) {}

  result<spread_outcome> run(const std::string& program) {
    broadcast_settings b;
    b.listen = settings_.listen;
    b.bytes = settings_.bytes;
    b.shape = settings_.shape;
    b.chunk = settings_.chunk;
    b.delta = settings_.delta_fraction < 0 ? delta_use::off : delta_use::on;
    b.share = settings_.share != sharing::wire;
    divide_for_delta(0, b.bytes, 2, 2U << 20, b.ranges);
    source_handlers h;
    h.on_released = [this](weight_version v, bool) {
      free_.push_back(used_.at(v));
      used_.erase(v);
    };
    h.on_delivered = [this](const broadcast_report& r) { delivered_ = r; };
    h.on_notice = [](const std::string& text) { std::fprintf(stderr, "source: %s\n", text.c_str()); };
    auto data = transport_of(settings_.transport, settings_.share, settings_.streams);
    if (!data) return fail(data.error());
    auto made = broadcast_source::make(data->make, b, h);
    if (!made) return fail(made.error());
    source_ = std::move(*made);
    for (int i = 0; i < 3; ++i) {
      auto memory = source_->allocate();
      if (!memory) return fail(memory.error());
      free_.push_back(*memory);
    }
    random_stream fill(3);
    auto first = free_.back()->bytes();
    for (std::size_t i = 0; i + 8 <= first.size(); i += 8) {
      const auto word = static_cast<std::uint64_t>(fill.uniform() * 0x1p53) * 0x9E3779B97F4A7C15ULL;
      std::memcpy(first.data() + i, &word, 8);
    }
    last_ = free_.back();
    if (auto started = start(program); !started) return fail(started.error());
    for (int round = 0; round < settings_.rounds + 1; ++round)
      if (auto done = one(static_cast<weight_version>(round)); !done) return fail(done.error());
    receivers_.clear();
    return outcome_;
  }

 private:
  result<void> start(const std::string& program) {
    for (std::size_t i = 0; i < settings_.receivers; ++i) {
      auto words = settings_.prefix ? settings_.prefix(i) : std::vector<std::string>{};
      const auto listen = settings_.receiver_listen ? settings_.receiver_listen(i) : std::string("127.0.0.1:0");
      for (const auto& w : {program, std::string("--receiver"), std::to_string(i), settings_.transport,
                            source_->address(), listen, std::to_string(static_cast<int>(settings_.share)),
                            std::to_string(settings_.bytes), std::to_string(settings_.streams)})
        words.push_back(w);
      receivers_.push_back(std::make_unique<process>(words));
      // One after the other: the order of the plan is that of arrival.
      auto ready = lines(i, i + 1);
      if (!ready) return fail(ready.error());
    }
    return wait([this] { return source_->receivers() == settings_.receivers; }, "the receivers to join");
  }

  template <class Condition>
  result<void> wait(Condition condition, const std::string& what) {
    const auto end = clock_::now() + longest_round;
    while (!condition()) {
      if (source_->progress() > 0) continue;
      if (clock_::now() > end) return fail(errc::timeout, "waited in vain for " + what);
      for (auto& r : receivers_)
        if (r->ended()) return fail(errc::unavailable, "a receiver ended while the benchmark waited for " + what);
      pollfd events{source_->event_fd(), POLLIN, 0};
      ::poll(&events, 1, static_cast<int>(std::min<std::int64_t>(20, source_->patience().count())));
    }
    return {};
  }

  /// One line of each of these receivers.
  result<std::vector<std::string>> lines(std::size_t from, std::size_t to) {
    std::vector<std::string> found(to - from);
    auto done = wait(
        [&] {
          bool all = true;
          for (auto i = from; i < to; ++i) {
            if (auto& line = found[i - from]; line.empty()) line = receivers_[i]->line().value_or("");
            all = all && !found[i - from].empty();
          }
          return all;
        },
        "a word of the receivers");
    if (!done) return fail(done.error());
    return found;
  }

  result<void> one(weight_version version) {
    auto released =
        wait([this] { return !free_.empty() && (free_.back() != last_ || free_.size() > 1); }, "memory to be released");
    if (!released) return released;
    if (free_.back() == last_) std::swap(free_.back(), free_.front());
    const auto memory = free_.back();
    free_.pop_back();
    next_content(std::as_const(*last_).bytes(), memory->bytes(), settings_.delta_fraction, random_);
    last_ = memory;
    used_[version] = memory;
    delivered_.reset();
    const auto cpu = cpu_seconds();
    const auto begin = clock_::now();
    source_->publish(version, memory);
    auto all = wait([this] { return delivered_.has_value(); }, "version " + std::to_string(version) + " to arrive");
    if (!all) return all;
    const auto seconds = std::chrono::duration<double>(clock_::now() - begin).count();
    auto used = cpu_seconds() - cpu;
    for (auto& r : receivers_) r->ask();
    auto said = lines(0, receivers_.size());
    if (!said) return fail(said.error());
    const auto hash = hash_of(std::as_const(*memory).bytes());
    std::uint64_t wire = 0;
    bool mapped = true;
    std::set<std::string> lanes;
    for (const auto& line : *said) {
      unsigned long long v = 0, bytes = 0;
      char sum[33] = {}, lane[65] = {};
      double theirs = 0;
      int delta = 0, in_place = 0;
      if (std::sscanf(line.c_str(), "%llu %32s %llu %lf %d %d %64[^\n]", &v, sum, &bytes, &theirs, &delta, &in_place,
                      lane) != 7 ||
          v != version)
        return fail(errc::invalid_data, "a receiver said: " + line);
      if (hash != sum)
        return fail(errc::invalid_data, "version " + std::to_string(version) + " is not the same at a receiver");
      if (version > 0 && settings_.delta_fraction >= 0 && delta == 0) return fail(errc::invalid_data, "no delta came");
      used += theirs;
      wire = std::max<std::uint64_t>(wire, bytes);
      mapped = mapped && in_place != 0;
      lanes.insert(lane);
    }
    ++outcome_.checked;
    if (version > 0 && (outcome_.seconds == 0 || seconds < outcome_.seconds)) {
      outcome_.seconds = seconds;
      outcome_.cpu_seconds = used;
      outcome_.wire_bytes = wire;
      outcome_.delta_bytes = delivered_->delta_bytes;
      outcome_.encode_seconds = delivered_->encode_seconds;
      outcome_.shape = delivered_->shape;
      outcome_.chunk = delivered_->chunk;
      outcome_.mapped = mapped;
      outcome_.lanes.clear();
      for (const auto& lane : lanes) outcome_.lanes += (outcome_.lanes.empty() ? "" : "; ") + lane;
    }
    return {};
  }

  spread_settings settings_;
  random_stream random_;
  std::unique_ptr<broadcast_source> source_;
  std::vector<std::shared_ptr<region>> free_;
  std::map<weight_version, std::shared_ptr<region>> used_;
  std::shared_ptr<region> last_;
  std::optional<broadcast_report> delivered_;
  std::vector<std::unique_ptr<process>> receivers_;
  spread_outcome outcome_;
};

}  // namespace

result<known_transport> transport_of(const std::string& name, sharing share, std::size_t streams) {
  transport_settings settings{{"shared_memory", share == sharing::wire ? "off" : "on"}};
  if (name == "tcp") settings["streams"] = std::to_string(streams);
  return load_transport(name, settings);
}

result<spread_outcome> measure_spread(const std::string& program, const spread_settings& settings) {
  return spread(settings).run(program);
}

}  // namespace weir::bench

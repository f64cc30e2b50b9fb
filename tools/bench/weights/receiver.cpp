// A receiver process: takes versions until its stdin ends, and, asked by a byte there, says what it got: checking takes
// time that others still measure in.
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstdio>
#include <thread>

#include "spread.hpp"

namespace weir::bench {

namespace {

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

}  // namespace

int run_receiver(const std::vector<std::string>& words) {
  if (words.size() != 7) return 2;
  const auto share = static_cast<sharing>(std::stoi(words[4]));
  receiver_settings settings;
  settings.name = words[0];
  settings.source = words[2];
  settings.listen = words[3];
  settings.map = share == sharing::map;
  settings.bytes = std::stoull(words[5]);
  std::optional<arrived_weights> news;
  receiver_handlers handlers;
  handlers.on_arrived = [&](const arrived_weights& w) { news = w; };
  handlers.on_notice = [&](const std::string& text) {
    std::fprintf(stderr, "receiver %s: %s\n", settings.name.c_str(), text.c_str());
  };
  auto data = transport_of(words[1], share, std::stoul(words[6]));
  if (!data) {
    std::fprintf(stderr, "receiver %s: %s\n", words[0].c_str(), data.error().message.c_str());
    return 1;
  }
  auto made = broadcast_receiver::make(data->make, settings, handlers);
  if (!made) {
    std::fprintf(stderr, "receiver %s: %s\n", words[0].c_str(), made.error().message.c_str());
    return 1;
  }
  auto& receiver = **made;
  auto cpu = cpu_seconds();
  bool asked = false;
  std::printf("ready\n");
  std::fflush(stdout);
  for (pollfd waits[2] = {{receiver.event_fd(), POLLIN, 0}, {0, POLLIN, 0}};;) {
    if (receiver.progress() > 0) continue;
    if (char word = 0; asked && news) {
      if (::read(0, &word, 1) != 1) return 0;
      asked = false;
      const auto w = *std::exchange(news, std::nullopt);
      const auto used = cpu_seconds() - cpu;
      const auto hash = XXH3_128bits(w.bytes.data(), w.bytes.size());
      std::printf("%llu %016llx%016llx %llu %.6f %d %d %.64s\n", static_cast<unsigned long long>(w.version),
                  static_cast<unsigned long long>(hash.high64), static_cast<unsigned long long>(hash.low64),
                  static_cast<unsigned long long>(w.wire_bytes), used, w.delta ? 1 : 0, w.mapped ? 1 : 0,
                  w.lane.c_str());
      std::fflush(stdout);
      receiver.adopted(w.version);
      cpu = cpu_seconds();
      continue;
    }
    ::poll(waits, 2, static_cast<int>(receiver.patience().count()));
    asked = (waits[1].revents & POLLIN) != 0;
    if ((waits[1].revents & POLLHUP) != 0 && !asked) return 0;
    if (asked && !news) std::this_thread::yield();
  }
}

}  // namespace weir::bench

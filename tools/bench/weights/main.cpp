// Weight sync: one source, receivers as processes of their own, every version checked bit for bit; beside it what the
// machine's memory does and, where they are installed, what others do.
#include <CLI/CLI.hpp>
#include <cstring>
#include <iostream>

#include "../bench.hpp"
#include "spread.hpp"

namespace {

using namespace weir::bench;

/// Seconds to copy `bytes` on one core, between as many buffers as a broadcast uses: from memory, not from the cache.
double memcpy_seconds(std::uint64_t bytes) {
  std::vector<std::vector<char>> from(3), to(3);
  for (auto* side : {&from, &to})
    for (auto& b : *side) b.assign(bytes, 1);
  int round = 0;
  return best_seconds(9, [&] {
    std::memcpy(to[round % 3].data(), from[round % 3].data(), bytes);
    ++round;
  });
}

struct options {
  spread_settings spread;
  std::string plan = "auto", share = "wire";
  bool json = false, check = false;
};

std::string name_of(const spread_settings& s, const std::string& share) {
  return s.transport + ", " + std::to_string(s.receivers) + (s.receivers == 1 ? " receiver, " : " receivers, ") + share;
}

int measure(report& r, const std::string& program, const spread_settings& s, const std::string& share) {
  auto outcome = measure_spread(program, s);
  const auto name = name_of(s, share);
  if (!outcome) {
    std::cerr << name << ": " << outcome.error().message << "\n";
    return 1;
  }
  const auto gigabytes = 1e-9 * static_cast<double>(s.bytes);
  const auto copying = memcpy_seconds(s.bytes);
  r.add(name + ": time", 1e3 * outcome->seconds, "ms");
  r.add(name + ": a receiver", gigabytes / outcome->seconds, "GB/s");
  r.add(name + ": all receivers", gigabytes * static_cast<double>(s.receivers) / outcome->seconds, "GB/s");
  r.add(name + ": memcpy's time / time", copying / outcome->seconds, "x");
  r.add(name + ": memcpy", gigabytes / copying, "GB/s");
  r.add(name + ": bytes on the wire, a receiver", 1e-6 * static_cast<double>(outcome->wire_bytes), "MB");
  r.add(name + ": CPU", outcome->cpu_seconds, "s");
  r.add(name + ": chunk", static_cast<double>(outcome->chunk) / (1 << 20), "MiB");
  if (outcome->delta_bytes > 0) {
    r.add(name + ": bytes / delta", static_cast<double>(s.bytes) / static_cast<double>(outcome->delta_bytes), "x");
    r.add(name + ": delta encode", 1e3 * outcome->encode_seconds, "ms");
  }
  r.add(name + ": versions, the same bits", outcome->checked, "");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--receiver") return run_receiver({argv + 2, argv + argc});
  options o;
  CLI::App app("Weight sync, measured: one source, receivers as processes of their own.");
  app.add_option("--transport", o.spread.transport, "tcp, ucx");
  app.add_option("--bytes", o.spread.bytes, "of a version")->transform(CLI::AsSizeValue(false));
  app.add_option("--receivers", o.spread.receivers);
  app.add_option("--plan", o.plan, "auto, direct, chain, tree");
  app.add_option("--share", o.share, "how a receiver on this machine gets the bytes: map, copy, wire")->check(CLI::IsMember({"map", "copy", "wire"}));
  app.add_option("--delta-fraction", o.spread.delta_fraction, "of the words that change: sends deltas");
  app.add_option("--chunk", o.spread.chunk, "bytes")->transform(CLI::AsSizeValue(false));
  app.add_option("--streams", o.spread.streams, "of tcp");
  app.add_option("--rounds", o.spread.rounds);
  app.add_flag("--json", o.json);
  app.add_flag("--check", o.check);
  CLI11_PARSE(app, argc, argv);
  auto shape = weir::read_shape(o.plan);
  if (!shape) {
    std::cerr << shape.error().message << "\n";
    return 2;
  }
  o.spread.shape = *shape;
  o.spread.share = o.share == "map" ? sharing::map : o.share == "copy" ? sharing::copy : sharing::wire;
  report r("weights", o.json, o.check);
  if (const int failed = measure(r, argv[0], o.spread, o.share); failed != 0) return failed;
  return r.finish();
}

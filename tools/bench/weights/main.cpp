// Weight sync: one source, receivers as processes of their own, every version checked bit for bit; beside it what the
// machine's memory does and, where they are installed, what others do. Without options: the figures that Weir has
// targets for. With any of --transport, --bytes, ...: that one broadcast.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <thread>

#include "../bench.hpp"
#include "caf_peer.hpp"
#include "peers.hpp"
#include "process.hpp"
#include "spread.hpp"

namespace {

using namespace weir::bench;

struct options {
  spread_settings spread;
  std::string plan = "auto", share = "wire", peer, rate = "1gbit";
  std::size_t hosts = 0;
  bool json = false, check = false, quick = false;
};

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

/// Hosts made of network namespaces for as long as it lives; the benchmark itself is on the first.
class network {
 public:
  network(const std::string& program, std::size_t count, const std::string& rate)
      : prefix_("weir" + std::to_string(::getpid()) + "h"),
        script_({(std::filesystem::path(program).parent_path() / "weights-peers" / "hosts").string(), prefix_,
                 std::to_string(count), rate}) {
    while (!up_ && !script_.ended()) {
      up_ = script_.line().has_value();
      ::usleep(10'000);
    }
  }
  network(const network&) = delete;
  network& operator=(const network&) = delete;
  bool up() const noexcept { return up_; }
  std::string name(std::size_t host) const { return prefix_ + std::to_string(host); }
  static std::string address(std::size_t host) { return "10.231.7." + std::to_string(host + 1) + ":0"; }

 private:
  std::string prefix_;
  process script_;  ///< takes them down when this program ends, however it does
  bool up_ = false;
};

std::string name_of(const spread_settings& s, const std::string& share) {
  return s.transport + ", " + std::to_string(s.receivers) + (s.receivers == 1 ? " receiver, " : " receivers, ") + share;
}

std::optional<spread_outcome> run(const std::string& name, const std::string& program, const spread_settings& s) {
  auto outcome = measure_spread(program, s);
  if (outcome) return *outcome;
  std::cerr << name << ": " << outcome.error().message << "\n";
  return {};
}

void add_all(report& r, const std::string& name, const spread_settings& s, const spread_outcome& outcome,
             double copying) {
  const auto gigabytes = 1e-9 * static_cast<double>(s.bytes);
  r.note(name + ": bytes come by " + outcome.lanes);
  r.add(name + ": time", 1e3 * outcome.seconds, "ms");
  r.add(name + ": a receiver", gigabytes / outcome.seconds, "GB/s");
  r.add(name + ": all receivers", gigabytes * static_cast<double>(s.receivers) / outcome.seconds, "GB/s");
  r.add(name + ": memcpy's time / time", copying / outcome.seconds, "x");
  r.add(name + ": memcpy", gigabytes / copying, "GB/s");
  r.add(name + ": bytes on the wire, a receiver", 1e-6 * static_cast<double>(outcome.wire_bytes), "MB");
  r.add(name + ": CPU", outcome.cpu_seconds, "s");
  r.add(name + ": chunk", static_cast<double>(outcome.chunk) / (1 << 20), "MiB");
  if (outcome.delta_bytes > 0) {
    r.add(name + ": bytes / delta", static_cast<double>(s.bytes) / static_cast<double>(outcome.delta_bytes), "x");
    r.add(name + ": delta encode", 1e3 * outcome.encode_seconds, "ms");
  }
  r.add(name + ": versions, the same bits", outcome.checked, "");
}

int one(report& r, const std::string& program, const options& o) {
  const auto name = name_of(o.spread, o.share);
  if (!o.peer.empty()) {
    auto seconds = measure_peer(o.peer, program, o.spread.bytes, o.spread.receivers, o.spread.rounds);
    if (!seconds) return std::cerr << o.peer << ": " << seconds.error().message << "\n", 1;
    r.add(o.peer + ": a receiver", 1e-9 * static_cast<double>(o.spread.bytes) / *seconds, "GB/s");
  }
  const auto outcome = run(name, program, o.spread);
  if (!outcome) return 1;
  add_all(r, name, o.spread, *outcome, memcpy_seconds(o.spread.bytes));
  return r.finish();
}

/// On hosts of their own: this process is started anew on the first of them.
int on_hosts(report& r, const std::string& program, const options& o) {
  network hosts(program, o.hosts + 1, o.rate);
  if (!hosts.up())
    return std::cerr
               << "no network namespaces with links of " << o.rate
               << ": that takes root, ip and tc (apt install iproute2), and a --rate that tc knows, such as 1gbit\n",
           1;
  ::setenv("UCX_TLS", "tcp", 0);  // they are one machine to UCX
  const auto spread = [&](std::size_t receivers) {
    std::vector<std::string> words{"ip",
                                   "netns",
                                   "exec",
                                   hosts.name(0),
                                   program,
                                   "--on",
                                   hosts.name(0).substr(0, hosts.name(0).size() - 1),
                                   "--transport",
                                   o.spread.transport,
                                   "--bytes",
                                   std::to_string(o.spread.bytes),
                                   "--receivers",
                                   std::to_string(receivers),
                                   "--plan",
                                   o.plan,
                                   "--rounds",
                                   std::to_string(o.spread.rounds)};
    if (o.spread.chunk > 0) words.insert(words.end(), {"--chunk", std::to_string(o.spread.chunk)});
    process there(words);
    for (;;) {
      const bool ended = there.ended();
      if (const auto line = there.line()) return std::strtod(line->c_str(), nullptr);
      if (ended) return 0.0;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  };
  const auto single = spread(1), all = spread(o.hosts);
  if (single == 0 || all == 0) return 1;
  const auto name = o.spread.transport + ", " + std::to_string(o.hosts) + " hosts at " + o.rate;
  r.add(name + ": one transfer over one link", 1e3 * single, "ms");
  r.add(name + ": to all", 1e3 * all, "ms");
  r.add(name + ": one transfer's time / time", single / all, "x", 1 / 1.15);
  return 0;
}

int suite(report& r, const std::string& program, const options& o) {
  spread_settings s;
  s.bytes = std::uint64_t{o.quick ? 64U : 256U} << 20;
  const auto gigabytes = 1e-9 * static_cast<double>(s.bytes);
  const bool ucx = transport_of("ucx", sharing::copy, 1).has_value();
  s.transport = ucx ? "ucx" : "tcp";
  const auto spread = [&](std::size_t receivers, sharing share, const std::string& what) {
    s.receivers = receivers;
    s.share = share;
    auto outcome = run(name_of(s, what), program, s);
    if (outcome) {
      r.note(name_of(s, what) + ": bytes come by " + outcome->lanes);
      r.add(name_of(s, what) + ": a receiver", gigabytes / outcome->seconds, "GB/s");
    }
    return outcome ? outcome->seconds : 1e9;
  };
  const auto peer = [&](const std::string& which, std::size_t receivers) -> std::optional<double> {
    auto seconds = measure_peer(which, program, s.bytes, receivers, 3);
    if (!seconds) return std::cerr << which << ": " << seconds.error().message << "\n", std::nullopt;
    r.add(which + ", " + std::to_string(receivers) +
              (receivers == 1 ? " receiver: a receiver" : " receivers: a receiver"),
          gigabytes / *seconds, "GB/s");
    return *seconds;
  };
  const auto copying = memcpy_seconds(s.bytes);
  r.add("memcpy", gigabytes / copying, "GB/s");
  const auto copied = spread(1, sharing::copy, "copied");
  const auto mapped = spread(1, sharing::map, "mapped");
  const auto mapped4 = spread(4, sharing::map, "mapped");
  const auto copied4 = spread(4, sharing::copy, "copied");
  r.add("1 receiver, copied: memcpy's time / time", copying / copied, "x", 0.9);
  r.add("1 receiver, mapped: memcpy's time / time", copying / mapped, "x", 1);
  r.add("4 receivers, mapped: time for one, copied / time", copied / mapped4, "x", 1 / 1.1);
  if (auto t = peer("gloo", 1)) r.add("1 receiver, copied: gloo's time / time", *t / copied, "x", 3);
  if (auto t = peer("caf", 1)) r.add("1 receiver, copied: CAF messages' time / time", *t / copied, "x", 15);
  if (auto t = peer("gloo", 4))
    r.add("4 receivers, copied: gloo's time / time", *t / copied4, "x"),
        r.add("4 receivers, mapped: gloo's time / time", *t / mapped4, "x", 4);
  if (auto t = peer("mpi", 4))
    r.add("4 receivers, copied: MPI's time / time", *t / copied4, "x"),
        r.add("4 receivers, mapped: MPI's time / time", *t / mapped4, "x", 2);
  s.transport = "tcp";
  const auto wire = spread(1, sharing::wire, "wire");
  if (auto rate = measure_iperf(s.streams)) {
    r.add("iperf3, " + std::to_string(s.streams) + " streams", 1e-9 * *rate, "GB/s");
    r.add("tcp, 1 receiver, wire: iperf3's time / time", static_cast<double>(s.bytes) / *rate / wire, "x", 0.9);
  } else {
    std::cerr << rate.error().message << "\n";
  }
  if (ucx) {
    s.transport = "ucx";
    ::setenv("UCX_TLS", "tcp", 0);
    for (const char* name : {"UCX_TCP_TX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE"}) ::setenv(name, "1m", 0);
    const auto over = spread(1, sharing::wire, "its tcp");
    if (auto rate = measure_ucx_perftest(s.bytes / 4)) {
      r.add("ucx_perftest, tcp", 1e-9 * *rate, "GB/s");
      r.add("ucx, 1 receiver, its tcp: ucx_perftest's time / time", static_cast<double>(s.bytes) / *rate / over, "x",
            0.9);
    } else {
      std::cerr << rate.error().message << "\n";
    }
  }
  if (::geteuid() == 0) {
    options h = o;
    h.hosts = 8;
    h.spread.rounds = 2;
    h.spread.bytes = s.bytes;
    if (on_hosts(r, program, h) != 0) std::cerr << "the broadcast to 8 hosts was not measured\n";
  }
  return r.finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--receiver") return run_receiver({argv + 2, argv + argc});
  if (argc > 1 && std::string(argv[1]) == "--caf-receiver") return run_caf_receiver();
  options o;
  std::string on;
  CLI::App app("Weight sync, measured: one source, receivers as processes of their own.");
  auto* one_group = app.add_option_group("one broadcast");
  one_group->option_defaults()->always_capture_default();
  const CLI::Validator known(
      [](const std::string& name) {
        auto found = transport_of(name, sharing::copy, 1);
        return found ? std::string() : found.error().message;
      },
      "", "transport");
  one_group->add_option("--transport", o.spread.transport, "tcp, ucx")->check(known);
  one_group->add_option("--bytes", o.spread.bytes, "of a version, such as 256MB")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{1024}, std::uint64_t{1} << 36))
      ->check(CLI::Validator(
          [](const std::string& text) {
            return std::stoull(text) % 2 == 0 ? "" : "an even number is needed, of 16-bit words";
          },
          ""));
  one_group->add_option("--receivers", o.spread.receivers)->check(CLI::Range(1, 1000));
  one_group->add_option("--plan", o.plan)->check(CLI::IsMember({"auto", "direct", "chain", "tree"}));
  one_group
      ->add_option("--share", o.share, "how a receiver on this machine gets the bytes (wire: as if it were elsewhere)")
      ->check(CLI::IsMember({"map", "copy", "wire"}));
  one_group->add_option("--delta-fraction", o.spread.delta_fraction, "of the 16-bit words that change: sends deltas")
      ->check(CLI::Range(0.0, 1.0))
      ->check(CLI::Validator(
          [](const std::string& text) {
            return text.find_first_of("nN") == std::string::npos ? "" : "no number: " + text;
          },
          ""));
  one_group->add_option("--chunk", o.spread.chunk, "bytes, at least 4KB; without it chosen")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{4096}, std::uint64_t{1} << 36));
  one_group->add_option("--streams", o.spread.streams, "of tcp")->check(CLI::Range(1, 64));
  one_group->add_option("--rounds", o.spread.rounds)->check(CLI::Range(1, 10000));
  one_group->add_option("--peer", o.peer, "measured beside it")->check(CLI::IsMember({"gloo", "mpi", "caf"}));
  one_group->add_option("--hosts", o.hosts, "so many hosts, network namespaces with links of their own (root)")
      ->check(CLI::Range(1, 64));
  one_group->add_option("--rate", o.rate, "of the links, as tc takes it");
  one_group->add_option("--on", on)->group("");
  app.name("weir bench weights");
  app.add_flag("--json", o.json, "for machines");
  app.add_flag("--check", o.check, "exit 1 and name the figures that fall short of their targets");
  app.add_flag("--quick", o.quick, "shorter, less exact");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  // What would have no effect is a mistake.
  const auto refuse = [](const std::string& why) { return std::cerr << "weir bench weights: " << why << "\n", 2; };
  if (o.spread.delta_fraction >= 0 && o.share != "wire")
    return refuse("--delta-fraction: deltas cross a wire: --share wire");
  if (one_group->get_option("--streams")->count() > 0 && o.spread.transport != "tcp")
    return refuse("--streams is of --transport tcp");
  if (one_group->get_option("--rate")->count() > 0 && o.hosts == 0) return refuse("--rate is of the links of --hosts");
  for (const char* other : {"--receivers", "--share", "--peer", "--delta-fraction"})
    if (o.hosts > 0 && one_group->get_option(other)->count() > 0)
      return refuse(std::string(other) + " does not go with --hosts: each has one receiver, over the wire");
  o.spread.shape = *weir::read_shape(o.plan);
  o.spread.share = o.share == "map" ? sharing::map : o.share == "copy" ? sharing::copy : sharing::wire;
  const auto program = std::filesystem::absolute(argv[0]).string();
  if (!on.empty()) {
    // Whoever started this holds its stdin open.
    std::thread([] {
      for (char c = 0; ::read(0, &c, 1) > 0;) {
      }
      std::_Exit(1);
    }).detach();
    o.spread.listen = network::address(0);
    o.spread.prefix = [on](std::size_t i) {
      return std::vector<std::string>{"ip", "netns", "exec", on + std::to_string(i + 1)};
    };
    o.spread.receiver_listen = [](std::size_t i) { return network::address(i + 1); };
    const auto outcome = run("on hosts", program, o.spread);
    if (outcome) std::cout << outcome->seconds << std::endl;
    return outcome ? 0 : 1;
  }
  report r("weights", o.json, o.check, o.quick);
  const bool any = one_group->count_all() > 0;
  if (o.hosts > 0) {
    const int failed = on_hosts(r, program, o);
    return failed != 0 ? failed : r.finish();
  }
  return any ? one(r, program, o) : suite(r, program, o);
}

#include "caf_peer.hpp"

#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>

#include "process.hpp"

namespace weir::bench {

namespace {

constexpr std::uint64_t message = std::uint64_t{8} << 20;

caf::behavior receiver(caf::event_based_actor*) {
  return {[](const std::vector<char>& bytes) { return static_cast<std::uint64_t>(bytes.size()); }};
}

}  // namespace

int run_caf_receiver() {
  caf::actor_system_config config;
  config.load<caf::io::middleman>();
  caf::actor_system system(config);
  auto actor = system.spawn(receiver);
  auto port = system.middleman().publish(actor, 0, "127.0.0.1");
  if (!port) return 1;
  std::printf("%u\n", *port);
  std::fflush(stdout);
  std::string word;
  std::getline(std::cin, word);  // until the other side ends
  caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  return 0;
}

result<double> measure_caf(const std::string& program, std::uint64_t bytes, int rounds) {
  process child({program, "--caf-receiver"});
  std::optional<std::string> port;
  while (!(port = child.line()))
    if (child.ended()) return fail(errc::unavailable, "the CAF receiver did not start");
  caf::actor_system_config config;
  config.load<caf::io::middleman>();
  caf::actor_system system(config);
  auto there = system.middleman().remote_actor("127.0.0.1", static_cast<std::uint16_t>(std::stoul(*port)));
  if (!there) return fail(errc::unavailable, "the CAF receiver cannot be reached");
  caf::scoped_actor self(system);
  const std::vector<char> payload(message, 'w');
  double best = 1e300;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t sent = 0; sent < bytes; sent += message) {
      bool whole = false;
      self->request(*there, caf::infinite, payload)
          .receive([&](std::uint64_t n) { whole = n == message; }, [](const caf::error&) {});
      if (!whole) return fail(errc::unavailable, "a CAF message did not arrive");
    }
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace weir::bench

#pragma once
// Two hosts with a cable between them: network namespaces of this test's own. For root, with iproute2.

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "process.hpp"

namespace weir::testing {

class two_hosts {
 public:
  two_hosts() {
    up_ = ::geteuid() == 0 && ip("netns add " + name(0)) && ip("netns add " + name(1)) &&
          ip("-n " + name(0) + " link add cable type veth peer name cable netns " + name(1));
    for (int i = 0; i < 2; ++i)
      up_ = up_ && ip("-n " + name(i) + " addr add " + address(i) + "/24 dev cable") &&
            ip("-n " + name(i) + " link set cable up") && ip("-n " + name(i) + " link set lo up");
    // The kernel says a little later that there is somebody at the other end; until then UCX passes over the device.
    for (int i = 0; up_ && i < 100 && !(running(0) && running(1)); ++i) ::usleep(20'000);
  }
  ~two_hosts() {
    for (int i = 0; i < 2; ++i) (void)ip("netns del " + name(i));
  }
  two_hosts(const two_hosts&) = delete;
  two_hosts& operator=(const two_hosts&) = delete;

  /// False where this machine allows none.
  bool up() const { return up_; }
  static std::string address(int host) { return "10.231.9." + std::to_string(host + 1); }

  /// No packet arrives any more, and nobody is told.
  bool cut() const { return ip("-n " + name(1) + " link set cable down"); }

  /// What a command line begins with that is to run on that host.
  std::vector<std::string> on(int host) const { return {"ip", "netns", "exec", name(host)}; }

 private:
  std::string name(int host) const { return "weir-test-" + std::to_string(::getpid()) + "-" + std::to_string(host); }
  bool running(int host) const {
    return std::system(("ip -n " + name(host) + " link show cable | grep -q 'state UP'").c_str()) == 0;
  }
  static bool ip(const std::string& arguments) {
    return std::system(("ip " + arguments + " >/dev/null 2>&1").c_str()) == 0;
  }
  bool up_ = false;
};

/// What any transport owes its user when a cable is pulled: connections end within a few times `silence_ms`, whether
/// something is under way or not, and not with the transfer's deadline.
inline void check_cut_cable(const std::string& name) {
  two_hosts hosts;
  if (!hosts.up()) {
    WARN("no network namespaces here: a cut cable was not tried");
    return;
  }
  peer_process server({"serve", name, "1000", "silence_ms=1500"}, {"WEIR_TEST_LISTEN=" + hosts.address(1) + ":0"},
                      hosts.on(1));
  const auto at = server.line();
  REQUIRE(at.size() == 2);
  peer_process client({"outlive", name, at[0], at[1], "1000", "silence_ms=1500"}, {}, hosts.on(0));
  REQUIRE(client.line() == std::vector<std::string>{"got"});
  REQUIRE(hosts.cut());
  const auto begin = std::chrono::steady_clock::now();
  CHECK(client.ask("again") == std::vector<std::string>{"unavailable"});
  CHECK(client.line() == std::vector<std::string>{"closed"});
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(8));
}

}  // namespace weir::testing

#include "doctor.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "weir/transport/load.hpp"

extern char** environ;

namespace weir::app {

namespace {

using namespace std::chrono_literals;
using clock_ = std::chrono::steady_clock;

enum class health { good, poor, bad };

struct finding {
  health state = health::good;
  std::string what, text;
  std::string advice = {};  ///< what to do, if there is something
};

struct measured {
  std::string lane;
  double bytes_per_second = 0;
  std::vector<std::string> notices;
};

/// Two transports of one maker, connected over loopback: the best of some gets of 64 MiB.
result<measured> try_out(const transport_maker& make) {
  constexpr std::size_t size = std::size_t{64} << 20;
  measured m;
  transport_handlers h;
  std::vector<std::shared_ptr<connection>> accepted;
  h.on_accepted = [&](std::shared_ptr<connection> c) { accepted.push_back(std::move(c)); };
  h.on_notice = [&](const std::string& text) { m.notices.push_back(text); };
  std::unique_ptr<transport> server, client;
  try {
    server = make(h);
    client = make({{}, {}, {}, h.on_notice});
  } catch (const std::exception& e) {
    return fail(errc::unsupported, e.what());
  }
  auto at = server->listen("127.0.0.1:0");
  if (!at) return fail(at.error());
  auto to = client->connect(*at, clock_::now() + 5s);
  if (!to) return fail(to.error());
  auto memory = server->allocate(size);
  if (!memory) return fail(memory.error());
  std::vector<std::byte> into(size);
  for (int i = 0; i < 4; ++i) {
    std::optional<result<void>> outcome;
    const auto begin = clock_::now();
    (*to)->get((*memory)->descriptor(), 0, into, begin + 10s, [&](result<void> r) { outcome = std::move(r); });
    while (!outcome)
      if (server->progress() + client->progress() == 0) std::this_thread::yield();
    if (!*outcome) return fail(outcome->error());
    const auto seconds = std::chrono::duration<double>(clock_::now() - begin).count();
    m.bytes_per_second = std::max(m.bytes_per_second, static_cast<double>(size) / seconds);
  }
  m.lane = (*to)->lane();
  accepted.clear();
  return m;
}

void look_at_transport(const std::string& name, std::vector<finding>& found) {
  for (const char* shared : {"on", "off"}) {
    auto known = load_transport(name, {{"shared_memory", shared}});
    const auto what =
        fmt::format("transport {}, {}", name, std::string(shared) == "on" ? "on one machine" : "its wire");
    if (!known) {
      const bool absent = known.error().code == errc::not_found;
      found.push_back(
          {absent ? health::poor : health::bad, what, known.error().message,
           absent && name == "ucx" ? "apt install libucx-dev and build again, or set WEIR_PLUGIN_PATH" : ""});
      return;
    }
    const auto outcome = try_out(known->make);
    if (!outcome) {
      found.push_back({health::bad, what, outcome.error().message});
      continue;
    }
    const auto with = known->built_with.empty() ? std::string() : " (" + known->built_with + ")";
    found.push_back({health::good, what,
                     fmt::format("bytes come by {}, {:.1f} GB/s to this process itself{}", outcome->lane,
                                 1e-9 * outcome->bytes_per_second, with)});
    if (std::string(shared) == "off") continue;
    for (const auto& text : outcome->notices) found.push_back({health::poor, what, text});
  }
}

void look_at_shared_memory(std::vector<finding>& found) {
  struct statvfs space {};
  if (::statvfs("/dev/shm", &space) != 0) {
    found.push_back({health::poor, "shared memory", "there is no /dev/shm: processes of this machine map nothing",
                     "mount a tmpfs there"});
    return;
  }
  const double free = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  const bool small = free < double(std::uint64_t{1} << 30);
  found.push_back(
      {small ? health::poor : health::good, "shared memory", fmt::format("/dev/shm has {:.1f} GB free", 1e-9 * free),
       small ? "give it three times a version's bytes: mount -o remount,size=..., or docker run --shm-size" : ""});
}

void look_at_rdma(std::vector<finding>& found) {
  std::string devices;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", none))
    devices += (devices.empty() ? "" : ", ") + entry.path().filename().string();
  if (devices.empty()) {
    found.push_back({health::good, "RDMA", "no device"});
    return;
  }
  rlimit locked{};
  const bool bounded = ::getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY;
  found.push_back({bounded ? health::poor : health::good, "RDMA", devices,
                   bounded
                       ? fmt::format("only {} bytes may be locked, and RDMA locks whole versions: ulimit -l unlimited",
                                     locked.rlim_cur)
                       : ""});
}

void look_at_environment(std::vector<finding>& found) {
  std::string set;
  for (char** e = environ; *e != nullptr; ++e)
    if (std::string_view(*e).starts_with("UCX_")) set += (set.empty() ? "" : " ") + std::string(*e);
  if (!set.empty()) found.push_back({health::good, "UCX's variables", set});
}

const char* word(health h) { return h == health::good ? "good" : h == health::poor ? "poor" : "bad"; }

}  // namespace

int doctor(bool json) {
  std::vector<finding> found;
  look_at_transport("tcp", found);
  look_at_transport("ucx", found);
  look_at_shared_memory(found);
  look_at_rdma(found);
  look_at_environment(found);
  auto list = nlohmann::ordered_json::array();
  for (const auto& f : found) {
    list.push_back({{"state", word(f.state)}, {"what", f.what}, {"text", f.text}, {"advice", f.advice}});
    if (!json) fmt::print("{:<5} {}: {}{}\n", word(f.state), f.what, f.text, f.advice.empty() ? "" : "; " + f.advice);
  }
  if (json) fmt::print("{}\n", list.dump(2));
  return std::any_of(found.begin(), found.end(), [](const finding& f) { return f.state == health::bad; }) ? 1 : 0;
}

}  // namespace weir::app

#include "peers.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "caf_peer.hpp"
#include "process.hpp"

namespace weir::bench {

namespace {

/// A shell command's output and exit status.
std::pair<std::string, int> output_of(const std::string& command) {
  std::string text;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {text, -1};
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  return {text, ::pclose(pipe)};
}

result<double> seconds_of(const std::string& command, const std::string& install) {
  const auto [text, status] = output_of(command);
  double seconds = 0;
  if (status != 0 || std::sscanf(text.c_str(), "%lf", &seconds) != 1)
    return fail(errc::not_found, "it did not run here: " + install);
  return seconds;
}

/// The first Python that has the module: Debian's own packages are seen by Debian's own interpreter only.
std::string python_with(const std::string& module) {
  return "$(for p in python3 /usr/bin/python3; do $p -c 'import " + module + "' 2>/dev/null && echo $p && break; done)";
}

std::string beside(const std::string& program, const std::string& file) {
  return (std::filesystem::path(program).parent_path() / "weights-peers" / file).string();
}

}  // namespace

result<double> measure_peer(const std::string& peer, const std::string& program, std::uint64_t bytes,
                            std::size_t receivers, int rounds) {
  const auto size = std::to_string(bytes), count = std::to_string(receivers), turns = std::to_string(rounds);
  if (peer == "caf") return measure_caf(program, bytes, rounds);
  if (peer == "gloo")
    return seconds_of(python_with("torch") + " '" + beside(program, "gloo.py") + "' " + size + " " + count + " " +
                          turns + " 2>/dev/null",
                      "apt install python3-torch");
  if (peer == "mpi")
    return seconds_of("mpirun --allow-run-as-root --oversubscribe -n " + std::to_string(receivers + 1) + " " +
                          python_with("mpi4py") + " '" + beside(program, "mpi.py") + "' " + size + " " + turns +
                          " 2>/dev/null",
                      "apt install openmpi-bin python3-mpi4py");
  return fail(errc::invalid_argument, "no peer is called \"" + peer + "\": there are gloo, mpi, caf");
}

result<double> measure_iperf(std::size_t streams) {
  const auto port = std::to_string(20000 + ::getpid() % 20000);
  process server({"iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port});
  for (int attempt = 0; attempt < 20; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const auto [text, status] =
        output_of("iperf3 -c 127.0.0.1 -p " + port + " -t 3 -P " + std::to_string(streams) + " --json 2>/dev/null");
    if (status != 0) continue;
    const auto report = nlohmann::json::parse(text, nullptr, false);
    if (report.is_discarded()) break;
    return report["end"]["sum_received"]["bits_per_second"].get<double>() / 8;
  }
  return fail(errc::not_found, "iperf3 did not run here: apt install iperf3");
}

result<double> measure_ucx_perftest(std::uint64_t bytes) {
  double best = 0;
  for (const char* test : {"tag_bw", "ucp_am_bw"}) {
    const auto port = std::to_string(20000 + ::getpid() % 20000 + (test[0] == 't' ? 1 : 2));
    process server({"ucx_perftest", "-p", port, "-f"});
    for (int attempt = 0; attempt < 20; ++attempt) {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      const auto [text, status] = output_of("ucx_perftest 127.0.0.1 -p " + port + " -t " + test + " -s " +
                                            std::to_string(bytes) + " -n 20 -w 3 -f -v 2>/dev/null");
      if (status != 0) continue;
      // The last line: iterations, latencies (3), bandwidth average and overall in MB/s, message rates.
      const auto end = text.find_last_not_of("\n ");
      const auto begin = text.rfind('\n', end);
      double average = 0;
      const auto line = text.substr(begin == std::string::npos ? 0 : begin + 1);
      if (std::sscanf(line.c_str(), "%*[^,],%*[^,],%*[^,],%*[^,],%lf", &average) == 1)
        best = std::max(best, average * 1048576);
      break;
    }
  }
  if (best > 0) return best;
  return fail(errc::not_found, "ucx_perftest did not run here: apt install ucx-utils");
}

}  // namespace weir::bench

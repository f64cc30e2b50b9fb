#include "bench.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "run.hpp"
#include "weir/runtime/files.hpp"

namespace weir::app {

namespace fs = std::filesystem;

int bench(const std::string& name, bool json, bool check, bool quick) {
  // Build trees and installed trees have the same places.
  std::error_code failed;
  const auto folder = fs::read_symlink("/proc/self/exe", failed).parent_path().parent_path() / "libexec" / "weir" / "bench";
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder, failed))
    if (entry.path().extension().empty() && ::access(entry.path().c_str(), X_OK) == 0 && entry.is_regular_file(failed))
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  std::string all;
  for (const auto& n : names) all += (all.empty() ? "" : ", ") + n;
  if (names.empty()) return report({errc::not_found, "no benchmarks in " + folder.string() + "; build with WEIR_BENCH=ON"});
  if (name.empty()) {
    std::printf("benchmarks: %s\n", all.c_str());
    return 0;
  }
  if (std::find(names.begin(), names.end(), name) == names.end())
    return report({errc::invalid_config, "no benchmark is named " + name + "; there are: " + all});
  auto program = (folder / name).string();
  std::vector<std::string> words{program};
  if (json) words.emplace_back("--json");
  if (check) words.emplace_back("--check");
  if (quick) words.emplace_back("--quick");
  std::vector<char*> pointers;
  for (auto& w : words) pointers.push_back(w.data());
  pointers.push_back(nullptr);
  ::execv(program.c_str(), pointers.data());
  return report(os_error("cannot run " + program, errno));
}

}  // namespace weir::app

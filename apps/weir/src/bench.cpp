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
#include "weir/runtime/names.hpp"

namespace weir::app {

namespace fs = std::filesystem;

int bench(const std::vector<std::string>& words) {
  // Build trees and installed trees have the same places.
  std::error_code failed;
  const auto folder =
      fs::read_symlink("/proc/self/exe", failed).parent_path().parent_path() / "libexec" / "weir" / "bench";
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder, failed))
    if (entry.path().extension().empty() && ::access(entry.path().c_str(), X_OK) == 0 && entry.is_regular_file(failed))
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  std::string all;
  for (const auto& n : names) all += (all.empty() ? "" : ", ") + n;
  if (names.empty())
    return report({errc::not_found, "no benchmarks in " + folder.string() + "; build with WEIR_BENCH=ON"});
  if (words.empty()) {
    std::printf("benchmarks: %s\n", all.c_str());
    return 0;
  }
  const auto& name = words.front();
  if (name.starts_with("-"))
    return refuse({errc::invalid_argument, "weir bench has no option " + name.substr(0, name.find('=')) +
                                               " before a benchmark's name; there are: " + all});
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    const auto meant = nearest_name(name, names);
    return refuse({errc::invalid_argument, "no benchmark is named " + name +
                                               (meant ? "; did you mean " + *meant + "?" : "; there are: " + all)});
  }
  auto program = (folder / name).string();
  std::vector<std::string> line{program};
  line.insert(line.end(), words.begin() + 1, words.end());
  std::vector<char*> pointers;
  for (auto& w : line) pointers.push_back(w.data());
  pointers.push_back(nullptr);
  ::execv(program.c_str(), pointers.data());
  return report(os_error("cannot run " + program, errno));
}

}  // namespace weir::app

#pragma once
// What every benchmark program shares: its options, timing, and figures with targets.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weir::bench {

/// The shortest of `rounds` runs of `work`, in seconds: what the machine can do when nothing disturbs it.
template <class Work>
double best_seconds(int rounds, Work work) {
  double best = 1e300;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

/// A benchmark's command line (--json, --check, --quick) and its figures.
class report {
 public:
  /// Ends the program at a word that it does not know: before minutes of measuring, not after.
  report(std::string name, int argc, char** argv) : name_(std::move(name)) {
    for (int i = 1; i < argc; ++i) {
      const std::string_view word = argv[i];
      if (word == "--json")
        json_ = true;
      else if (word == "--check")
        check_ = true;
      else if (word == "--quick")
        quick_ = true;
      else
        usage(word);
    }
  }

  /// For a program with more options than these.
  report(std::string name, bool json, bool check, bool quick)
      : name_(std::move(name)), json_(json), check_(check), quick_(quick) {}

  bool quick() const noexcept { return quick_; }

  /// `at_least` is the figure's target, if it has one.
  void add(const std::string& what, double value, const std::string& unit, std::optional<double> at_least = {}) {
    const bool ok = !at_least || value >= *at_least;
    const auto target = at_least ? nlohmann::ordered_json(*at_least) : nlohmann::ordered_json();
    figures_.push_back({{"name", what}, {"value", value}, {"unit", unit}, {"at_least", target}, {"ok", ok}});
    if (!ok) short_ += (short_.empty() ? "" : ", ") + what;
    if (json_) return;
    std::printf("%-52s %10.4g %-6s", what.c_str(), value, unit.c_str());
    if (at_least) std::printf(" >= %-6g %s", *at_least, ok ? "" : "short of the target");
    std::printf("\n");
    std::fflush(stdout);
  }

  /// What the figures hold for.
  void note(const std::string& text) {
    notes_.push_back(text);
    if (json_) return;
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }

  /// The exit code: of the figures, and of whether they could be printed.
  int finish() const {
    const int code = conclude();
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    std::perror((name_ + ": cannot write the figures").c_str());
    return code != 0 ? code : 1;
  }

 private:
  [[noreturn]] void usage(std::string_view word) const {
    const bool help = word == "--help" || word == "-h";
    std::fprintf(help ? stdout : stderr, "%s%s%s\n",
                 help ? "" : (name_ + ": unknown option " + std::string(word) + "; ").c_str(),
                 help ? ("weir bench " + name_ + " takes ").c_str() : "there are ",
                 "--json (for machines), --check (exit 1 when figures fall short of their targets) and --quick "
                 "(shorter, less exact)");
    std::exit(help ? 0 : 2);
  }
  int conclude() const {
    if (json_)
      std::printf(
          "%s\n",
          nlohmann::ordered_json{{"benchmark", name_}, {"figures", figures_}, {"notes", notes_}}.dump().c_str());
    if (check_ && !short_.empty()) std::fprintf(stderr, "short of their targets: %s\n", short_.c_str());
    return check_ && !short_.empty() ? 1 : 0;
  }

  std::string name_, short_;
  bool json_ = false, check_ = false, quick_ = false;
  nlohmann::ordered_json figures_ = nlohmann::ordered_json::array(), notes_ = nlohmann::ordered_json::array();
};

}  // namespace weir::bench

#pragma once
// UCX's variables: what this transport sets where the environment says nothing, and what peers have to agree on.

#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>

namespace weir::ucx {

struct variable {
  const char* name;   ///< without UCX_
  const char* value;  ///< where the environment says nothing; null: UCX's own
  bool shared;        ///< peers need the same: UCX ends the process when lanes of two sides differ
};

inline constexpr variable variables[]{
    // Memory of this machine serves endpoints that handle errors too: we see a peer's end by the socket beside UCX.
    {"MM_ERROR_HANDLING", "y", true},
    {"TCP_TX_SEG_SIZE", "1m", false},
    {"TCP_RX_SEG_SIZE", "1m", false},
    // The same socket is the check that a peer lives. UCX's own would wake every worker each 20 s, and has its faults
    // around the end of endpoints (ucx #7864, #11217).
    {"KEEPALIVE_INTERVAL", "inf", false},
    {"TLS", nullptr, true},
    {"POSIX_ERROR_HANDLING", nullptr, true},
    {"SYSV_ERROR_HANDLING", nullptr, true},
    {"MAX_EAGER_LANES", nullptr, true},
    {"MAX_RNDV_LANES", nullptr, true},
    {"MAX_EAGER_RAILS", nullptr, true},
    {"MAX_RNDV_RAILS", nullptr, true},
    {"UNIFIED_MODE", nullptr, true},
};
/// Crashes in versions before 1.16 when a peer dies.
inline constexpr variable protocols_before_1_16{"PROTO_ENABLE", "n", true};

inline const char* environment_value(const variable& v) {
  return std::getenv((std::string("UCX_") + v.name).c_str());  // NOLINT(concurrency-mt-unsafe)
}

/// What peers have to agree on, a line each.
inline std::string shared_environment() {
  std::string text;
  const auto add = [&](const variable& v) {
    const char* said = environment_value(v);
    if (said == nullptr) said = v.value;
    if (v.shared) text += std::string("UCX_") + v.name + "=" + (said == nullptr ? "" : said) + "\n";
  };
  for (const auto& v : variables) add(v);
  add(protocols_before_1_16);
  return text;
}

/// The first line in which they differ, as a sentence; nothing if they are the same.
inline std::optional<std::string> environment_difference(const std::string& ours, const std::string& theirs) {
  std::istringstream a(ours), b(theirs);
  for (std::string x, y; static_cast<bool>(std::getline(a, x)) | static_cast<bool>(std::getline(b, y));
       x.clear(), y.clear())
    if (x != y)
      return "UCX's settings differ: \"" + x + "\" on this side, \"" + y + "\" on the other: set the same on both";
  return std::nullopt;
}

}  // namespace weir::ucx

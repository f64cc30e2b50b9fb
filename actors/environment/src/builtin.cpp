// The environments that come with Weir, by the names that a config gives.
#include "weir/environment/countdown.hpp"
#include "weir/environment/environment.hpp"

namespace weir {

environment_registry builtin_environments() {
  environment_registry known;
  known.add("countdown", countdown());
  return known;
}

std::vector<std::string> environment_registry::names() const {
  std::vector<std::string> all;
  for (const auto& [name, type] : types_) all.push_back(name);
  return all;
}

}  // namespace weir

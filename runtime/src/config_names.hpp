#pragma once
// What a config error says about names.

#include <string>
#include <vector>

#include "weir/runtime/config.hpp"

namespace weir::detail {

/// "lr, loss, sampling".
std::string names_of(const std::vector<config_field>& fields);

/// The problem of field `name`, found in the object `prefix` (dotted; empty: the root) whose fields are `level`. Names
/// the nearest right name, there or elsewhere among `all`; if none is near, the names that the level has.
std::string unknown_field(const std::vector<config_field>& all, const std::vector<config_field>& level,
                          const std::string& prefix, const std::string& name);

}  // namespace weir::detail

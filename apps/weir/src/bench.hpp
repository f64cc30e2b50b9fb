#pragma once
#include <string>

namespace weir::app {

/// Runs the benchmark `name` of this build or installation in this process's place. Returns only if it cannot, or to list
/// what there is.
int bench(const std::string& name, bool json, bool check, bool quick);

}  // namespace weir::app

#pragma once
#include <string>
#include <vector>

namespace weir::app {

/// Runs the benchmark that the first of `words` names, of this build or installation, in this process's place; the
/// other words are its. Returns only if it cannot, or to list what there is.
int bench(const std::vector<std::string>& words);

}  // namespace weir::app

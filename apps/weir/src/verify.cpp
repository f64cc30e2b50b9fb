#include "verify.hpp"

#include <fmt/format.h>

#include "run.hpp"
#include "weir/policy/threads.hpp"
#include "weir/policy/verify.hpp"
#include "weir/tokenizer/verify.hpp"
#include "weir/trainer/verify.hpp"

namespace weir::app {

int show_verification(const result<verification>& outcome) {
  if (!outcome) return report(outcome.error());
  for (const auto& c : outcome->checks) {
    fmt::print("{}  {:<32} difference {:.3g} (allowed {:.3g})\n", c.ok ? "ok  " : "FAIL", c.name, c.difference,
               c.tolerance);
    if (!c.ok) fmt::print("      first at {}\n", c.where);
  }
  for (const auto& note : outcome->notes) fmt::print("note  {}\n", note);
  if (outcome->checks.empty()) fmt::print("FAIL  nothing was checked\n");
  return outcome->ok() ? 0 : 1;
}

result<verification> verify_policy_files(const std::string& directory) {
  set_intra_op_threads(1);
  return verify_policy(directory);
}

result<verification> verify_tokenizer_files(const std::string& tokenizer_json, const std::string& golden_json) {
  return verify_tokenizer(tokenizer_json, golden_json);
}

result<verification> verify_objectives_file(const std::string& golden_json) {
  set_intra_op_threads(1);
  return verify_objectives(golden_json);
}

}  // namespace weir::app

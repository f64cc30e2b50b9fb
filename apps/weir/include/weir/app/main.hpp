#pragma once
// The program `weir` as a function, so that a program with environments of one's own is three lines long.

#include "weir/environment/environment.hpp"

namespace weir::app {

/// Runs the command line with the environments of `known`. Returns the exit code: 0, 1 (failed, or a check fell short),
/// 2 (a wrong command line or config), 130 (Ctrl-C) or 143 (SIGTERM). Sets signal handlers while a command runs: call
/// it from `main`.
int main(int argc, char** argv, const environment_registry& known);

}  // namespace weir::app

#pragma once
// What a run writes while it goes on: its directory, its metrics, its log, and what a person sees.

#include <memory>
#include <string>

#include "weir/runtime/console.hpp"
#include "weir/runtime/log.hpp"
#include "weir/runtime/metrics.hpp"
#include "weir/runtime/run_directory.hpp"

namespace weir::app {

struct run_files {
  run_directory directory;
  metrics_log metrics;
  console& screen;
  logger& log;
};

}  // namespace weir::app

#pragma once
// Settings of actors from the config's sections; shared by the graphs that train and that evaluate.

#include <algorithm>
#include <chrono>

#include "setup.hpp"
#include "weir/rollout/rollout_engine.hpp"
#include "weir/sandbox/sandbox_pool.hpp"
#include "weir/weights/layout_plan.hpp"

namespace weir::app {

inline dtype published_type(const app_config& c) {
  return c.weights.dtype == "f32" ? dtype::f32 : c.weights.dtype == "bf16" ? dtype::bf16 : dtype::f16;
}

/// Versions as they are published: what is trained, in weights.dtype. Error: invalid_config, names trainer.tensors.
inline result<manifest> published_layout(const app_config& c, const manifest& model) {
  if (c.trainer.tensors.empty()) return retyped(model, published_type(c));
  auto some = select_tensors(model, c.trainer.tensors);
  if (!some) return fail(some.error().code, "trainer.tensors: " + some.error().message);
  return retyped(*some, published_type(c));
}

inline sandbox_pool_settings pool_settings_of(const run_parts& parts, const sampling_params& sampling) {
  const auto& c = parts.config;
  sandbox_pool_settings s;
  s.sandboxes = c.environment.sandboxes;
  s.group_size = c.trainer.group_size;
  s.max_turns = c.environment.max_turns;
  s.retries = c.environment.retries;
  s.episode_timeout =
      std::chrono::milliseconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(c.environment.timeout_s * 1000)));
  s.sampling = sampling;
  s.seed = c.seed;
  return s;
}

inline rollout_engine_settings engine_settings_of(const app_config& c) {
  rollout_engine_settings s;
  s.slots = c.rollout.slots;
  s.max_context = c.rollout.max_context;
  s.prefill_tokens = c.rollout.prefill_tokens;
  s.threads = c.rollout.threads;
  s.device = c.model.device;
  return s;
}

}  // namespace weir::app

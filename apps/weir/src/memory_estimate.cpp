#include "memory_estimate.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "graph_parts.hpp"
#include "weight_path.hpp"

namespace weir::app {

namespace {

constexpr double float_bytes = 4;  // parameters, cache and activations are fp32, whatever the file's type

double of_a_token_cached(const causal_lm_config& m) {
  return 2 * float_bytes * static_cast<double>(m.layers) * static_cast<double>(m.kv_heads) *
         static_cast<double>(m.head_dim);
}

/// What autograd keeps of a token: in each layer the inputs of its products and norms; then logits and their gradient.
double of_a_token_trained(const causal_lm_config& m) {
  const auto heads = static_cast<double>(m.heads * m.head_dim), kv = static_cast<double>(m.kv_heads * m.head_dim);
  const auto hidden = static_cast<double>(m.hidden_size);
  const double layer = 4 * hidden + (heads + 2 * kv) + 2 * heads + kv + 3 * static_cast<double>(m.intermediate_size);
  return float_bytes * (static_cast<double>(m.layers) * layer + 2 * hidden + 2 * static_cast<double>(m.vocab_size));
}

/// Tokens of a micro-batch, if sequences are as long as they may be.
double most_trained_at_once(const app_config& c) {
  const auto context = static_cast<double>(c.rollout.max_context);
  const double step = static_cast<double>(c.trainer.batch_groups) * static_cast<double>(c.trainer.group_size) /
                      static_cast<double>(std::min<std::uint64_t>(c.trainer.minibatches, c.trainer.batch_groups));
  const double warm_start = c.warm_start.steps > 0 ? static_cast<double>(c.warm_start.batch) : 0;
  return std::min(std::max(static_cast<double>(c.trainer.micro_batch_tokens), context),
                  std::max(step, warm_start) * context);
}

double sum(const std::vector<memory_need>& needs, bool firm_only) {
  double all = 0;
  for (const auto& n : needs)
    if (n.on_host && (n.firm || !firm_only)) all += n.bytes;
  return all;
}

}  // namespace

std::vector<memory_need> memory_needs(const run_parts& parts, bool training) {
  const auto& c = parts.config;
  const auto& m = parts.model;
  const bool host = c.model.device == "cpu";
  const double model = static_cast<double>(causal_lm::layout(m).bytes);
  const auto of_model = fmt::format("the {} of model.path in fp32", format_bytes(model));
  const double engines = training ? c.rollout.engines : 1;
  std::vector<memory_need> needs;
  needs.push_back({"keys and values",
                   engines * static_cast<double>(c.rollout.slots) * static_cast<double>(c.rollout.max_context) *
                       of_a_token_cached(m),
                   fmt::format("rollout.engines {} x rollout.slots {} x rollout.max_context {} x {:.0f} bytes a token "
                               "({} layers, {} key-value heads of {}, "
                               "keys and values, fp32)",
                               engines, c.rollout.slots, c.rollout.max_context, of_a_token_cached(m), m.layers,
                               m.kv_heads, m.head_dim),
                   true, host});
  // One version is computed with while the next is laid out.
  const int laid_out = training ? 2 : 1;
  needs.push_back({"engines' weights", laid_out * engines * model,
                   fmt::format("{} x rollout.engines {} x {}", laid_out, engines, of_model), true, host});
  const bool sent = training && c.weights.transport != "inproc";
  const double snapshots = !training ? 1 : sent ? snapshots_at_trainer + engines + 2 : engines + 2;
  const bool some = training && !c.trainer.tensors.empty();
  const auto form = some ? published_layout(c, causal_lm::layout(m)) : retyped(causal_lm::layout(m), published_type(c));
  const double snapshot = form ? static_cast<double>(form->bytes) : model;
  needs.push_back(
      {"weight snapshots", snapshots * snapshot,
       fmt::format("{}{} x {} in {} (weights.dtype{})",
                   sent ? fmt::format("{} at the trainer, rollout.engines + 2 at the engines (weights.transport): ",
                                      snapshots_at_trainer)
                   : training ? "rollout.engines + 2: "
                              : "",
                   snapshots, format_bytes(snapshot), c.weights.dtype, some ? ", trainer.tensors" : ""),
       true, true});
  if (some || published_type(c) != dtype::f32)
    needs.push_back({"engines' copies in fp32", 2 * engines * model,
                     fmt::format("2 x rollout.engines {} x {}, since {}", engines, of_model,
                                 some ? "trainer.tensors are some" : "weights.dtype is " + c.weights.dtype),
                     true, host});
  if (some) needs.push_back({"what does not learn", model, "once, " + of_model, true, host});
  if (!training) {
    needs.push_back({"the model", model, of_model, true, host});
    return needs;
  }
  // A step that makes several optimizer steps keeps what it goes back to if it fails.
  const bool undo = c.trainer.passes > 1 || c.trainer.minibatches > 1;
  const double copies = undo ? 7 : 4;
  needs.push_back({"trainer", copies * model,
                   fmt::format("{} x {}: parameters, gradient, AdamW's two moments{}", copies, of_model,
                               undo ? ", and what to undo a step by (trainer.passes, trainer.minibatches)" : ""),
                   true, host});
  needs.push_back({"activations, at most", most_trained_at_once(c) * of_a_token_trained(m),
                   fmt::format("trainer.micro_batch_tokens {}: {:.0f} tokens x {:.0f} bytes",
                               c.trainer.micro_batch_tokens, most_trained_at_once(c), of_a_token_trained(m)),
                   false, host});
  return needs;
}

std::string describe(const std::vector<memory_need>& needs, const std::optional<memory_limits>& limits) {
  auto text = fmt::format("memory, estimated: {}", format_bytes(sum(needs, true)));
  if (const auto all = sum(needs, false); all > sum(needs, true)) text += ", at most " + format_bytes(all);
  if (limits)
    text += fmt::format("; there are {} ({}), {} of them free", format_bytes(static_cast<double>(limits->most)),
                        limits->set_by, format_bytes(static_cast<double>(limits->available)));
  for (const auto& n : needs)
    text += fmt::format("\n  {:<20}  {:>8}  {}{}", n.what, format_bytes(n.bytes), n.from,
                        n.on_host ? "" : ", on model.device: not counted above");
  return text;
}

result<std::optional<std::string>> check_memory(const std::vector<memory_need>& needs,
                                                const std::optional<memory_limits>& limits) {
  if (!limits) return std::optional<std::string>();
  const auto most = static_cast<double>(limits->most), available = static_cast<double>(limits->available);
  if (sum(needs, true) > most)
    return fail(errc::invalid_config,
                "the config needs more memory than there is: lower the largest of these. " + describe(needs, limits));
  if (sum(needs, false) <= std::min(most, available)) return std::optional<std::string>();
  return std::optional("the config may need more memory than there is now, and be ended by the system for it. " +
                       describe(needs, limits));
}

}  // namespace weir::app

#pragma once
// The actor that owns a policy replica and generates: continuous batching over a KV cache. Sequences join and leave
// between two decode steps, and so do weights: those under way go on with the new ones, each token carrying its
// version.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "weir/actors/interfaces.hpp"
#include "weir/policy/causal_lm.hpp"
#include "weir/rollout/sampler.hpp"
#include "weir/weights/layout_plan.hpp"
#include "weir/weights/snapshots.hpp"

namespace weir {

struct rollout_engine_settings {
  std::int64_t slots = 256;            ///< sequences at once
  std::int64_t max_context = 1024;     ///< tokens of a sequence, prompt and produced; at most the model's max_positions
  std::int64_t prefill_tokens = 4096;  ///< prompt tokens taken in between two decode steps; longer prompts take several
  std::size_t most_waiting = 65536;    ///< requests that wait for a slot; more are refused with `unavailable`
  int threads = 1;                     ///< intra-op threads
  std::string device = "cpu";
};

/// Counts since the start, told after each step, on the engine's thread.
struct rollout_activity {
  double busy_seconds = 0;          ///< in which at least one sequence was under way
  std::uint64_t steps = 0;          ///< decode steps
  std::uint64_t tokens = 0;         ///< produced
  std::uint64_t prompt_tokens = 0;  ///< prefilled; of requests with one context, once
  std::uint64_t sequences = 0;      ///< finished
  std::uint64_t active = 0;
  std::uint64_t waiting = 0;
  weight_version version = 0;
};

/// Spawn with a thread of its own. What it produces for a request is a function of the request and of the weights at
/// each step, whatever else is in the batch. Requests that arrive one after the other with the same context, as a
/// group's episodes do, are prefilled once. A sequence whose numbers are no longer finite fails alone.
class rollout_engine : public node<rollout_engine_actor> {
 public:
  /// Requests wait until the first weights are there. Versions may have another layout or type than the engine computes
  /// in, which is causal_lm::layout in fp32; with `base`, the model that they change, only some of its tensors. Throws
  /// std::invalid_argument if the settings don't fit the model.
  rollout_engine(caf::actor_config& config, causal_lm_config model, rollout_engine_settings settings,
                 std::shared_ptr<const weight_shelf> weights,
                 std::function<void(const rollout_activity&)> observer = {},
                 std::shared_ptr<const causal_lm> base = nullptr);
  ~rollout_engine() override;

  rollout_engine_actor::behavior_type make_behavior() override;
  void on_exit() override;

 private:
  struct sequence {
    generate_request request;
    generation output;
    promise<generation> answer;
    std::int64_t slot = 0;
    std::int64_t leader = -1;  ///< the slot where the same context is being prefilled; -1: in its own
    std::int64_t cached = 0;   ///< tokens in the cache
  };

  struct adoption {
    weight_version version = 0;
    promise<weights_adopted> answer;
  };
  struct replica;
  struct helper;

  promise<generation> accept(const generate_request& request);
  promise<weights_adopted> adopt(const adopt_weights& news);
  result<weight_content> readable(weight_version version);
  void prepare_next();
  void take_prepared();
  result<void> understand(std::shared_ptr<const manifest> layout);
  void lay_out(const weight_content& version);
  void step();
  void schedule();
  void admit();
  void choose_chunks();
  void draw(const float* logits, std::int64_t width);
  void follow(std::int64_t leader, std::int64_t length, std::span<const float> logits);
  void advance(sequence& s, std::span<const float> logits);
  bool produce(sequence& s, std::span<const float> logits);
  void observe();
  bool idle() const noexcept { return active_.empty() && waiting_.empty(); }

  causal_lm_config config_;
  rollout_engine_settings settings_;
  std::shared_ptr<const weight_shelf> weights_;
  std::function<void(const rollout_activity&)> observer_;
  rollout_activity activity_;

  std::unique_ptr<replica> now_;
  std::deque<adoption> adoptions_;  ///< the first is being laid out
  // While it is, the helper's thread alone uses these.
  std::unique_ptr<replica> next_;
  std::optional<error> failure_;
  std::shared_ptr<const manifest> understood_;  ///< the layout that `plan_` is from
  std::optional<layout_plan> plan_;
  std::shared_ptr<const causal_lm> base_;
  std::unique_ptr<helper> helper_;
  std::optional<kv_cache> cache_;
  sampler sampler_;
  std::deque<sequence> waiting_;
  std::vector<sequence> active_;
  std::vector<std::int64_t> free_slots_;
  std::vector<sequence_chunk> chunks_;
  std::vector<std::size_t> chunk_owner_;  ///< index into active_
  bool scheduled_ = false;
  std::vector<promise<drained>> drains_;
};

}  // namespace weir

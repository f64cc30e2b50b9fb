#pragma once
// The packaged app's configuration. Every field stands here once, with its default, its bounds and what it means; the
// text of `weir train --fields`, the errors, and the resolved config that a run leaves all come from here.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weir/runtime/config.hpp"

namespace weir::app {

struct model_section {
  std::string path;
  bool random_init = false;
  std::string device = "cpu";
};

struct environment_section {
  std::string name;
  nlohmann::json settings = nlohmann::json::object();
  std::uint32_t max_turns = 1;
  double timeout_s = 600;
  std::uint32_t retries = 1;
  std::uint32_t sandboxes = 512;
  std::uint32_t most_dropped_groups = 64;
};

struct tasks_section {
  std::string train;
  std::string eval;
  std::uint64_t eval_count = 512;
  bool shuffle = true;
};

struct warm_start_section {
  std::uint64_t steps = 0;
  std::uint64_t batch = 128;
  double lr = 2e-3;
  std::uint64_t lr_warmup_steps = 50;
};

struct rollout_section {
  std::uint32_t engines = 1;
  std::int64_t slots = 256;
  std::int64_t max_context = 1024;
  std::int64_t prefill_tokens = 4096;
  std::int32_t threads = 1;
  double temperature = 1;
  double top_p = 1;
  std::int32_t top_k = 0;
  std::int32_t max_tokens = 256;
  std::vector<std::string> stop;
};

struct trainer_section {
  std::uint64_t steps = 100;
  std::uint64_t batch_groups = 64;
  std::uint32_t group_size = 8;
  std::uint64_t max_staleness = 2;
  std::string objective = "decoupled_ppo";
  std::string advantages = "grpo";
  double advantage_eps = 1e-4;
  std::string aggregation = "token_mean";
  double clip_low = 0.2;
  double clip_high = 0.28;
  double dual_clip = 3;
  double is_cap = 2;
  double is_low = 0.5;
  double is_high = 2;
  double entropy_bonus = 0;
  std::uint32_t passes = 1;
  std::uint32_t minibatches = 1;
  std::int64_t micro_batch_tokens = 16384;
  bool skip_zero_advantage = true;
  double lr = 1e-6;
  std::uint64_t lr_warmup_steps = 0;
  std::string lr_decay = "constant";
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.01;
  double clip_norm = 1;
  std::uint32_t most_failed_steps = 10;
  std::int32_t threads = 1;
  std::vector<std::string> tensors;
};

struct weights_section {
  std::string transport = "inproc";
  nlohmann::json options = nlohmann::json::object();
  std::string dtype = "f32";
  std::string delta = "auto";
  std::string plan = "auto";
};

struct checkpoints_section {
  std::uint64_t every = 0;
  std::uint32_t keep = 2;
};

struct evaluation_section {
  bool at_start = true;
  bool at_end = true;
};

struct app_config {
  std::uint64_t seed = 0;
  std::string run_dir;
  model_section model;
  environment_section environment;
  tasks_section tasks;
  warm_start_section warm_start;
  rollout_section rollout;
  trainer_section trainer;
  weights_section weights;
  checkpoints_section checkpoints;
  evaluation_section evaluation;
};

template <class Fields>
void describe(Fields& f, model_section& c) {
  f("path", c.path, "HF model directory: config.json, tokenizer.json, and safetensors files unless random_init",
    not_empty());
  f("random_init", c.random_init, "begin with random parameters; the directory then needs none");
  f("device", c.device, "libtorch device of trainer and engines", not_empty());
}

template <class Fields>
void describe(Fields& f, environment_section& c) {
  f("name", c.name, "a registered environment", not_empty());
  f("settings", c.settings, "the environment's own settings");
  f("max_turns", c.max_turns, "turns after which an episode is truncated", at_least(1));
  f("timeout_s", c.timeout_s, "seconds an episode may take", above(0.0), at_most(1e6));
  f("retries", c.retries, "times a failed episode is started again before its group is dropped", at_most(100));
  f("sandboxes", c.sandboxes, "episodes at once", at_least(1), at_most(1'000'000));
  f("most_dropped_groups", c.most_dropped_groups, "groups in a row whose every episode may fail before the run ends",
    at_least(1));
}

template <class Fields>
void describe(Fields& f, tasks_section& c) {
  f("train", c.train, "JSONL file, one task a line; empty: the environment makes its own");
  f("eval", c.eval, "JSONL file of held-back tasks; empty: the environment's, or none");
  f("eval_count", c.eval_count, "tasks of an evaluation at most; what the environment holds back", at_most(1'000'000));
  f("shuffle", c.shuffle, "a new order each epoch");
}

template <class Fields>
void describe(Fields& f, warm_start_section& c) {
  f("steps", c.steps, "supervised steps on the environment's demonstrations before reinforcement learning");
  f("batch", c.batch, "demonstrations a step", at_least(1), at_most(1'000'000));
  f("lr", c.lr, "learning rate", at_least(0.0));
  f("lr_warmup_steps", c.lr_warmup_steps, "steps over which it rises");
}

template <class Fields>
void describe(Fields& f, rollout_section& c) {
  f("engines", c.engines, "rollout engines, each a thread with a replica of the model", at_least(1), at_most(1024));
  f("slots", c.slots, "sequences at once in an engine", at_least(1), at_most(1'000'000));
  f("max_context", c.max_context, "tokens of a sequence, prompt and answers together", at_least(2));
  f("prefill_tokens", c.prefill_tokens, "prompt tokens taken in between two decode steps", at_least(1));
  f("threads", c.threads, "intra-op threads of an engine", at_least(1), at_most(1024));
  f("temperature", c.temperature, "of sampling", above(0.0));
  f("top_p", c.top_p, "nucleus sampling: probability kept", above(0.0), at_most(1.0));
  f("top_k", c.top_k, "tokens kept; 0: all", at_least(0));
  f("max_tokens", c.max_tokens, "tokens a turn", at_least(1));
  f("stop", c.stop, "tokens, as text, that end a turn besides the model's own end tokens");
}

template <class Fields>
void describe(Fields& f, trainer_section& c) {
  f("steps", c.steps, "training steps in all", at_least(1));
  f("batch_groups", c.batch_groups, "tasks a step", at_least(1), at_most(1'000'000));
  f("group_size", c.group_size, "episodes a task, whose rewards are compared: one alone teaches nothing", at_least(2),
    at_most(1'000'000));
  f("max_staleness", c.max_staleness,
    "versions by which a token may be older than the step that uses it; 0: synchronous", at_most(1'000'000));
  f("objective", c.objective, "loss a token",
    one_of({"decoupled_ppo", "ppo_clip", "ppo_dual_clip", "truncated_is", "masked_is", "gspo", "cispo", "reinforce"}));
  f("advantages", c.advantages, "how rewards of a group become advantages",
    one_of({"grpo", "grpo_population", "dr_grpo", "rloo"}));
  f("advantage_eps", c.advantage_eps, "added to the standard deviation", at_least(0.0));
  f("aggregation", c.aggregation, "how token losses become one",
    one_of({"token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum",
            "sequence_mean_token_sum_over_max_length"}));
  f("clip_low", c.clip_low, "ratio clipped below 1 - this", at_least(0.0), at_most(1.0));
  f("clip_high", c.clip_high, "ratio clipped above 1 + this", at_least(0.0));
  f("dual_clip", c.dual_clip, "bound of ppo_dual_clip", above(1.0));
  f("is_cap", c.is_cap, "bound of truncated_is", above(0.0));
  f("is_low", c.is_low, "lower bound of masked_is", at_least(0.0));
  f("is_high", c.is_high, "upper bound of masked_is", above(0.0));
  f("entropy_bonus", c.entropy_bonus, "times the mean entropy", at_least(0.0));
  f("passes", c.passes, "over each batch", at_least(1), at_most(1000));
  f("minibatches", c.minibatches, "optimizer steps a pass", at_least(1), at_most(1'000'000));
  f("micro_batch_tokens", c.micro_batch_tokens, "tokens whose activations are held at once", at_least(1));
  f("skip_zero_advantage", c.skip_zero_advantage, "leave out sequences that have no gradient");
  f("lr", c.lr, "AdamW's learning rate", at_least(0.0));
  f("lr_warmup_steps", c.lr_warmup_steps, "steps over which it rises");
  f("lr_decay", c.lr_decay, "what it does then, until the last step", one_of({"constant", "linear", "cosine"}));
  f("beta1", c.beta1, "AdamW", at_least(0.0), below(1.0));
  f("beta2", c.beta2, "AdamW", at_least(0.0), below(1.0));
  f("eps", c.eps, "AdamW", above(0.0));
  f("weight_decay", c.weight_decay, "AdamW", at_least(0.0));
  f("clip_norm", c.clip_norm, "gradient norm clipped at; 0: not", at_least(0.0));
  f("most_failed_steps", c.most_failed_steps, "steps in a row that may fail (NaN) before the run ends", at_least(1));
  f("threads", c.threads, "intra-op threads of the trainer", at_least(1), at_most(1024));
  f("tensors", c.tensors,
    "names of the tensors that learn, and that versions hold; a * stands for any characters; empty: all");
}

template <class Fields>
void describe(Fields& f, weights_section& c) {
  f("transport", c.transport,
    "how new weights reach the engines: inproc (they read the trainer's memory), tcp, or a plugin's name", not_empty());
  f("options", c.options, "the transport's own settings");
  f("dtype", c.dtype, "of published weights; trainer and engines compute in fp32", one_of({"f32", "bf16", "f16"}));
  f("delta", c.delta,
    "send what changed instead of the whole: where that is faster (auto), whenever the base is there (on), never (off)",
    one_of({"auto", "on", "off"}));
  f("plan", c.plan, "who reads from whom, where there are several nodes", one_of({"auto", "direct", "chain", "tree"}));
}

template <class Fields>
void describe(Fields& f, checkpoints_section& c) {
  f("every", c.every, "steps between checkpoints; 0: only the last one");
  f("keep", c.keep, "newest checkpoints kept", at_least(1));
}

template <class Fields>
void describe(Fields& f, evaluation_section& c) {
  f("at_start", c.at_start, "greedy, on the held-back tasks, before reinforcement learning");
  f("at_end", c.at_end, "the same after it");
}

template <class Fields>
void describe(Fields& f, app_config& c) {
  f("seed", c.seed, "of everything random in the run");
  f("run_dir", c.run_dir, "where the run leaves its files; empty: runs/NAME-N, with the config's name");
  f("model", c.model, "the policy");
  f("environment", c.environment, "what the model acts in");
  f("tasks", c.tasks, "what it is asked");
  f("warm_start", c.warm_start, "supervised learning before");
  f("rollout", c.rollout, "generation");
  f("trainer", c.trainer, "reinforcement learning");
  f("weights", c.weights, "weight sync from trainer to engines");
  f("checkpoints", c.checkpoints, "what is kept");
  f("evaluation", c.evaluation, "greedy accuracy on held-back tasks");
}

}  // namespace weir::app

#include "setup.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "graph_parts.hpp"
#include "weight_path.hpp"
#include "weir/environment/guarded.hpp"
#include "weir/runtime/files.hpp"
#include "weir/runtime/random.hpp"

namespace weir::app {

namespace fs = std::filesystem;

namespace {

/// Makes the path fields of a parsed config absolute, so that a run can be resumed from anywhere.
void make_absolute(nlohmann::json& root, const fs::path& base) {
  for (auto [section, field] : {std::pair{"model", "path"}, {"tasks", "train"}, {"tasks", "eval"}}) {
    if (!root.is_object() || !root.contains(section) || !root[section].is_object()) continue;
    auto& s = root[section];
    if (!s.contains(field) || !s[field].is_string()) continue;
    const auto text = s[field].get<std::string>();
    if (!text.empty()) s[field] = (base / text).lexically_normal().string();  // an absolute one stays
  }
}

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

result<void> load_text(run_parts& parts) {
  auto text = tokenizer::load(parts.config.model.path);
  if (!text) return fail(text.error());
  parts.text = std::make_shared<const tokenizer>(std::move(*text));
  if (static_cast<std::int64_t>(parts.text->size()) > parts.model.vocab_size)
    return fail(errc::invalid_config, parts.config.model.path + ": the tokenizer has " +
                                          std::to_string(parts.text->size()) + " tokens, the model's vocab_size is " +
                                          std::to_string(parts.model.vocab_size));
  return {};
}

result<void> resolve_sampling(run_parts& parts) {
  const auto& c = parts.config.rollout;
  auto& s = parts.sampling;
  s.temperature = static_cast<float>(c.temperature);
  s.top_p = static_cast<float>(c.top_p);
  s.top_k = c.top_k;
  s.max_tokens = c.max_tokens;
  s.stop_tokens = parts.model.eos;
  if (s.stop_tokens.empty() && parts.text->eos()) s.stop_tokens.push_back(*parts.text->eos());
  for (const auto& text : c.stop) {
    const auto id = parts.text->id_of(text);
    if (!id)
      return fail(errc::invalid_config,
                  "rollout.stop: \"" + text + "\" is no single token of " + parts.config.model.path);
    s.stop_tokens.push_back(*id);
  }
  std::sort(s.stop_tokens.begin(), s.stop_tokens.end());
  s.stop_tokens.erase(std::unique(s.stop_tokens.begin(), s.stop_tokens.end()), s.stop_tokens.end());
  return {};
}

result<void> resolve_environment(run_parts& parts, const environment_registry& known) {
  const auto& c = parts.config.environment;
  const auto* type = known.find(c.name);
  if (type == nullptr)
    return fail(errc::invalid_config,
                "environment.name: \"" + c.name + "\" is not registered; known: " + joined(known.names()));
  parts.environment = *type;
  auto made = guarded("maker", [&] { return type->make(c.settings); });
  if (!made) return fail(made.error());
  if (!*made)
    return fail(errc::invalid_config, "environment.name: the maker of " + c.name + " returned no environment");
  return {};
}

/// Tasks that the environment made, as a task file would have them.
result<std::vector<std::string>> written(const std::vector<nlohmann::json>& tasks, const char* which) {
  std::vector<std::string> lines;
  for (const auto& task : tasks) try {
      lines.push_back(task.dump());
    } catch (const nlohmann::json::exception&) {
      return fail(errc::invalid_data, "the environment's generate_tasks: a text in " + std::string(which) + "[" +
                                          std::to_string(lines.size()) + "] is no UTF-8");
    }
  return lines;
}

result<fs::path> working_directory() {
  std::error_code failed;
  auto path = fs::current_path(failed);
  if (failed == std::errc::no_such_file_or_directory)
    return fail(errc::not_found, "the current directory was deleted: change to one that exists");
  if (failed) return fail(os_error("the current directory cannot be told", failed.value()));
  return path;
}

result<std::vector<std::string>> read_tasks(const std::string& path, const char* field) {
  auto lines = read_jsonl_file(path);
  if (!lines) return fail(lines.error().code, std::string(field) + ": " + lines.error().message);
  if (lines->empty()) return fail(errc::invalid_data, std::string(field) + ": " + path + " has no task");
  return lines;
}

result<void> resolve_tasks(run_parts& parts) {
  const auto& c = parts.config.tasks;
  if (c.train.empty()) {
    if (!parts.environment.generate_tasks)
      return fail(errc::invalid_config, "tasks.train: the environment " + parts.config.environment.name +
                                            " makes no tasks of its own; name a JSONL file, one task a line");
    auto split = guarded("generate_tasks", [&] {
      return parts.environment.generate_tasks(parts.config.environment.settings, c.eval_count, parts.config.seed);
    });
    if (!split) return fail(split.error());
    auto train = written(split->train, "train"), eval = written(split->eval, "eval");
    if (!train || !eval) return fail(train ? eval.error() : train.error());
    parts.train_tasks = std::move(*train);
    parts.eval_tasks = std::move(*eval);
  } else {
    auto lines = read_tasks(c.train, "tasks.train");
    if (!lines) return fail(lines.error());
    parts.train_tasks = std::move(*lines);
  }
  if (!c.eval.empty()) {
    auto lines = read_tasks(c.eval, "tasks.eval");
    if (!lines) return fail(lines.error());
    parts.eval_tasks = std::move(*lines);
  }
  if (parts.eval_tasks.size() > c.eval_count) parts.eval_tasks.resize(c.eval_count);
  return {};
}

result<void> check_together(const run_parts& parts) {
  const auto& c = parts.config;
  if (c.rollout.max_context > parts.model.max_positions)
    return fail(errc::invalid_config, "rollout.max_context: " + std::to_string(c.rollout.max_context) +
                                          " is more than the model's max_position_embeddings, " +
                                          std::to_string(parts.model.max_positions));
  if (c.trainer.minibatches > c.trainer.batch_groups)
    return fail(errc::invalid_config, "trainer.minibatches: " + std::to_string(c.trainer.minibatches) +
                                          " is more than trainer.batch_groups, " +
                                          std::to_string(c.trainer.batch_groups));
  if (c.trainer.objective == "gspo" && c.trainer.aggregation != "sequence_mean_token_mean")
    return fail(errc::invalid_config,
                "trainer.aggregation: gspo needs sequence_mean_token_mean, found " + c.trainer.aggregation);
  if (auto published = published_layout(c, causal_lm::layout(parts.model)); !published) return fail(published.error());
  if (auto transport = weight_transport(c); !transport) return fail(transport.error());
  return {};
}

}  // namespace

result<app_config> read_app_config(const fs::path& file, const std::vector<std::string>& overrides) {
  auto here = working_directory();
  if (!here) return fail(here.error());
  auto root = read_json_file(file);
  if (!root) return fail(root.error());
  make_absolute(*root, (*here / file).parent_path());
  for (const auto& text : overrides)
    if (auto applied = apply_override(*root, text); !applied) return fail(applied.error());
  make_absolute(*root, *here);
  return read_config<app_config>(*root, file.string());
}

result<run_parts> prepare(const app_config& config, const environment_registry& known) {
  run_parts parts;
  parts.config = config;
  if (auto device = check_device(config.model.device); !device)
    return fail(device.error().code, "model.device: " + device.error().message);
  auto model = read_causal_lm_config(config.model.path);
  if (!model) return fail(model.error().code, "model.path: " + model.error().message);
  parts.model = std::move(*model);
  if (auto done = load_text(parts); !done) return fail(done.error());
  if (auto done = resolve_sampling(parts); !done) return fail(done.error());
  if (auto done = resolve_environment(parts, known); !done) return fail(done.error());
  if (auto done = resolve_tasks(parts); !done) return fail(done.error());
  if (auto done = check_together(parts); !done) return fail(done.error());
  return parts;
}

namespace {

/// A text for a message, in quotes, cut between characters.
std::string quoted(const std::string& text) {
  constexpr std::size_t most = 120;
  auto end = std::min(most, text.size());
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return nlohmann::json(text.substr(0, end)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
         (end < text.size() ? "..." : "");
}

}  // namespace

std::optional<std::string> news_of_lost_text(const run_parts& parts, bool eval) {
  const auto first = parts.lost->news();
  if (!first) return std::nullopt;
  const auto& file = eval ? parts.config.tasks.eval : parts.config.tasks.train;
  const std::string origin =
      file.empty() ? "made by the environment itself" : (eval ? "tasks.eval, " : "tasks.train, ") + file;
  return "text that has no token is left out; the tokenizer of " + parts.config.model.path +
         " must know the symbols of the tasks. First, " + quoted(first->text) + " lost " + quoted(first->lost) + ": " +
         first->place.substr(0, 200) + " (" + origin + ")";
}

std::optional<std::string> all_lost_text(const run_parts& parts) {
  const auto all = parts.lost->so_far();
  if (all.texts < 2) return std::nullopt;
  return std::to_string(all.texts) + " texts lost " + std::to_string(all.bytes) + " bytes that have no token";
}

result<causal_lm> first_model(const run_parts& parts) {
  const auto& c = parts.config.model;
  if (c.random_init) return causal_lm::random(parts.model, derive_seed(parts.config.seed, "model"), c.device);
  auto loaded = causal_lm::load(c.path, c.device);
  if (!loaded && loaded.error().code == errc::not_found)
    return fail(errc::not_found, loaded.error().message + " (model.random_init=true begins with random parameters)");
  return loaded;
}

}  // namespace weir::app

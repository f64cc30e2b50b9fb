#include "checkpoint.hpp"

#include <system_error>

#include "weir/runtime/files.hpp"
#include "weir/runtime/json_view.hpp"

namespace weir::app {

namespace fs = std::filesystem;

namespace {

constexpr const char* state_format = "weir-run-1";
constexpr const char* learner_file = "learner.safetensors";
constexpr const char* state_file = "state.json";

/// What a model directory has besides config and weights, such as the tokenizer, so that the checkpoint is one too.
result<void> copy_companions(const fs::path& from, const fs::path& to) {
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(from, failed)) {
    const auto name = entry.path().filename().string();
    const bool text = entry.path().extension() == ".json" || entry.path().extension() == ".txt" ||
                      entry.path().extension() == ".jinja";
    std::error_code none;
    if (!entry.is_regular_file(none) || !text || name == state_file || name.starts_with("golden") ||
        name.ends_with(".index.json") || fs::exists(to / name, none))
      continue;
    fs::copy_file(entry.path(), to / name, failed);
    if (failed) return fail(os_error("cannot copy " + entry.path().string() + " to " + to.string(), failed.value()));
  }
  if (failed) return fail(os_error("cannot read the folder " + from.string(), failed.value()));
  return {};
}

}  // namespace

result<checkpoint> save_checkpoint(run_directory& run, const run_parts& parts, const learner& trained,
                                   const run_state& state) {
  auto begun = run.begin_checkpoint(state.version);
  if (!begun) return fail(begun.error());
  const auto& folder = begun->path();
  if (auto saved = trained.model().save(folder); !saved) return fail(saved.error());
  if (auto saved = copy_companions(parts.config.model.path, folder); !saved) return fail(saved.error());
  if (auto saved = trained.save_state(folder / learner_file); !saved) return fail(saved.error());
  const nlohmann::ordered_json written = {{"format", state_format},
                                          {"warm_start_done", state.warm_start_done},
                                          {"warm_start_steps", state.warm_start_steps},
                                          {"version", state.version},
                                          {"groups_done_below", state.data.below()},
                                          {"groups_done_above", state.data.above()}};
  if (auto saved = write_file_atomically(folder / state_file, written.dump(2) + "\n"); !saved)
    return fail(saved.error());
  return begun->commit(parts.config.checkpoints.keep);
}

result<run_state> load_checkpoint(const fs::path& folder, learner& trained) {
  const auto path = folder / state_file;
  auto read = read_json_file(path);
  if (!read) return fail(read.error());
  run_state state;
  try {
    const json_view kept(*read, path.string());
    if (kept.at("format").text() != state_format)
      kept.at("format").refuse("\"" + std::string(state_format) + "\", which this program reads");
    state.warm_start_done = kept.at("warm_start_done").flag();
    state.warm_start_steps = kept.at("warm_start_steps").natural();
    state.version = kept.at("version").natural();
    std::vector<std::uint64_t> above;
    const auto listed = kept.at("groups_done_above");
    for (std::size_t i = 0; i < listed.size(); ++i) above.push_back(listed.at(i).natural());
    state.data = data_position::from(kept.at("groups_done_below").natural(), above);
  } catch (const json_view::mismatch& e) {
    return fail(errc::invalid_data, e.what());
  }
  if (auto loaded = trained.load_state(folder / learner_file); !loaded) return fail(loaded.error());
  return state;
}

}  // namespace weir::app

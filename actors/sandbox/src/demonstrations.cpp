#include "weir/sandbox/demonstrations.hpp"

#include <utility>

#include "weir/environment/guarded.hpp"
#include "weir/runtime/random.hpp"
#include "weir/sandbox/episode_recorder.hpp"

namespace weir {

demonstration_source::demonstration_source(std::unique_ptr<environment> place, std::shared_ptr<const tokenizer> text,
                                           std::shared_ptr<task_stream> tasks, std::uint64_t seed,
                                           std::int64_t most_tokens, std::shared_ptr<lost_text> lost)
    : environment_(std::move(place)),
      text_(std::move(text)),
      tasks_(std::move(tasks)),
      seed_(seed),
      most_tokens_(most_tokens),
      lost_(lost ? std::move(lost) : std::make_shared<lost_text>()) {}

result<std::vector<trajectory>> demonstration_source::take(std::uint64_t first, std::size_t count,
                                                           const std::stop_token& stop) {
  std::vector<trajectory> out;
  out.reserve(count);
  for (std::uint64_t i = first; i < first + count; ++i) {
    if (stop.stop_requested()) return fail(errc::unavailable, "stopped before all demonstrations were made");
    auto made = make(i);
    if (!made)
      return fail(made.error().code,
                  "a demonstration for the task " + tasks_->task(i).substr(0, 200) + ": " + made.error().message);
    out.push_back(std::move(*made));
  }
  return out;
}

result<trajectory> demonstration_source::make(std::uint64_t number) {
  const auto seed = derive_seed(seed_, "demonstration", number);
  auto task = nlohmann::json::parse(tasks_->task(number), nullptr, false);
  if (task.is_discarded()) return fail(errc::invalid_data, "the task is no JSON");
  auto prompt = guarded("reset", [&] { return environment_->reset(task, seed); });
  if (!prompt) return fail(prompt.error());
  const auto shown_answer = guarded(
      "demonstration", [&]() -> result<std::optional<std::string>> { return environment_->demonstration(seed); });
  if (!shown_answer) return fail(shown_answer.error());
  const auto& answer = *shown_answer;
  if (!answer) return fail(errc::unsupported, "the environment shows none; set warm_start.steps to 0");
  episode_spec spec;
  spec.group = number;
  episode_recorder recorder;
  recorder.start(spec);
  auto encoded = [&](const std::string& written, const char* what) {
    return lost_->encode(*text_, written, [&] { return what + (" for the task " + tasks_->task(number)); });
  };
  const auto* tokens = std::get_if<std::vector<token>>(&*prompt);
  recorder.given(tokens != nullptr ? *tokens : encoded(std::get<std::string>(*prompt), "the environment's prompt"));
  generation shown;
  shown.tokens = encoded(*answer, "the environment's demonstration");
  if (recorder.context().empty() || shown.tokens.empty())
    return fail(errc::invalid_data, "its prompt or its answer is empty");
  const auto prompt_tokens = recorder.context().size(), tokens_in_all = prompt_tokens + shown.tokens.size();
  if (static_cast<std::int64_t>(tokens_in_all) > most_tokens_)
    return fail(errc::invalid_data, "its prompt has " + std::to_string(prompt_tokens) + " tokens and its answer " +
                                        std::to_string(shown.tokens.size()) +
                                        ", together more than rollout.max_context, " + std::to_string(most_tokens_));
  shown.logprobs.assign(shown.tokens.size(), 0.0F);
  shown.versions.assign(shown.tokens.size(), 0);
  recorder.produced(shown);
  return recorder.finish(true, false, true);
}

}  // namespace weir

#pragma once
// A sandbox whose environment is an object in this process: no isolation, no cost. For environments that are trusted
// and whose steps return soon; the others get a process of their own behind the same actor interface.

#include <functional>
#include <memory>
#include <string>

#include "weir/actors/interfaces.hpp"
#include "weir/environment/environment.hpp"
#include "weir/sandbox/episode_recorder.hpp"
#include "weir/sandbox/sandbox_pool.hpp"
#include "weir/tokenizer/lost_text.hpp"
#include "weir/tokenizer/tokenizer.hpp"

namespace weir {

class in_process_sandbox : public sandbox_actor::base {
 public:
  /// `make` is called before the first episode, and before the next one for as long as it fails. `lost` hears of the
  /// environment's text that has no token.
  in_process_sandbox(caf::actor_config& config, sandbox_pool_actor pool,
                     std::function<result<std::unique_ptr<environment>>()> make, std::shared_ptr<const tokenizer> text,
                     std::shared_ptr<lost_text> lost);

  sandbox_actor::behavior_type make_behavior() override;
  void on_exit() override;

 private:
  void begin(const run_episode& order);
  result<void> have_environment();
  void ask();
  void answered(const generation& turn);
  void refused(const error& reason);
  result<void> give(const observation& next);
  void complete(bool terminated, bool truncated, bool success);
  void fail_episode(const std::string& reason);

  sandbox_pool_actor pool_;
  std::function<result<std::unique_ptr<environment>>()> make_;
  std::unique_ptr<environment> environment_;
  std::shared_ptr<const tokenizer> text_;
  std::shared_ptr<lost_text> lost_;
  episode_recorder recorder_;
  run_episode order_;
  bool busy_ = false;
  std::uint64_t episode_ = 0;  ///< counts episodes, so that an answer to a cancelled one is known as such
};

/// Makes in-process sandboxes for `pool`'s factory. `settings` are the environment's own; `type.make` has accepted them
/// once before, so that a failure here is the environment's, and fails the episode. `lost`, shared by all of them,
/// hears of the environments' text that has no token.
sandbox_factory in_process_sandboxes(environment_type type, nlohmann::json settings,
                                     std::shared_ptr<const tokenizer> text, std::shared_ptr<lost_text> lost = nullptr);

}  // namespace weir

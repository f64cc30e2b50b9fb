#pragma once
// The graph builder: spawns actors, wires their outputs to inputs (wiring that doesn't fit does not compile), watches
// them, and stops them: drain, then a grace period, then kill.

#include <chrono>
#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weir/runtime/caf.hpp"
#include "weir/runtime/node.hpp"

namespace weir {

/// An actor system with the settings that Weir needs and the message types of `Blocks` (caf::id_block types) known.
/// Two can live in one process. Construct it before, and let it go after, every graph in it.
class actor_runtime {
 public:
  /// `threads`: the scheduler's worker threads, at least 1. Actors that compute (engines, trainer) have their own.
  template <class... Blocks>
  static actor_runtime with(std::size_t threads) {
    auto config = std::make_unique<caf::actor_system_config>();
    config->add_message_types<caf::id_block::weir_runtime>();
    (config->add_message_types<Blocks>(), ...);
    return actor_runtime(std::move(config), threads);
  }

  caf::actor_system& system() noexcept { return *system_; }

  /// Waits until no actor is left, graphs' and those that they spawned, for at most `deadline`. The destructor waits
  /// without bound: a program that gets false here, because user code never returned, can only leave by _Exit.
  bool wait_until_idle(std::chrono::milliseconds deadline) const;

 private:
  actor_runtime(std::unique_ptr<caf::actor_system_config> config, std::size_t threads);
  std::unique_ptr<caf::actor_system_config> config_;
  std::unique_ptr<caf::actor_system> system_;
};

/// An actor of class `Actor` that a graph holds.
template <class Actor>
struct placed {
  using actor_type = Actor;
  typename Actor::handle_type handle;
};

/// True if output `Port` of `From` may be wired to `To`.
template <class From, class Port, class To>
concept wirable =
    std::derived_from<From, typename Port::owner> && answers<typename To::handle_type, typename Port::target>;

/// Why an actor ended, other than by being told to.
struct node_failure {
  std::string node;
  error reason;
};

/// How a stop went.
struct stop_report {
  std::vector<std::string> not_drained;  ///< did not finish what was under way by the deadline
  std::vector<std::string> killed;       ///< did not end when told to, and were killed
  std::vector<std::string> stuck;        ///< did not end at all: their thread is in code that does not return
  bool clean() const noexcept { return not_drained.empty() && killed.empty() && stuck.empty(); }
};

/// Actors and their wires. Not thread-safe: built, waited for and stopped from one thread that is not an actor's.
class graph {
 public:
  explicit graph(caf::actor_system& system);
  /// Stops with short deadlines if `stop` was not called.
  ~graph();
  graph(const graph&) = delete;
  graph& operator=(const graph&) = delete;

  /// Spawns an actor on the scheduler's shared threads: for those that never block.
  template <class Actor, class... Args>
  placed<Actor> add(std::string name, Args&&... args) {
    return watch<Actor>(std::move(name), system_.spawn<Actor>(std::forward<Args>(args)...));
  }

  /// Spawns an actor with a thread of its own: for those that compute or block.
  template <class Actor, class... Args>
  placed<Actor> add_with_thread(std::string name, Args&&... args) {
    return watch<Actor>(std::move(name), system_.spawn<Actor, caf::detached>(std::forward<Args>(args)...));
  }

  /// Wires an output to an actor that answers what it sends. Several targets for one output are kept in order.
  template <class From, class Owner, class Target, class To>
  requires wirable<From, port<Owner, Target>, To>
  void connect(const placed<From>& from, const port<Owner, Target>& out, const placed<To>& to) {
    caf::anon_send(from.handle, connect_port{out.name, caf::actor_cast<caf::strong_actor_ptr>(to.handle)});
  }

  /// Sends a message from outside the graph, such as the one that starts it.
  template <class Actor, class Message>
  void tell(const placed<Actor>& to, Message message) {
    caf::anon_send(to.handle, std::move(message));
  }

  /// The first actor that failed, if one has: what a waiting main looks at. A node that was told to stop is no failure.
  std::optional<node_failure> failure() const;

  /// Ends all actors: each may finish what is under way until `drain_deadline`, must then end within `grace`, and is
  /// killed after that. Blocks for at most both and a second. Idempotent.
  stop_report stop(std::chrono::milliseconds drain_deadline, std::chrono::milliseconds grace);

 private:
  struct member {
    std::string name;
    caf::strong_actor_ptr actor;
  };
  struct shared;
  template <class Actor>
  placed<Actor> watch(std::string name, typename Actor::handle_type handle) {
    watch_erased(std::move(name), caf::actor_cast<caf::strong_actor_ptr>(handle));
    return {std::move(handle)};
  }
  void watch_erased(std::string name, caf::strong_actor_ptr actor);
  std::vector<std::string> drain_all(std::chrono::milliseconds deadline);
  std::vector<std::string> alive() const;
  bool wait_until_gone(std::chrono::milliseconds deadline) const;

  caf::actor_system& system_;
  std::shared_ptr<shared> shared_;
  std::vector<member> members_;
  bool stopped_ = false;
};

}  // namespace weir

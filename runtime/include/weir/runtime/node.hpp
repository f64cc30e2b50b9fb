#pragma once
// The base of every actor in a graph: output edges that are set by message, and the messages of an actor's life.

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weir/runtime/caf.hpp"

namespace weir {

/// Graph builder -> actor: from now on, what leaves by output `port` goes to `target` too. Setting an edge that the
/// actor does not have is a fault of the builder and ends the actor.
struct connect_port {
  std::string port;
  caf::strong_actor_ptr target;
};

/// Graph builder -> actor, at stop: forget every edge. Edges hold handles, and two actors that hold each other's would
/// keep the actor system from ending.
struct disconnect_ports {};

/// Graph builder -> actor: start no new work; answer `drained` once what is under way is done.
struct drain {};
struct drained {};

template <class Inspector>
auto inspect(Inspector& f, connect_port& x) {
  return inspect_fields(f, "connect_port", x.port, x.target);
}
template <class Inspector>
auto inspect(Inspector& f, disconnect_ports&) {
  return inspect_fields(f, "disconnect_ports");
}
template <class Inspector>
auto inspect(Inspector& f, drain&) {
  return inspect_fields(f, "drain");
}
template <class Inspector>
auto inspect(Inspector& f, drained&) {
  return inspect_fields(f, "drained");
}

}  // namespace weir

CAF_BEGIN_TYPE_ID_BLOCK(weir_runtime, caf::first_custom_type_id)
CAF_ADD_TYPE_ID(weir_runtime, (weir::connect_port))
CAF_ADD_TYPE_ID(weir_runtime, (weir::disconnect_ports))
CAF_ADD_TYPE_ID(weir_runtime, (weir::drain))
CAF_ADD_TYPE_ID(weir_runtime, (weir::drained))
CAF_END_TYPE_ID_BLOCK(weir_runtime)

namespace weir {

/// The interface of an actor that can stand in a graph: its own messages and those of its life.
template <class... Signatures>
using node_interface = interface<Signatures..., on<void(connect_port)>, on<void(disconnect_ports)>, on<drained(drain)>>;

namespace detail {
class port_base {
 public:
  virtual ~port_base() = default;
  virtual void connect(const caf::strong_actor_ptr& target) = 0;
  virtual void disconnect() = 0;
};
}  // namespace detail

/// An output of an actor of class `Owner` to actors that offer `Target`: what the graph builder connects. Declare it in
/// the class as `static constexpr port<my_actor, buffer_actor> batches{"batches"};`, and the edge itself as a member
/// `edge<buffer_actor> batches_{*this, batches};`.
template <class Owner, class Target>
struct port {
  using owner = Owner;
  using target = Target;
  const char* name;
};

template <class Handle>
class node;

/// The receiving ends of one output: none at first, one after a connect, several if the actor fans out.
template <class Target>
class edge final : public detail::port_base {
 public:
  template <class Handle, class Owner>
  edge(node<Handle>& self, const port<Owner, Target>& declared) {
    self.add_port(declared.name, *this);
  }
  edge(const edge&) = delete;
  edge& operator=(const edge&) = delete;

  explicit operator bool() const noexcept { return !targets_.empty(); }
  /// The only target; null if there is none yet or none any more, which CAF's send ignores.
  const Target& operator*() const noexcept {
    static const Target nobody;
    return targets_.empty() ? nobody : targets_.front();
  }
  const std::vector<Target>& all() const noexcept { return targets_; }

  void connect(const caf::strong_actor_ptr& target) override { targets_.push_back(caf::actor_cast<Target>(target)); }
  void disconnect() override { targets_.clear(); }

 private:
  std::vector<Target> targets_;
};

/// Base class of an actor in a graph; `Handle` is a node_interface. An exception that leaves a handler ends the actor
/// with its text as the reason.
template <class Handle>
class node : public Handle::base {
 public:
  using handle_type = Handle;

  explicit node(caf::actor_config& config) : Handle::base(config) {
    this->set_exception_handler([](caf::scheduled_actor*, std::exception_ptr& thrown) { return to_caf(thrown); });
  }

  void add_port(const char* name, detail::port_base& declared) { ports_.insert_or_assign(name, &declared); }

  /// Forgets the edges, however the actor ends. An override that lets go of other handles calls this one.
  void on_exit() override {
    for (auto& [name, declared] : ports_) declared->disconnect();
  }

 protected:
  /// The actor's behavior: its own handlers and those of its life. `on_drain` returns `drained` or a promise of it.
  template <class OnDrain, class... Handlers>
  typename Handle::behavior_type behave(OnDrain on_drain, Handlers... handlers) {
    return {std::move(handlers)...,
            [this](const connect_port& message) {
              auto found = ports_.find(message.port);
              if (found == ports_.end()) {
                this->quit(to_caf(error{errc::internal, "no output port named " + message.port}));
                return;
              }
              found->second->connect(message.target);
              connected(message.port);
            },
            [this](const disconnect_ports&) {
              for (auto& [name, declared] : ports_) declared->disconnect();
            },
            [on_drain = std::move(on_drain)](const drain&) mutable { return on_drain(); }};
  }

  /// An edge was set: for actors that begin to work, or catch a new peer up, then.
  virtual void connected(const std::string& port) { static_cast<void>(port); }

 private:
  std::map<std::string, detail::port_base*> ports_;
};

}  // namespace weir

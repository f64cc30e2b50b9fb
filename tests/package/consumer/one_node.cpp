// A graph of one actor, against weir::runtime alone.
#include <chrono>
#include <cstdio>
#include <future>

#include "weir/runtime/graph.hpp"

struct greeting {
  std::string name;
};
template <class Inspector>
auto inspect(Inspector& f, greeting& x) {
  return weir::inspect_fields(f, "greeting", x.name);
}

CAF_BEGIN_TYPE_ID_BLOCK(consumer, caf::first_custom_type_id + 100)
CAF_ADD_TYPE_ID(consumer, (greeting))
CAF_END_TYPE_ID_BLOCK(consumer)

using greeter_actor = weir::node_interface<weir::on<void(greeting)>>;

class greeter : public weir::node<greeter_actor> {
 public:
  greeter(caf::actor_config& config, std::promise<std::string>& greeted) : node(config), greeted_(greeted) {}

  greeter_actor::behavior_type make_behavior() override {
    return behave([] { return weir::drained{}; },
                  [this](const greeting& g) { greeted_.set_value("hello, " + g.name); });
  }

 private:
  std::promise<std::string>& greeted_;
};

int main() {
  using namespace std::chrono_literals;
  std::promise<std::string> greeted;
  auto text = greeted.get_future();
  auto runtime = weir::actor_runtime::with<caf::id_block::consumer>(1);
  weir::graph graph(runtime.system());
  auto node = graph.add<greeter>("greeter", greeted);
  graph.tell(node, greeting{"weir"});
  bool heard = text.wait_for(10s) == std::future_status::ready && text.get() == "hello, weir";
  bool clean = graph.stop(5s, 5s).clean();
  std::printf("heard: %d, clean stop: %d\n", heard, clean);
  return heard && clean ? 0 : 1;
}

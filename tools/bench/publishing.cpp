// What new weights cost those who work on: the trainer whose next step runs while a version leaves it, and the engine
// that takes one between two decode steps. The measures are the same step without publishing, and a decode step.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <thread>

#include "bench.hpp"
#include "weights/process.hpp"
#include "weir/policy/threads.hpp"
#include "weir/policy/torch.hpp"
#include "weir/rollout/rollout_engine.hpp"
#include "weir/runtime/graph.hpp"
#include "weir/trainer/learner.hpp"
#include "weir/trainer/published.hpp"
#include "weir/transport/tcp.hpp"
#include "weir/weights/weight_links.hpp"

namespace {

using namespace weir;
using namespace std::chrono_literals;
using clock_ = std::chrono::steady_clock;

/// 26 million parameters: 105 MB in fp32.
causal_lm_config model_config() {
  causal_lm_config c;
  c.vocab_size = 4096;
  c.hidden_size = 512;
  c.layers = 8;
  c.heads = 8;
  c.kv_heads = 4;
  c.head_dim = 64;
  c.intermediate_size = 1280;
  c.max_positions = 1024;
  c.tied_embeddings = true;
  return c;
}

double seconds_since(clock_::time_point begin) { return std::chrono::duration<double>(clock_::now() - begin).count(); }

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

transport_maker over_a_wire() {
  tcp_settings s;
  s.shared_memory = false;
  return tcp_maker(s);
}

/// Takes versions as a rollout node's process does, until its stdin ends.
int follow(const std::string& source) {
  receiver_settings s;
  s.name = "follower";
  s.source = source;
  s.map = false;
  std::unique_ptr<broadcast_receiver> receiver;
  receiver_handlers h;
  h.on_arrived = [&](const arrived_weights& w) { receiver->adopted(w.version); };
  h.on_notice = [](const std::string& text) { std::cerr << "follower: " << text << "\n"; };
  auto made = broadcast_receiver::make(over_a_wire(), s, h);
  if (!made) return std::cerr << made.error().message << "\n", 1;
  receiver = std::move(*made);
  std::cout << "ready" << std::endl;
  for (pollfd waits[2] = {{receiver->event_fd(), POLLIN, 0}, {0, POLLIN, 0}}; waits[1].revents == 0;)
    if (receiver->progress() == 0) ::poll(waits, 2, static_cast<int>(receiver->patience().count()));
  return 0;
}

std::vector<trajectory> some_text(std::int64_t vocabulary) {
  std::vector<trajectory> batch(16);
  for (std::size_t s = 0; s < batch.size(); ++s) {
    auto& t = batch[s];
    for (std::size_t i = 0; i < 64; ++i)
      t.tokens.push_back(static_cast<token>((s * 977 + i * 131) % static_cast<std::size_t>(vocabulary)));
    t.mask.assign(64, 1);
    t.mask[0] = 0;
    t.logprobs.assign(64, 0);
    t.versions.assign(64, 0);
  }
  return batch;
}

/// Steps of a learner, every second of them with a version published before it: its copy is part of the step, its way
/// to another process goes on meanwhile.
int steps(bench::report& r, actor_runtime& runtime, const std::string& program) {
  const auto config = model_config();
  learner l(causal_lm::random(config, 1), {});
  const auto published = std::make_shared<const manifest>(retyped(l.model().layout(), dtype::bf16));
  auto form = published_form::make(l.model().layout(), published.get());
  broadcast_settings b;
  b.bytes = published->bytes;
  std::atomic<int> delivered{0};
  auto sender = broadcast_sender::make(over_a_wire(), b, {[&](const broadcast_report&) { ++delivered; }, {}});
  if (!form || !sender) return std::cerr << "no broadcast\n", 1;
  auto shelf = std::make_shared<weight_shelf>(published);
  auto writer = snapshot_writer::make(
      shelf, [s = *sender] { return s->allocate(); }, 4);
  if (!writer) return std::cerr << writer.error().message << "\n", 1;
  bench::process follower({program, "--follow", (*sender)->address()});
  while (!follower.line())
    if (follower.ended()) return 1;
  graph g(runtime.system());
  auto uplink = g.add<weight_uplink>("uplink", *sender, shelf);
  caf::scoped_actor self(runtime.system());
  const auto batch = some_text(config.vocab_size);
  weight_version version = 0;
  std::vector<double> with, without, copying;
  const int rounds = r.quick() ? 3 : 8;
  for (int i = 0; i < 2 * (rounds + 1); ++i) {
    const bool publishes = i % 4 == 0 || i % 4 == 3;  // neither is always the one after the other
    const auto begin = clock_::now();
    std::optional<decltype(self->request(uplink.handle, 60s, adopt_weights{}))> answer;
    if (publishes) {
      form->write(l.model(), writer->next());
      copying.push_back(seconds_since(begin));
      answer.emplace(self->request(uplink.handle, 60s, adopt_weights{writer->publish(++version).version}));
    }
    if (auto learned = l.supervised_step(batch, 1e-5); !learned) return std::cerr << learned.error().message << "\n", 1;
    if (i > 1) (publishes ? with : without).push_back(seconds_since(begin));
    if (!answer) continue;
    bool taken = true;
    answer->receive([](const weights_adopted&) {}, [&](const caf::error&) { taken = false; });
    if (!taken) return std::cerr << "a version was not taken\n", 1;
    if (version > 1) writer->released({version - 1, false});
  }
  g.stop(2s, 1s);
  // The shortest of each: what the machine does beside changes a step by more than what is measured.
  const auto alone = *std::min_element(without.begin(), without.end()),
             beside = *std::min_element(with.begin(), with.end());
  r.add("training step, 1024 tokens, nothing published", 1e3 * alone, "ms");
  r.add("training step, a version on its way", 1e3 * beside, "ms");
  r.add("of it writing 52 MB of bf16", 1e3 * median(copying), "ms");
  r.add("step without publishing / with", alone / beside, "x", 1 / 1.03);
  return delivered == static_cast<int>(version) ? 0 : (std::cerr << "a version did not arrive\n", 1);
}

/// An engine that decodes while versions come.
int adoption(bench::report& r, actor_runtime& runtime, dtype type) {
  const auto config = model_config();
  const auto own = causal_lm::layout(config);
  const auto published = std::make_shared<const manifest>(retyped(own, type));
  auto shelf = std::make_shared<weight_shelf>(published);
  auto writer = snapshot_writer::make(shelf, published->bytes, 2);
  if (!writer) return 1;
  std::mutex mutex;
  std::vector<clock_::time_point> ends;  // of decode steps
  rollout_engine_settings settings{8, 1024, 4096};
  graph g(runtime.system());
  auto engine = g.add_with_thread<rollout_engine>("engine", config, settings, shelf, [&](const rollout_activity& a) {
    std::lock_guard lock(mutex);
    if (a.steps > ends.size()) ends.resize(a.steps, clock_::now());
  });
  caf::scoped_actor self(runtime.system());
  const auto model = causal_lm::random(config, 2);
  for (weight_version v : {0, 1}) {
    model.copy_to(writer->next(), type);
    writer->publish(v);
  }
  const auto take = [&](weight_version v) {
    const auto begin = clock_::now();
    self->request(engine.handle, 60s, adopt_weights{v})
        .receive([](const weights_adopted&) {}, [](const caf::error&) {});
    return seconds_since(begin);
  };
  std::vector<double> idle;
  for (weight_version i = 0; i < 40; ++i) idle.push_back(take(i % 2));
  std::vector<float> from(own.bytes / 4, 1), to(own.bytes / 4);
  const auto memory = bench::best_seconds(9, [&] { std::memcpy(to.data(), from.data(), own.bytes); });

  generate_request request;
  request.context = {1, 2, 3};
  request.sampling.max_tokens = r.quick() ? 150 : 600;
  for (std::uint64_t i = 0; i < 8; ++i) {
    request.seed = i;
    self->send(engine.handle, request);
  }
  // In a step's midst: the engine answers between it and the next.
  std::vector<std::pair<clock_::time_point, clock_::time_point>> takings;
  std::vector<double> busy;
  for (int i = 0; i < (r.quick() ? 10 : 40); ++i) {
    std::this_thread::sleep_for(60ms);
    const auto begin = clock_::now();
    busy.push_back(take(static_cast<weight_version>(i) % 2));
    takings.emplace_back(begin, clock_::now());
  }
  g.stop(10s, 1s);
  std::lock_guard lock(mutex);
  const auto gap = [&](std::size_t i) { return std::chrono::duration<double>(ends[i] - ends[i - 1]).count(); };
  std::vector<double> gaps, stalled;  // of steps without a version, and how much longer those were in all that had one
  std::vector<bool> touched(ends.size());
  for (const auto& [begin, end] : takings)
    for (std::size_t i = 1; i < ends.size(); ++i) touched[i] = touched[i] || (begin < ends[i] && ends[i - 1] < end);
  for (std::size_t i = 1; i < ends.size(); ++i)
    if (!touched[i]) gaps.push_back(gap(i));
  if (gaps.size() < 10) return std::cerr << "too few decode steps were seen\n", 1;
  const auto usual = median(gaps);
  for (const auto& [begin, end] : takings) {
    double all = 0;
    for (std::size_t i = 1; i < ends.size(); ++i)
      if (begin < ends[i] && ends[i - 1] < end) all += gap(i) - usual;
    if (end <= ends.back()) stalled.push_back(all);
  }
  if (stalled.size() < 3) return std::cerr << "too few versions were taken while decoding\n", 1;
  const std::string name = type == dtype::f32 ? "fp32, in place" : "bf16, converted";
  const auto step = usual, extra = std::max(1e-6, median(stalled));
  r.add(name + ": taking a version, idle", 1e3 * median(idle), "ms");
  r.add(name + ": memcpy of the parameters in fp32", 1e3 * memory, "ms");
  r.add(name + ": taking a version, while decoding", 1e3 * median(busy), "ms");
  r.add(name + ": what a version adds to the steps beside it", 1e3 * extra, "ms");
  // Parameters are laid out anew for the product kernel, and converted if they are of another type: memory's work.
  const auto copies = type == dtype::f32 ? 1 : 2;
  r.add(name + ": (memcpy's time + 1 ms) / what it adds", (copies * memory + 1e-3) / extra, "x", 1);
  r.add(name + ": decode step", 1e3 * step, "ms");
  r.add(name + ": decode step / what a version adds", step / extra, "x", 1);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--follow") return follow(argv[2]);
  bench::report r("publishing", argc, argv);
  set_intra_op_threads(1);
  auto runtime = actor_runtime::with<caf::id_block::weir_actors>(2);
  if (int failed = steps(r, runtime, std::filesystem::absolute(argv[0]).string())) return failed;
  for (auto type : {dtype::f32, dtype::bf16})
    if (int failed = adoption(r, runtime, type)) return failed;
  return r.finish();
}

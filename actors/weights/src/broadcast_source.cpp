#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "broadcast_frames.hpp"
#include "delta_maker.hpp"
#include "payload_server.hpp"
#include "weir/weights/broadcast.hpp"

namespace weir {

using namespace broadcast;
using namespace std::chrono_literals;
using clock_ = std::chrono::steady_clock;

namespace {

constexpr auto retry_after = 250ms;
constexpr double assumed_rate = 1e9;  ///< bytes a second, until a receiver has said
/// Of less, latency is most: it tells no rate.
constexpr std::uint64_t tells_a_rate = std::uint64_t{1} << 20;
// Measured, `weir bench weights --hosts 8` with chunks of 256 KiB to 2 MiB: each hop adds three times a chunk's time.
constexpr double chunk_seconds = 5e-5, hop_chunks = 3;

double seconds_since(clock_::time_point begin) { return std::chrono::duration<double>(clock_::now() - begin).count(); }

}  // namespace

struct broadcast_source::state {
  struct member {
    std::shared_ptr<connection> peer;
    std::string name, address, host;
    std::optional<weight_version> assigned;  ///< announced, and neither arrived nor failed
    std::optional<weight_version> arrived, adopted;
    std::uint64_t failures = 0;
    clock_::time_point again{};
    clock_::time_point heard;
  };
  struct held {
    std::shared_ptr<region> content;
    broadcast_report report;
    clock_::time_point published;
    bool spoiled = false;
    bool reported = false;
  };

  broadcast_settings settings;
  source_handlers handlers;
  std::unique_ptr<transport> data;
  std::string address, host;
  std::vector<std::shared_ptr<connection>> peers;  ///< an accepted connection is open for as long as it is held
  std::vector<member> members;
  std::map<weight_version, held> versions;
  payload_server server;
  delta_maker deltas;
  std::vector<payload_size> chain;  ///< of deltas that are served, the newest last
  double rate = assumed_rate;
  std::optional<weight_version> told_adopted;
  bool told_dense = false;  ///< that deltas are no smaller
  clock_::time_point looked = clock_::now();

  explicit state(broadcast_settings s, source_handlers h)
      : settings(std::move(s)),
        handlers(std::move(h)),
        deltas(settings.ranges, settings.delta == delta_use::off ? 1 : delta_threads(settings.delta_threads)) {}

  void notice(const std::string& what) const {
    if (handlers.on_notice) handlers.on_notice(what);
  }
  weight_version newest() const { return versions.rbegin()->first; }
  link_costs costs() const { return {rate, chunk_seconds, hop_chunks}; }
  bool here(const member& m) const { return !host.empty() && m.host == host; }

  // ---- what receivers say ----------------------------------------------------------------------------------------

  void on_frame(connection& from, std::span<const std::byte> bytes) {
    auto read_frame = broadcast::read(bytes);
    auto holder = std::find_if(peers.begin(), peers.end(), [&](const auto& p) { return p.get() == &from; });
    if (holder == peers.end()) return;
    const auto peer = *holder;
    if (!read_frame) return drop(peer, read_frame.error().message);
    if (const auto* h = std::get_if<hello>(&*read_frame)) return greeted(peer, *h);
    if (const auto* s = std::get_if<subscribe>(&*read_frame)) return server.subscribed(peer, *s);
    if (const auto* r = std::get_if<release>(&*read_frame)) return server.released(from, r->id);
    auto* m = find(from);
    if (m != nullptr) m->heard = clock_::now();
    if (const auto* s = std::get_if<status>(&*read_frame); s != nullptr && m != nullptr) return said(*m, *s);
    drop(peer, "it sent a frame that it should not");
  }

  void drop(const std::shared_ptr<connection>& peer, const std::string& why) {
    auto* m = find(*peer);
    notice((m != nullptr ? "receiver " + m->name : std::string("a peer")) + " is let go of: " + why);
    peer->close();
    on_closed(*peer);
  }

  void greeted(const std::shared_ptr<connection>& peer, const hello& h) {
    if (h.protocol != protocol)
      return drop(peer, h.name + " speaks version " + std::to_string(h.protocol) + " of the protocol, this is " +
                            std::to_string(protocol));
    if (h.snapshot_bytes != 0 && h.snapshot_bytes != settings.bytes)
      return drop(peer, h.name + " expects " + std::to_string(h.snapshot_bytes) + " bytes of weights, here are " +
                            std::to_string(settings.bytes));
    if (h.join == 0 || find(*peer) != nullptr) return;
    if (peer->send(write(welcome{settings.bytes, settings.description})))
      members.push_back(
          {peer, h.name, h.address, settings.share ? h.host : std::string(), {}, {}, {}, 0, {}, clock_::now()});
  }

  void said(member& m, const status& s) {
    if (s.arrived > 0) m.arrived = s.arrived - 1;
    if (s.adopted > 0) m.adopted = s.adopted - 1;
    if (s.failed > 0 && m.assigned == s.failed - 1) {
      ++m.failures;
      m.again = clock_::now() + retry_after * std::min<std::uint64_t>(m.failures, 20);
      notice("receiver " + m.name + " did not get weight version " + std::to_string(*m.assigned) + ": " + s.why);
      m.assigned.reset();
    } else if (m.assigned && m.arrived && *m.arrived >= *m.assigned) {
      m.failures = 0;
      if (auto found = versions.find(*m.assigned); found != versions.end())
        found->second.report.wire_bytes += s.wire_bytes;
      if (s.wire_bytes > tells_a_rate && s.microseconds > 0)
        rate = 0.5 * rate + 0.5 * static_cast<double>(s.wire_bytes) / (1e-6 * static_cast<double>(s.microseconds));
      m.assigned.reset();
    }
    settle();
  }

  void on_closed(connection& gone) {
    for (const auto& id : server.closed(gone))
      if (auto found = versions.find(id.version); found != versions.end() && !id.is_delta())
        found->second.spoiled = true;
    std::erase_if(members, [&](const member& m) { return m.peer.get() == &gone; });
    std::erase_if(peers, [&](const auto& p) { return p.get() == &gone; });
    settle();
  }

  /// A stopped process keeps its connections, and would hold up every version: it joins again when it goes on.
  void drop_silent() {
    // Who slept here cannot say who was silent.
    if (clock_::now() - looked > settings.silence / 2)
      for (auto& m : members) m.heard = clock_::now();
    looked = clock_::now();
    std::vector<std::shared_ptr<connection>> silent;
    for (const auto& m : members)
      if (clock_::now() - m.heard > settings.silence) silent.push_back(m.peer);
    for (const auto& peer : silent)
      drop(peer, "it has said nothing for " + std::to_string(settings.silence.count()) + " ms");
  }

  member* find(const connection& peer) {
    auto found = std::find_if(members.begin(), members.end(), [&](const member& m) { return m.peer.get() == &peer; });
    return found == members.end() ? nullptr : &*found;
  }

  // ---- versions ----------------------------------------------------------------------------------------------------

  /// Those that read over the wire: one on each other machine.
  std::vector<const member*> leaders() const {
    std::vector<const member*> found;
    for (const auto& m : members) {
      if (here(m)) continue;
      const bool first = m.host.empty() ||
                         std::none_of(found.begin(), found.end(), [&](const member* l) { return l->host == m.host; });
      if (first) found.push_back(&m);
    }
    return found;
  }

  void publish(weight_version version, std::shared_ptr<region> content) {
    if (!versions.empty() && version <= newest())
      throw std::invalid_argument("weight version " + std::to_string(version) + " was published after " +
                                  std::to_string(newest()));
    const auto count = leaders().size();
    auto plan = choose_plan(settings.shape, settings.bytes, count, costs());
    if (settings.chunk > 0) plan.chunk = settings.chunk;
    held h{content,
           {version, plan.shape, plan.chunk, members.size(), settings.bytes, 0, 0, 0, 0},
           clock_::now(),
           false,
           false};
    std::optional<weight_version> before;
    if (!versions.empty()) before.emplace(newest());
    versions.emplace(version, std::move(h));
    server.add({{version, no_base}, settings.bytes, plan.chunk}, std::move(content));
    server.complete({version, no_base});
    server.expect(version);
    if (before && worth_a_delta(count)) {
      if (!deltas.idle()) chain_broken();
      deltas.start({version, *before}, versions.at(*before).content, versions.at(version).content);
    } else {
      chain_broken();
    }
    settle();
  }

  bool worth_a_delta(std::size_t readers) const {
    if (settings.delta == delta_use::off || readers == 0) return false;
    return settings.delta == delta_use::on || deltas.pays(settings.bytes, rate);
  }

  /// The newest version has no delta from the one before it: older deltas lead nowhere.
  void chain_broken() {
    deltas.stop();
    for (const auto& d : chain) server.remove(d.id, "it is not kept any more");
    chain.clear();
  }

  void encoded() {
    auto made = deltas.take();
    auto& v = versions.at(made.id.version);
    v.report.encode_seconds = made.seconds;
    auto memory = made.records.empty() ? fail(errc::unavailable, "it is no smaller than the whole")
                                       : data->allocate(made.records.size());
    if (!memory) {
      if (!made.records.empty() || !std::exchange(told_dense, true))
        notice("weight version " + std::to_string(made.id.version) +
               " is sent whole, not as a delta: " + memory.error().message);
      return chain_broken();
    }
    told_dense = false;
    std::copy(made.records.begin(), made.records.end(), (*memory)->bytes().begin());
    v.report.delta_bytes = made.records.size();
    const payload_size size{made.id, made.records.size(),
                            best_chunk(v.report.shape, made.records.size(), leaders().size(), costs())};
    server.add(size, std::move(*memory));
    server.complete(size.id);
    chain.push_back(size);
    // A chain that is longer than the whole is of no use to anyone.
    std::uint64_t total = 0;
    for (const auto& d : chain) total += d.bytes;
    while (chain.size() > settings.delta_chain || (chain.size() > 1 && total > settings.bytes / 2)) {
      total -= chain.front().bytes;
      server.remove(chain.front().id, "it is not kept any more");
      chain.erase(chain.begin());
    }
  }

  // ---- telling receivers --------------------------------------------------------------------------------------------

  void announce_to(member& m) {
    const auto& v = versions.rbegin()->second;
    announce a{{{newest(), no_base}, settings.bytes, v.report.chunk}, chain, {}, 0, {}};
    const auto readers = leaders();
    const auto position = std::find(readers.begin(), readers.end(), &m);
    if (here(m)) {
      a.local = 1;
      a.deltas.clear();
      a.region = server.lend(m.peer, a.snapshot.id);
    } else if (position == readers.end()) {
      const auto leader =
          std::find_if(readers.begin(), readers.end(), [&](const member* l) { return l->host == m.host; });
      a.local = 1;
      a.deltas.clear();
      a.parents.push_back((*leader)->address);
    } else if (m.failures == 0) {  // who failed with its parents asks the source
      for (auto i : ancestors(v.report.shape, static_cast<std::size_t>(position - readers.begin())))
        a.parents.push_back(readers[i]->address);
    }
    m.assigned = newest();
    static_cast<void>(m.peer->send(write(std::move(a))));
  }

  std::size_t announce_all() {
    if (versions.empty()) return 0;
    std::size_t told = 0;
    for (auto& m : members) {
      if (m.assigned || (m.arrived && *m.arrived >= newest()) || clock_::now() < m.again) continue;
      if (!deltas.idle() && !here(m)) continue;  // the delta comes first
      announce_to(m);
      ++told;
    }
    return told;
  }

  /// Reports what all have, and gives back what nobody needs.
  void settle() {
    if (versions.empty()) return;
    for (auto& [version, v] : versions) {
      const bool all =
          !members.empty() && std::all_of(members.begin(), members.end(),
                                          [&, n = version](const member& m) { return m.arrived && *m.arrived >= n; });
      if (!all || std::exchange(v.reported, true)) continue;
      v.report.receivers = members.size();
      v.report.seconds = seconds_since(v.published);
      if (handlers.on_delivered) handlers.on_delivered(v.report);
    }
    if (std::all_of(members.begin(), members.end(), [](const member& m) { return m.adopted.has_value(); })) {
      auto lowest = newest();
      for (const auto& m : members) lowest = std::min(lowest, *m.adopted);
      if (!told_adopted || lowest > *told_adopted) {
        told_adopted = lowest;
        if (handlers.on_adopted) handlers.on_adopted(lowest);
      }
    }
    release_unused();
  }

  void release_unused() {
    std::vector<std::pair<weight_version, bool>> free;
    for (auto it = versions.begin(); it != versions.end() && it->first != newest();) {
      const auto version = it->first;
      const bool wanted =
          std::any_of(members.begin(), members.end(), [&](const member& m) { return m.assigned == version; });
      if (wanted || server.used({version, no_base}) || deltas.reads(version)) {
        ++it;
        continue;
      }
      server.remove({version, no_base}, "it is not kept any more");
      free.emplace_back(version, it->second.spoiled);
      it = versions.erase(it);
    }
    for (const auto& [version, spoiled] : free)
      if (handlers.on_released) handlers.on_released(version, spoiled);
  }

  std::size_t progress() {
    auto done = data->progress();
    drop_silent();
    if (deltas.work()) {
      encoded();
      settle();
      ++done;
    }
    done += announce_all();
    done += server.work();
    release_unused();
    return done + (deltas.idle() ? 0 : 1);
  }
};

broadcast_source::broadcast_source(std::unique_ptr<state> s) : state_(std::move(s)) {}
broadcast_source::~broadcast_source() {
  // What the transport's end completes is of no interest any more.
  for (auto& p : std::exchange(state_->peers, {})) p->close();
}

result<std::unique_ptr<broadcast_source>> broadcast_source::make(const transport_maker& maker,
                                                                 broadcast_settings settings,
                                                                 source_handlers handlers) {
  if (settings.bytes == 0) throw std::invalid_argument("a broadcast's versions have at least one byte");
  if (settings.chunk != 0 && settings.chunk < 1024)
    throw std::invalid_argument("a broadcast's chunks have at least 1024 bytes");
  if (settings.silence < 2s)
    throw std::invalid_argument("a broadcast's receivers say something every second: silence is 2 s or more");
  std::uint64_t covered = 0;
  for (const auto& r : settings.ranges) covered = r.offset == covered ? covered + r.bytes : ~std::uint64_t{0};
  if (settings.delta != delta_use::off && covered != settings.bytes)
    throw std::invalid_argument("delta ranges do not cover a version from its first byte to its last");
  auto made = std::make_unique<state>(std::move(settings), std::move(handlers));
  auto* s = made.get();

  transport_handlers h;
  h.on_accepted = [s](std::shared_ptr<connection> peer) { s->peers.push_back(std::move(peer)); };
  h.on_frame = [s](connection& from, std::span<const std::byte> frame) { s->on_frame(from, frame); };
  h.on_closed = [s](connection& gone, const error&) { s->on_closed(gone); };
  h.on_notice = [s](const std::string& what) { s->notice(what); };
  s->data = maker(std::move(h));
  if (s->settings.share && s->data->capabilities().map) s->host = s->data->capabilities().host;
  auto at = s->data->listen(s->settings.listen);
  if (!at) return fail(at.error());
  s->address = *at;
  return std::unique_ptr<broadcast_source>(new broadcast_source(std::move(made)));
}

const std::string& broadcast_source::address() const noexcept { return state_->address; }
result<std::shared_ptr<region>> broadcast_source::allocate() { return state_->data->allocate(state_->settings.bytes); }
void broadcast_source::publish(weight_version version, std::shared_ptr<region> content) {
  state_->publish(version, std::move(content));
}
std::size_t broadcast_source::receivers() const noexcept { return state_->members.size(); }
std::size_t broadcast_source::progress() { return state_->progress(); }
int broadcast_source::event_fd() const noexcept { return state_->data->event_fd(); }
std::chrono::milliseconds broadcast_source::patience() const noexcept {
  return state_->server.busy() || !state_->deltas.idle() ? 0ms : 100ms;
}

}  // namespace weir

#include <algorithm>
#include <list>
#include <map>
#include <stdexcept>
#include <utility>

#include "broadcast_frames.hpp"
#include "delta_applier.hpp"
#include "payload_fetch.hpp"
#include "payload_server.hpp"
#include "version_slots.hpp"
#include "weir/weights/broadcast.hpp"

namespace weir {

using namespace broadcast;
using namespace std::chrono_literals;
using clock_ = std::chrono::steady_clock;

namespace {

constexpr auto connect_patience = 2s;
constexpr auto reconnect_after = 500ms;
/// Whom the source has not heard of for `broadcast_settings::silence` is let go of.
constexpr auto sign_of_life_after = 1s;
constexpr std::uint64_t least_chunk = 1024;

payload_id whole(weight_version version) { return {version, no_base}; }

}  // namespace

struct broadcast_receiver::state {
  /// Bringing one version here: a mapping, or fetches one after the other: the whole, or a chain of deltas.
  struct job {
    announce what;
    clock_::time_point began = clock_::now();
    bool started = false;
    bool map = false;
    // By mapping.
    std::shared_ptr<connection> mapping;
    std::string mapping_region;
    clock_::time_point heard{};
    // By fetching.
    std::vector<payload_size> steps;  ///< deltas, or the whole
    std::size_t step = 0;
    bool delta = false;
    version_slots::slot* into = nullptr;
    std::shared_ptr<const void> into_kept, base_kept;
    std::span<const std::byte> base;
    std::unique_ptr<payload_fetch> fetch;
    bool fetched = false;
    delta_applier applier;
    std::uint64_t wire_bytes = 0;
    weight_version version() const { return what.snapshot.id.version; }
  };
  struct mapped_payload {
    payload_id id;
    std::weak_ptr<const void> read;
    std::weak_ptr<connection> parent;
  };

  receiver_settings settings;
  receiver_handlers handlers;
  // Memory that a transport may still write into outlives it: it is destroyed after `data`.
  std::optional<version_slots> slots;
  std::map<payload_id, std::shared_ptr<region>> deltas;
  crew helpers;  ///< that apply deltas
  payload_server server;
  std::optional<job> current;
  std::unique_ptr<transport> data;
  std::string address, host;
  std::shared_ptr<connection> source;
  clock_::time_point source_again{}, told{};
  bool left = false;
  std::map<std::string, std::shared_ptr<connection>> parents;  ///< by address
  std::vector<std::shared_ptr<connection>> children;
  std::optional<announce> next;
  std::optional<arrived_weights> newest;
  std::vector<mapped_payload> mapped;
  std::optional<weight_version> told_adopted;

  state(receiver_settings s, receiver_handlers h)
      : settings(std::move(s)), handlers(std::move(h)), helpers(delta_threads(settings.delta_threads)) {}

  void notice(const std::string& what) const {
    if (handlers.on_notice) handlers.on_notice(what);
  }

  // ---- connections ----------------------------------------------------------------------------------------

  result<void> join() {
    auto made = data->connect(settings.source, clock_::now() + connect_patience);
    if (!made) return fail(made.error());
    source = *made;
    auto sent = source->send(write(hello{protocol, 1, settings.bytes, settings.name, address, host}));
    if (sent && newest) sent = tell(standing());
    return sent;
  }

  /// What is here and read, without news.
  status standing() const {
    return {newest ? newest->version + 1 : 0, told_adopted ? *told_adopted + 1 : 0, 0, 0, 0, 0, 0, {}};
  }

  result<void> tell(status s) {
    if (!source) return fail(errc::unavailable, "the source is not connected");
    told = clock_::now();
    return source->send(write(std::move(s)));
  }

  /// The connection to parent number `i` of an announcement; the one after the last is the source.
  result<std::shared_ptr<connection>> parent(const announce& what, std::size_t i) {
    if (i >= what.parents.size()) {
      if (!source) return fail(errc::unavailable, "the source is not connected");
      return source;
    }
    const auto& at = what.parents[i];
    if (auto known = parents.find(at); known != parents.end()) return known->second;
    auto made = data->connect(at, clock_::now() + connect_patience);
    if (!made) return fail(made.error());
    auto sent = (*made)->send(write(hello{protocol, 0, settings.bytes, settings.name, address, host}));
    if (!sent) return fail(sent.error());
    parents.emplace(at, *made);
    return *made;
  }

  std::shared_ptr<connection> holder(const connection& c) const {
    if (source.get() == &c) return source;
    for (const auto& [at, p] : parents)
      if (p.get() == &c) return p;
    auto child = std::find_if(children.begin(), children.end(), [&](const auto& p) { return p.get() == &c; });
    return child == children.end() ? nullptr : *child;
  }

  void on_closed(connection& gone, const std::string& why) {
    const auto kept = holder(gone);
    for (const auto& id : server.closed(gone))
      if (auto* s = slots ? slots->find(id.version) : nullptr; s != nullptr && !id.is_delta()) s->spoiled = true;
    if (current && current->fetch) current->fetch->lost(gone, why);
    if (current && current->mapping.get() == &gone) map_failed("the connection is gone: " + why);
    std::erase_if(parents, [&](const auto& p) { return p.second.get() == &gone; });
    std::erase_if(children, [&](const auto& p) { return p.get() == &gone; });
    if (source.get() == &gone) {
      notice("the source of weights at " + settings.source + " is gone: " + why + "; it is looked for again");
      source.reset();
      source_again = clock_::now() + reconnect_after;
    }
  }

  void on_frame(connection& from, std::span<const std::byte> bytes) {
    const auto peer = holder(from);
    if (!peer) return;
    auto f = broadcast::read(bytes);
    if (!f) return drop(peer, f.error().message);
    if (std::get_if<hello>(&*f)) return;
    if (const auto* w = std::get_if<welcome>(&*f)) {
      if (peer != source) return drop(peer, "it welcomes, and is not the source");
      if (auto fits = joined(*w); !fits) leave(fits.error().message);
      return;
    }
    if (const auto* s = std::get_if<subscribe>(&*f)) return server.subscribed(peer, *s);
    if (const auto* r = std::get_if<release>(&*f)) return server.released(from, r->id);
    if (const auto* a = std::get_if<announce>(&*f)) {
      if (peer != source) return drop(peer, "it announces versions, and is not the source");
      if (!slots || a->snapshot.bytes != settings.bytes || a->snapshot.chunk < least_chunk)
        return drop(peer, "it announces versions of another size");
      next = *a;
      return;
    }
    if (!current) return;
    if (current->mapping == peer) mapping_frame(*f);
    if (!current->fetch) return;
    if (const auto* o = std::get_if<offer>(&*f)) current->fetch->offered(from, *o);
    if (const auto* r = std::get_if<refuse>(&*f)) current->fetch->refused(from, *r);
    if (const auto* r = std::get_if<ready>(&*f)) current->fetch->told(from, *r);
  }

  /// What versions are like.
  result<void> joined(const welcome& w) {
    if (w.snapshot_bytes == 0 || (settings.bytes != 0 && w.snapshot_bytes != settings.bytes))
      return fail(errc::invalid_data, "its versions have " + std::to_string(w.snapshot_bytes) +
                                          " bytes, expected are " + std::to_string(settings.bytes));
    settings.bytes = w.snapshot_bytes;
    if (!slots) {
      auto memory = version_slots::make(*data, settings.slots, settings.bytes);
      if (!memory) return fail(memory.error());
      slots = std::move(*memory);
    }
    return handlers.on_joined ? handlers.on_joined(settings.bytes, w.description) : result<void>{};
  }

  /// The source is no use to this receiver: for good.
  void leave(const std::string& why) {
    notice("the source of weights at " + settings.source + " is let go of for good: " + why);
    left = true;
    source->close();
    source.reset();
    next.reset();
  }

  void drop(const std::shared_ptr<connection>& peer, const std::string& why) {
    notice("a peer of the broadcast is let go of: " + why);
    peer->close();
    on_closed(*peer, why);
  }

  // ---- a version's way here -------------------------------------------------------------------------------

  /// Begins what was announced last; false if it has to wait for memory.
  bool start() {
    auto& j = *current;
    if (j.map) {
      j.started = true;
      auto to = parent(j.what, 0);
      if (!to) return map_failed("it cannot be reached: " + to.error().message), true;
      j.mapping = *to;
      j.heard = clock_::now();
      j.mapping_region = j.what.region;
      if (!j.mapping_region.empty()) return map_now(), true;
      if (auto sent = j.mapping->send(write(subscribe{j.what.snapshot.id, 0, access::map})); !sent)
        map_failed(sent.error().message);
      return true;
    }
    auto* into = slots->free(
        *data, [this](weight_version v) { return server.used(whole(v)) || (newest && newest->version == v); });
    if (into == nullptr) return false;
    if (into->version) server.remove(whole(*into->version), "it is not kept any more");
    j.started = true;
    j.into = into;
    into->version = j.version();
    into->read.reset();
    j.into_kept = version_slots::view(*into);
    choose_steps();
    server.add(j.what.snapshot, into->memory);
    if (j.delta && !allocate_deltas()) whole_instead("there is no memory for its delta");
    forget_deltas();
    server.expect(j.version());
    fetch_step();
    return true;
  }

  /// A chain of deltas from what is here, if the source has one; else the whole.
  void choose_steps() {
    auto& j = *current;
    j.steps = {j.what.snapshot};
    j.delta = false;
    if (!newest) return;
    const auto first = std::find_if(j.what.deltas.begin(), j.what.deltas.end(),
                                    [&](const payload_size& d) { return d.id.base == newest->version; });
    if (first == j.what.deltas.end()) return;
    std::uint64_t total = 0;
    for (auto d = first; d != j.what.deltas.end(); ++d) {
      const auto after = std::next(d) == j.what.deltas.end() ? j.version() : std::next(d)->id.base;
      if (d->id.version != after || d->chunk < least_chunk)
        return notice("an announced chain of deltas has a gap: the whole is taken");
      total += d->bytes;
    }
    if (total >= settings.bytes) return;
    j.steps.assign(first, j.what.deltas.end());
    j.delta = true;
    j.base = newest->bytes;
    j.base_kept = newest->owner;
  }

  bool allocate_deltas() {
    for (const auto& d : current->steps) {
      auto memory = data->allocate(d.bytes);
      if (!memory) return false;
      deltas[d.id] = *memory;
      server.add(d, *memory);
    }
    return true;
  }

  /// Those that are not announced any more, and that nobody reads.
  void forget_deltas() {
    for (auto it = deltas.begin(); it != deltas.end();) {
      const bool announced = current && std::any_of(current->what.deltas.begin(), current->what.deltas.end(),
                                                    [&](const payload_size& d) { return d.id == it->first; });
      if (announced || server.used(it->first)) {
        ++it;
        continue;
      }
      server.remove(it->first, "it is not kept any more");
      it = deltas.erase(it);
    }
  }

  void fetch_step() {
    auto& j = *current;
    const auto& size = j.steps[j.step];
    const auto into = j.delta ? deltas.at(size.id)->bytes() : j.into->memory->bytes();
    if (j.delta) {
      const auto target = j.into->memory->bytes();
      j.applier = delta_applier(helpers, into, j.step == 0 ? j.base : std::span<const std::byte>(target), target);
    }
    j.fetched = false;
    payload_fetch::hooks h;
    h.connect = [this](std::size_t i) { return parent(current->what, i); };
    h.advanced = [this, size](std::uint64_t index, std::uint64_t checksum) {
      server.advance(size.id, checksum);
      if (size.id.is_delta()) current->applier.arrived(std::min(size.bytes, (index + 1) * size.chunk));
    };
    h.notice = [this](const std::string& text) { notice(text); };
    h.done = [this](result<void> outcome) { fetched(std::move(outcome)); };
    const fetch_settings f{settings.window, 30s, settings.silence};
    j.fetch = std::make_unique<payload_fetch>(size, into, j.what.parents.size() + 1, !j.delta && j.what.local != 0, f,
                                              std::move(h));
  }

  void fetched(result<void> outcome) {
    auto& j = *current;
    j.wire_bytes += j.fetch->wire_bytes();
    j.fetched = true;
    if (!outcome && j.delta) return whole_instead(outcome.error().message);
    if (!outcome) return failed(outcome.error().message);
    if (j.delta) return;
    if (j.fetch->local()) server.complete(whole(j.version()));
    arrived();
  }

  /// The delta cannot be had, or does not fit.
  void whole_instead(const std::string& why) {
    auto& j = *current;
    notice("weight version " + std::to_string(j.version()) + " is taken whole, not as a delta: " + why);
    for (const auto& d : j.steps) server.remove(d.id, "it could not be had here"), deltas.erase(d.id);
    j.steps = {j.what.snapshot};
    j.step = 0;
    j.delta = false;
    if (j.fetch) fetch_step();
  }

  std::size_t apply() {
    auto& j = *current;
    auto applied = j.applier.work();
    if (!applied) {
      // What is under way into the delta's memory comes first.
      if (!j.fetched) return 0;
      whole_instead(applied.error().message);
      return 1;
    }
    if (j.fetched && j.applier.done()) {
      if (++j.step < j.steps.size())
        fetch_step();
      else
        server.complete(whole(j.version())), arrived();
      return 1;
    }
    return *applied;
  }

  void arrived() {
    auto& j = *current;
    finish({j.version(), std::as_const(*j.into->memory).bytes().first(settings.bytes), j.into_kept, j.delta, false,
            j.fetch->lane(), j.wire_bytes, 0});
  }

  void finish(arrived_weights w) {
    const auto elapsed = clock_::now() - current->began;
    w.seconds = std::chrono::duration<double>(elapsed).count();
    newest = w;
    current.reset();
    static_cast<void>(
        tell({w.version + 1,
              told_adopted ? *told_adopted + 1 : 0,
              0,
              w.wire_bytes,
              static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count()),
              w.delta,
              w.mapped,
              {}}));
    if (handlers.on_arrived) handlers.on_arrived(w);
  }

  void failed(const std::string& why) {
    const auto version = current->version();
    if (current->into != nullptr) {
      server.remove(whole(version), "it could not be had here");
      current->into->version.reset();
    }
    current.reset();
    notice(why);
    static_cast<void>(
        tell({newest ? newest->version + 1 : 0, told_adopted ? *told_adopted + 1 : 0, version + 1, 0, 0, 0, 0, why}));
  }

  // ---- reading in place -----------------------------------------------------------------------------------

  void mapping_frame(const frame& f) {
    auto& j = *current;
    j.heard = clock_::now();
    const auto& id = j.what.snapshot.id;
    if (const auto* o = std::get_if<offer>(&f); o != nullptr && o->size == j.what.snapshot)
      j.mapping_region = o->region;
    if (const auto* r = std::get_if<refuse>(&f); r != nullptr && r->id == id)
      return map_failed("it is refused: " + r->why);
    const auto* r = std::get_if<ready>(&f);
    if (r != nullptr && r->id == id && r->first == chunks_of(j.what.snapshot) && !j.mapping_region.empty()) map_now();
  }

  void map_now() {
    auto& j = *current;
    const auto& id = j.what.snapshot.id;
    auto view = j.mapping->map(j.mapping_region);
    if (!view) return map_failed(view.error().message);
    if (view->bytes.size() < settings.bytes) return map_failed("its memory is too small");
    auto owner = std::make_shared<std::shared_ptr<const void>>(view->owner);
    mapped.push_back({id, owner, j.mapping});
    finish({id.version, view->bytes.first(settings.bytes), owner, false, true, j.mapping->lane(), 0, 0});
  }

  void map_failed(const std::string& why) {
    auto& j = *current;
    notice("weight version " + std::to_string(j.version()) + " cannot be read in place, and is fetched: " + why);
    if (j.mapping) static_cast<void>(j.mapping->send(write(release{j.what.snapshot.id})));
    j.mapping.reset();
    j.map = j.started = false;
  }

  std::size_t release_mapped() {
    return std::erase_if(mapped, [](const mapped_payload& m) {
      if (!m.read.expired()) return false;
      if (auto to = m.parent.lock()) static_cast<void>(to->send(write(release{m.id})));
      return true;
    });
  }

  // ---- the loop -------------------------------------------------------------------------------------------

  std::size_t progress() {
    auto done = data->progress();
    if (!source && !left && clock_::now() >= source_again) {
      if (join())
        ++done;
      else
        source.reset(), source_again = clock_::now() + reconnect_after;
    }
    if (!current && next) {
      const auto what = *std::exchange(next, std::nullopt);
      if (newest && what.snapshot.id.version <= newest->version)
        static_cast<void>(tell(standing()));
      else
        current.emplace(), current->what = what, current->map = what.local != 0 && settings.map;
    }
    if (source && clock_::now() - told > sign_of_life_after) static_cast<void>(tell(standing()));
    if (current && !current->started && start()) ++done;
    if (current && current->mapping && clock_::now() - current->heard > settings.silence)
      map_failed("its owner says nothing");
    if (current && current->fetch && !current->fetched) done += current->fetch->work();
    if (current && current->delta && current->fetch) done += apply();
    done += release_mapped();
    return done + server.work();
  }
};

broadcast_receiver::broadcast_receiver(std::unique_ptr<state> s) : state_(std::move(s)) {}
broadcast_receiver::~broadcast_receiver() {
  state_->mapped.clear();
  if (state_->source) state_->source->close();
}

result<std::unique_ptr<broadcast_receiver>> broadcast_receiver::make(const transport_maker& maker,
                                                                     receiver_settings settings,
                                                                     receiver_handlers handlers) {
  if (settings.slots < 2)
    throw std::invalid_argument("a receiver has at least two slots: one is read while the other is filled");
  auto made = std::make_unique<state>(std::move(settings), std::move(handlers));
  auto* s = made.get();
  transport_handlers h;
  h.on_accepted = [s](std::shared_ptr<connection> child) { s->children.push_back(std::move(child)); };
  h.on_frame = [s](connection& from, std::span<const std::byte> frame) { s->on_frame(from, frame); };
  h.on_closed = [s](connection& gone, const error& why) { s->on_closed(gone, why.message); };
  h.on_notice = [s](const std::string& what) { s->notice(what); };
  s->data = maker(std::move(h));
  if (s->data->capabilities().map) s->host = s->data->capabilities().host;
  auto at = s->data->listen(s->settings.listen);
  if (!at) return fail(at.error());
  s->address = *at;
  if (auto joined = s->join(); !joined) return fail(joined.error());
  return std::unique_ptr<broadcast_receiver>(new broadcast_receiver(std::move(made)));
}

void broadcast_receiver::adopted(weight_version version) {
  if (state_->told_adopted && version <= *state_->told_adopted) return;
  state_->told_adopted = version;
  static_cast<void>(state_->tell(state_->standing()));
}
std::size_t broadcast_receiver::progress() { return state_->progress(); }
int broadcast_receiver::event_fd() const noexcept { return state_->data->event_fd(); }
std::chrono::milliseconds broadcast_receiver::patience() const noexcept {
  return state_->server.busy() ? 0ms : state_->current ? 5ms : 20ms;
}

}  // namespace weir

// The part of the service that brings two transports together: who connects, who accepts, and which endpoint serves.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "environment.hpp"
#include "service.hpp"

namespace weir::ucx {

namespace {

/// A peer that connects and says nothing is given up after so long.
constexpr std::chrono::seconds handshake_time{5};
/// Peers in mid-handshake at once; more are turned away.
constexpr std::size_t most_visitors = 1024;

/// Hello and welcome, taken apart; nothing if they are none.
struct introduction {
  greeting g;
  std::string token, settings, address;
};

std::optional<introduction> taken_apart(const side_message& m) {
  const auto g = m.as<greeting>();
  if (!g || g->token > longest_token || g->settings > longest_settings) return std::nullopt;
  const auto fixed = sizeof *g + g->token + g->settings;
  if (m.body.size() < fixed) return std::nullopt;
  introduction i{*g, m.body.substr(sizeof *g, g->token), m.body.substr(sizeof *g + g->token, g->settings),
                 m.body.substr(fixed)};
  if (i.address.empty() || i.address.size() > longest_address || g->link == 0 || g->address_sum != sum_of(i.address))
    return std::nullopt;
  return i;
}

/// Why the peers can't work together, or nothing.
std::optional<error> difference(const side_header& h) {
  if (h.version != protocol_version)
    return error{errc::unsupported, "this side speaks version " + std::to_string(protocol_version) +
                                        " of the UCX transport's protocol, the other " + std::to_string(h.version) +
                                        ": run the same Weir on both"};
  if (h.library != library_version())
    return error{errc::unsupported, "this side has UCX " + written_version(library_version()) + ", the other " +
                                        written_version(h.library) + ": install the same on both"};
  return std::nullopt;
}

bool one_machine(const whereabouts& a, const whereabouts& b) {
  return a.machine != 0 && a.machine == b.machine && a.network == b.network;
}

}  // namespace

std::shared_ptr<link> service::new_link() {
  std::uint64_t id = random();
  while (links_.contains(id)) id = random();
  auto l = std::make_shared<link>(around_, *this, id, workers_.back());
  links_.emplace(id, l);
  return l;
}

whereabouts service::shared(bool peer_shares) const {
  auto w = here_;
  if (!settings_.shared_memory || !peer_shares) w.machine = 0;
  return w;
}

std::string service::greeting_text(said what, const link& l, const greeting& g, const std::string& token) const {
  std::string body(reinterpret_cast<const char*>(&g), sizeof g);
  body += token + environment_ + l.at()->address();
  auto text = side_text(what, body);
  side_header head;
  std::memcpy(&head, text.data(), sizeof head);
  head.library = library_version();
  std::memcpy(text.data(), &head, sizeof head);
  return text;
}

greeting service::greet(const link& l) const {
  greeting g;
  g.here = here_;
  g.link = l.id();
  g.shares_memory = settings_.shared_memory ? 1 : 0;
  g.settings = static_cast<std::uint32_t>(environment_.size());
  g.address_sum = sum_of(l.at()->address());
  return g;
}

/// The newest endpoint between a link's worker and the peer's, of those that will do.
template <class Condition>
std::shared_ptr<endpoint> service::known(const link& l, const other_side& peer, Condition condition) const {
  const auto found = std::find_if(alive_.rbegin(), alive_.rend(), [&](const auto& e) {
    return !e->doomed && e->peer == peer.id && e->at == l.at() && e->address_sum == sum_of(peer.address) &&
           condition(*e);
  });
  if (found == alive_.rend()) return nullptr;
  (*found)->idle_since = std::chrono::steady_clock::now();
  return *found;
}

result<agreed> service::new_endpoint(const link& l, const other_side& peer) {
  auto made = endpoint::make(l.at(), peer.address, random(), peer.id, [this] { some_doomed_ = true; });
  if (!made) return fail(made.error());
  (*made)->idle_since = std::chrono::steady_clock::now();
  alive_.push_back(*made);
  return agreed{*made, false};
}

result<agreed> service::agree_as_client(const link& l, const other_side& peer, const greeting& there) {
  if (there.endpoint != 0)
    if (auto e = known(l, peer, [&](const endpoint& x) { return x.pair == there.endpoint && x.id == there.pair; }))
      return agreed{e, true};
  // Without a pair: the peer connects to us as well, right now.
  if (auto e = known(l, peer, [](const endpoint& x) { return x.pair == 0; })) return agreed{e, false};
  return new_endpoint(l, peer);
}

result<agreed> service::agree_as_server(const link& l, const other_side& peer, const agreement& there) {
  auto e = known(l, peer, [&](const endpoint& x) { return x.pair == there.endpoint; });
  if (there.reused != 0) {
    if (!e) return fail(errc::unavailable, "the endpoint is gone: connect again");
    return agreed{e, true};
  }
  if (!e) e = known(l, peer, [](const endpoint& x) { return x.pair == 0; });
  auto found = e ? result<agreed>(agreed{e, false}) : new_endpoint(l, peer);
  if (found) found->with->pair = there.endpoint;
  return found;
}

/// Never slow without a word.
void service::look_at(const endpoint& e, const whereabouts& there, bool maps, const std::string& peer) {
  if (maps || told_of_path_) return;
  // UCX signals its shared memory's readers by Unix sockets, whose names are a network namespace's own.
  if (e.path().within_host && here_.machine == there.machine && here_.network != there.network) {
    told_of_path_ = true;
    return notice("bulk data of " + peer + " goes by ucx: " + e.path().bulk +
                  ", between two network namespaces, where nothing wakes its reader: it will be slow; set UCX_TLS=tcp "
                  "at both");
  }
  if (e.path().within_host || !one_machine(here_, there)) return;
  told_of_path_ = true;
  notice(
      "bulk data of " + peer + " goes by ucx: " + e.path().bulk +
      ", though it is on this machine: leave the setting shared_memory on at both, or let UCX_TLS have posix, sysv and "
      "cma");
}

// ---- the side that connects

result<std::shared_ptr<connection>> service::connect(const std::string& address, time_point deadline) {
  auto connected = connect_to(address, deadline);
  if (!connected) return fail(connected.error());
  prepare(connected->get(), settings_.silence);
  side_socket socket(std::move(*connected));
  const auto l = call([this] { return new_link(); });
  const auto given_up = [&](error why) -> result<std::shared_ptr<connection>> {
    call([&] { return links_.erase(l->id()); });
    return fail(std::move(why));
  };
  auto ours = greet(*l);
  ours.token = static_cast<std::uint32_t>(settings_.token.size());
  auto welcome = ask(socket, greeting_text(said::hello, *l, ours, settings_.token), address, deadline);
  if (!welcome) return given_up(welcome.error());
  if (welcome->head.said != said::welcome) return given_up(refusal_of(*welcome, address));
  if (const auto differs = difference(welcome->head)) return given_up(*differs);
  const auto there = taken_apart(*welcome);
  if (!there) return given_up({errc::invalid_data, address + " broke the protocol: an odd welcome"});
  if (const auto differs = environment_difference(environment_, there->settings))
    return given_up({errc::unsupported, address + ": " + *differs});
  const bool shares = settings_.shared_memory && there->g.shares_memory != 0;
  l->introduce(address, there->g.link, shared(shares), there->g.here);
  auto found = call([&] { return agree_as_client(*l, {there->g.here.transport, there->address}, there->g); });
  if (!found) return given_up(found.error());
  const agreement mine{found->with->id, found->reused ? 1U : 0U};
  auto accepted = ask(socket, side_struct(said::ready, mine), address, deadline);
  if (!accepted) return given_up(accepted.error());
  if (accepted->head.said != said::accepted) return given_up(refusal_of(*accepted, address));
  const auto theirs = accepted->as<agreement>();
  if (!theirs) return given_up({errc::invalid_data, address + " broke the protocol: an odd answer"});
  auto object = std::make_shared<ucx_connection>(l);
  const auto begun = call([&]() -> result<void> {
    const auto& e = found->with;
    if (e->doomed) return fail(errc::unavailable, "the connection to " + address + " was lost: " + e->why);
    if (e->pair == 0) e->pair = theirs->endpoint;
    l->begin(e, std::move(socket), object);
    look_at(*e, there->g.here, shares && here_.same_host(there->g.here), address);
    return {};
  });
  if (!begun) return given_up(begun.error());
  return std::shared_ptr<connection>(std::move(object));
}

// ---- the side that accepts

result<std::string> service::listen(const std::string& address) {
  auto made = listen_at(address);
  if (!made) return fail(made.error());
  call([&] {
    listeners_.push_back(std::move(made->first));
    return true;
  });
  return made->second;
}

void service::accept(int listener) {
  for (;;) {
    descriptor fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK)  // such as no descriptors: wait until some are free
        accept_again_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
      return;
    }
    if (visitors_.size() >= most_visitors) continue;
    prepare(fd.get(), settings_.silence);
    auto v = std::make_unique<visitor>();
    v->peer = peer_of(fd.get());
    v->socket = side_socket(std::move(fd));
    v->patience = std::chrono::steady_clock::now() + handshake_time;
    visitors_.push_back(std::move(v));
  }
}

/// False when the visitor is to be let go of.
bool service::attend(visitor& v) {
  std::string why;
  v.socket.flush();
  const bool open = v.socket.receive(why);
  auto message = v.socket.next();
  bool stays = open;
  if (!message)
    stays = false;
  else if (*message)
    stays = v.link ? ready(v, **message) : hello(v, **message);
  if (!stays && v.link) {
    const auto found = links_.find(v.link->id());
    if (found != links_.end() && !found->second->endpoint()) links_.erase(found);
  }
  return stays;
}

bool service::turn_away(visitor& v, errc code, const std::string& why) {
  auto text = side_text(said::refused, why.substr(0, longest_reason), code);
  v.socket.send(std::move(text));
  return false;
}

bool service::hello(visitor& v, const side_message& m) {
  if (m.head.said != said::hello) return turn_away(v, errc::invalid_data, "a hello was expected");
  if (const auto differs = difference(m.head)) return turn_away(v, differs->code, differs->message);
  auto there = taken_apart(m);
  if (!there) return turn_away(v, errc::invalid_data, "a hello that no Weir sends");
  if (there->token != settings_.token)
    return turn_away(v, errc::unavailable, "the peer belongs to another run: its token differs");
  if (const auto differs = environment_difference(environment_, there->settings))
    return turn_away(v, errc::unsupported, *differs);
  v.link = new_link();
  const bool shares = settings_.shared_memory && there->g.shares_memory != 0;
  v.link->introduce(v.peer, there->g.link, shared(shares), there->g.here);
  v.side = {there->g.here.transport, std::move(there->address)};
  v.slow = one_machine(here_, there->g.here) && !(shares && here_.same_host(there->g.here));
  auto ours = greet(*v.link);
  if (const auto e = known(*v.link, v.side, [](const endpoint&) { return true; })) {
    ours.endpoint = e->id;
    ours.pair = e->pair;
  }
  v.socket.send(greeting_text(said::welcome, *v.link, ours, {}));
  return true;
}

bool service::ready(visitor& v, const side_message& m) {
  const auto theirs = m.as<agreement>();
  if (m.head.said != said::ready || !theirs) return turn_away(v, errc::invalid_data, "an answer that no Weir sends");
  auto found = agree_as_server(*v.link, v.side, *theirs);
  if (!found) return turn_away(v, found.error().code, found.error().message);
  if (v.slow) look_at(*found->with, here_, false, v.peer);
  v.socket.send(side_struct(said::accepted, agreement{found->with->id, found->reused ? 1U : 0U}));
  auto object = std::make_shared<ucx_connection>(v.link);
  v.link->begin(found->with, std::move(v.socket), object);
  to_user_->post([object = std::move(object), told = std::weak_ptr(handlers_)]() mutable {
    const auto handlers = told.lock();
    if (handlers && handlers->on_accepted) handlers->on_accepted(std::move(object));
  });
  return false;  // a link now
}

}  // namespace weir::ucx

#include "service.hpp"

#include <poll.h>

#include <algorithm>
#include <random>
#include <set>
#include <stdexcept>

#include "environment.hpp"

namespace weir::ucx {

namespace {

/// The longest sleep, should a wake-up be lost.
constexpr std::chrono::milliseconds nap{100};
/// An endpoint that no connection uses is closed after so long.
constexpr std::chrono::seconds idle_time{1};
/// How long a transport that ends waits for its peers to take its goodbye, and for UCX to let go.
constexpr std::chrono::milliseconds parting{200};
constexpr std::chrono::seconds letting_go{2};
/// How long the thread looks for more before it sleeps, while operations are under way: those whose next step wakes it,
/// and those over memory of the machine, whose next step may not. After `stalled` it sleeps as always.
constexpr std::chrono::microseconds spinning{20};
constexpr std::chrono::milliseconds yielding{2};
constexpr std::chrono::seconds stalled{1};

}  // namespace

service::service(std::shared_ptr<const transport_handlers> handlers, std::shared_ptr<inbox> to_user, const settings& s)
    : settings_(s), handlers_(std::move(handlers)), to_user_(std::move(to_user)), here_(make_whereabouts(true)) {
  environment_ = shared_environment();
  auto c = context::make();
  if (!c) throw std::runtime_error(c.error().message);
  context_ = *c;
  auto w = new_worker();
  if (!w) throw std::runtime_error(w.error().message);
  workers_.push_back(std::move(*w));
  around_ = {to_user_, mail_, handlers_, regions_, segments_, settings_.chunk, settings_.window};
  segments_->on_first([mail = mail_, this] { mail->post([this] { sweeping_ = true; }); });
  thread_ = std::thread([this] { run(); });
}

service::~service() {
  segments_->on_first({});
  mail_->post([this] { stopping_ = true; });
  thread_.join();
  mail_->close();
}

std::uint64_t service::random() {
  std::random_device device;
  return (std::uint64_t{device()} << 32U) | device() | 1U;
}

void service::notice(const std::string& what) {
  to_user_->post([told = std::weak_ptr(handlers_), what] {
    const auto handlers = told.lock();
    if (handlers && handlers->on_notice) handlers->on_notice(what);
  });
}

result<std::shared_ptr<region>> service::allocate(std::size_t size) {
  try {
    std::string obstacle;
    auto owner = here_;
    if (!settings_.shared_memory) owner.machine = 0;
    auto [memory, address] = regions_->make(size, owner, obstacle);
    memory->registration = context::know(context_, memory->data, size);
    if (!obstacle.empty() && !told_of_memory_.exchange(true))
      notice("regions of this process cannot be mapped by others on this machine: " + obstacle);
    return std::shared_ptr<region>(
        std::make_shared<registered_region>(regions_, std::move(memory), address, descriptor_prefix));
  } catch (const std::bad_alloc&) {
    return fail(errc::unavailable, "no memory for a region of " + std::to_string(size) + " bytes");
  }
}

// ---- the loop

void service::run() {
  auto leave = time_point::max();
  for (unsigned rounds = 0;;) {
    const bool worked = work();
    if (stopping_) {
      const auto now = std::chrono::steady_clock::now();
      if (leave == time_point::max()) {
        leave = now + parting;
        listeners_.clear();
        for (auto& v : visitors_)
          if (v->link) links_.erase(v->link->id());
        visitors_.clear();
        for (const auto& [id, l] : std::map(links_)) l->close();
        continue;
      }
      if (links_.empty() || now >= leave) return end();
    }
    if (worked) {
      if (++rounds % 32 == 0) watch(0);  // sockets wait while there is work, but not for long
      continue;
    }
    if (linger_awake()) continue;
    sleep();
  }
}

/// Whether to look again instead of sleeping. An operation under way often goes on within microseconds; and what waits
/// for room in memory that a peer shares goes on without any event to wake us.
bool service::linger_awake() {
  bool busy = false, unheard = false;
  for (const auto& e : alive_) {
    busy = busy || e->under_way() > 0;
    unheard = unheard || (e->under_way() > 0 && e->path().within_host);
  }
  if (!busy) return false;
  const auto quiet = std::chrono::steady_clock::now() - worked_;
  eager_ = unheard && quiet < stalled;
  if (quiet >= (unheard ? yielding : spinning)) return false;
  if (unheard) std::this_thread::yield();
  return true;
}

/// Whatever there is to do without waiting; whether there was anything.
bool service::work() {
  unsigned count = 0;
  for (const auto& w : workers_)
    for (unsigned here = 0; here < 64 && ucp_worker_progress(w->handle()) != 0; ++here) ++count;
  if (count > 0) {
    fruitless_ = 0;
    worked_ = std::chrono::steady_clock::now();
  }
  const bool mail = mail_->run() > 0;
  if (some_doomed_) end_doomed();
  expire();
  tidy();
  return mail || count > 0;
}

void service::sleep() {
  // A descriptor that is ready though there is nothing to do must not keep a core busy.
  auto status = UCS_OK;
  for (const auto& w : workers_)
    if (status == UCS_OK) status = ucp_worker_arm(w->handle());
  if (status == UCS_ERR_BUSY && ++fruitless_ < 1000) return;
  if (status == UCS_OK && ++fruitless_ < 1000) {
    auto time = std::chrono::duration_cast<std::chrono::milliseconds>(nap);
    if (!timers_.empty()) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first - std::chrono::steady_clock::now());
      time = std::clamp(left, std::chrono::milliseconds(0), time);
    }
    if (!closing_.empty() || std::exchange(eager_, false)) time = std::min(time, std::chrono::milliseconds(1));
    return watch(static_cast<int>(time.count()));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  watch(0);
}

/// Waits so long for sockets, mail and UCX, and sees to the sockets.
void service::watch(int milliseconds) {
  std::vector<pollfd> fds{{mail_->fd(), POLLIN, 0}};
  for (const auto& w : workers_) fds.push_back({w->event_fd(), POLLIN, 0});
  const auto own = fds.size();
  const auto now = std::chrono::steady_clock::now();
  if (now >= accept_again_)
    for (const auto& l : listeners_) fds.push_back({l.get(), POLLIN, 0});
  const auto listening = fds.size() - own;
  const auto events = [](const side_socket& s) {
    return static_cast<short>(s.wants_to_write() ? POLLIN | POLLOUT : POLLIN);
  };
  for (const auto& v : visitors_) fds.push_back({v->socket.fd(), events(v->socket), 0});
  const auto visiting = visitors_.size();
  std::vector<std::shared_ptr<link>> watched;
  for (const auto& [id, l] : links_)
    if (l->socket().fd() >= 0) {
      watched.push_back(l);
      fds.push_back({l->socket().fd(), events(l->socket()), 0});
    }
  const int some = ::poll(fds.data(), fds.size(), milliseconds);
  if (some == 0 && milliseconds > 0) fruitless_ = 0;
  if (some <= 0) return;
  auto at = fds.begin() + static_cast<std::ptrdiff_t>(own);
  if (fds[0].revents != 0 || std::all_of(fds.begin() + 1, at, [](const pollfd& p) { return p.revents == 0; }))
    fruitless_ = 0;
  std::vector<int> knocked;
  for (std::size_t i = 0; i < listening; ++i, ++at)
    if (at->revents != 0) knocked.push_back(at->fd);
  for (std::size_t i = 0; i < visiting; ++i, ++at)
    if (at->revents != 0 && !attend(*visitors_[i])) visitors_[i].reset();
  std::erase(visitors_, nullptr);
  for (const auto& l : watched) {
    if (at++->revents != 0) l->on_socket();
  }
  for (const int fd : knocked) accept(fd);
}

void service::expire() {
  const auto now = std::chrono::steady_clock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const auto l = timers_.begin()->second;
    timers_.erase(timers_.begin());
    l->wanted = time_point::max();
    l->expire(now);
  }
}

void service::wake(link& l, time_point when) {
  if (l.wanted == when) return;
  auto self = l.shared_from_this();
  timers_.erase({l.wanted, self});
  l.wanted = when;
  if (when != time_point::max()) timers_.emplace(when, std::move(self));
}

void service::forget(link& l) { links_.erase(l.id()); }

void service::unwatch(link& l) { l.socket().close(); }

void service::retire(endpoint& e, const std::string& why) {
  if (!std::exchange(e.doomed, true)) e.why = why;
  some_doomed_ = true;
}

void service::doom(endpoint& e, const std::string& why) {
  e.lost = true;
  retire(e, why);
}

result<std::shared_ptr<worker>> service::new_worker() {
  return worker::make(
      context_, [this](const worker& at, const void* header, std::size_t header_length, void* data, std::size_t length,
                       bool announced) { return on_message(at, header, header_length, data, length, announced); });
}

/// A peer was lost that wrote into this worker's memory. UCX's shared memory has one queue for all who send to a
/// worker: one that is killed between taking a place in it and filling it stops the queue for ever (UCX issue 10370;
/// seen with 1.13 for one kill in 30, in mid-transfer). So new connections go by another worker. Those that this one
/// has keep it if they still hear their peers, and end otherwise.
void service::suspected(const std::shared_ptr<worker>& w) {
  for (const auto& [id, l] : links_)
    if (l->at() == w) l->probe(settings_.silence);
  if (w != workers_.back()) return;
  if (auto made = new_worker())
    workers_.push_back(std::move(*made));
  else
    notice("a peer was lost, and what it left in shared memory may hold up others: " + made.error().message);
}

/// Endpoints that failed, or have to fail: their links end, and UCX gives back what it holds.
void service::end_doomed() {
  some_doomed_ = false;
  watch(0);  // who said goodbye before is not lost
  const auto all = alive_;
  std::set<std::shared_ptr<worker>> suspect;
  for (const auto& e : all) {
    if (!e->doomed) continue;
    if (e->lost && e->path().within_host) suspect.insert(e->at);
    for (const auto& [id, l] : std::map(links_))
      if (l->endpoint() == e) l->broke({errc::unavailable, "the connection to " + l->peer() + " was lost: " + e->why});
    std::erase(alive_, e);
    e->close();
    if (!e->quiet()) closing_.push_back(e);
  }
  if (!stopping_)
    for (const auto& w : suspect) suspected(w);
}

void service::tidy() {
  if (!closing_.empty()) std::erase_if(closing_, [](const auto& e) { return e->quiet(); });
  const auto now = std::chrono::steady_clock::now();
  if (now - swept_ < nap) return;
  swept_ = now;
  if (sweeping_) sweeping_ = segments_->sweep();
  for (const auto& e : alive_)
    if (e->links == 0 && now - e->idle_since >= idle_time) retire(*e, "nobody uses it");
  std::erase_if(visitors_, [&](const auto& v) {
    if (v->patience > now) return false;
    if (v->link) links_.erase(v->link->id());
    return true;
  });
  if (some_doomed_) end_doomed();
  if (const auto latest = workers_.back(); workers_.size() > 1)
    std::erase_if(workers_, [&](const auto& w) { return w != latest && w.use_count() == 1; });
}

void service::end() {
  for (const auto& [id, l] : std::map(links_)) l->shut();
  for (const auto& e : std::vector(alive_)) retire(*e, "the transport is gone");
  end_doomed();
  for (const auto until = std::chrono::steady_clock::now() + letting_go;
       !closing_.empty() && std::chrono::steady_clock::now() < until;) {
    for (const auto& w : workers_) ucp_worker_progress(w->handle());
    tidy();
  }
  mail_->run();
  timers_.clear();
  for (const auto& w : workers_) w->destroy();
  workers_.clear();
}

ucs_status_t service::on_message(const worker& at, const void* header, std::size_t header_length, void* data,
                                 std::size_t length, bool announced) {
  message m;
  if (header_length != sizeof m) return UCS_OK;
  std::memcpy(&m, header, sizeof m);
  const auto found = links_.find(m.link);
  if (found == links_.end() || found->second->at().get() != &at)
    return UCS_OK;  // of a connection that is over, or none
  const auto l = found->second;
  return l->on_message(m, data, length, announced);
}

}  // namespace weir::ucx

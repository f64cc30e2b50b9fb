#include "weir/transport/tcp.hpp"

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <stdexcept>
#include <thread>

#include "handshake.hpp"
#include "link.hpp"

namespace weir {

namespace asio = boost::asio;
using asio_tcp = asio::ip::tcp;
using tcp::link;

namespace {

/// A peer that connects and says nothing, or connects some of its streams only, is given up after so long.
constexpr std::chrono::seconds handshake_time{5};
/// Peers in mid-handshake at once; more are turned away.
constexpr std::size_t most_handshakes = 1024;
/// How long a transport that ends waits for its peers to take its goodbye.
constexpr std::chrono::milliseconds parting{200};
/// How often mapped memory is looked through for what nobody uses.
constexpr std::chrono::milliseconds sweep_time{250};

class tcp_transport final : public transport {
 public:
  tcp_transport(transport_handlers handlers, tcp_settings settings)
      : settings_(std::move(settings)), handlers_(std::make_shared<transport_handlers>(std::move(handlers))) {
    if (settings_.streams < 1 || settings_.streams > 64)
      throw std::invalid_argument("a TCP transport has 1 to 64 streams");
    if (settings_.threads < 1) throw std::invalid_argument("a TCP transport has at least one thread");
    if (settings_.chunk < 4096) throw std::invalid_argument("a TCP transport's chunk is at least 4096 bytes");
    if (settings_.token.size() > 255) throw std::invalid_argument("a TCP transport's token has at most 255 bytes");
    around_ = {inbox_, handlers_, regions_, segments_, make_whereabouts(settings_.shared_memory), settings_.chunk};
    try {
      for (std::size_t i = 0; i < settings_.threads; ++i) workers_.push_back(std::make_unique<worker>());
    } catch (...) {
      stop();
      throw;
    }
    segments_->on_first(
        [this] { asio::post(context(0), [this] { asio::co_spawn(context(0), sweep(), asio::detached); }); });
  }
  ~tcp_transport() override { stop(); }

  transport_capabilities capabilities() const override {
    return {"tcp", true, around_.here.machine != 0, around_.here.host(), true, false, tcp::longest_frame};
  }

  result<std::string> listen(const std::string& address) override {
    auto endpoints = tcp::resolve(address, true, std::chrono::steady_clock::now() + handshake_time);
    if (!endpoints) return fail(endpoints.error());
    std::string reasons;
    for (const auto& endpoint : *endpoints) {
      auto made = open(endpoint);
      if (!made) {
        reasons += (reasons.empty() ? "" : "; ") + made.error().message;
        continue;
      }
      const auto port = (*made)->local_endpoint().port();
      asio::co_spawn(context(0), accept_loop(*made), asio::detached);
      return address.substr(0, address.rfind(':') + 1) + std::to_string(port);
    }
    return fail(errc::invalid_argument, "cannot listen at " + address + ": " + reasons);
  }

  result<std::shared_ptr<connection>> connect(const std::string& address,
                                              std::chrono::steady_clock::time_point deadline) override {
    try {
      return reach(address, deadline);
    } catch (const std::exception& e) {  // no descriptors, threads or memory
      return fail(errc::unavailable, "no connection to " + address + ": " + e.what());
    }
  }

  result<std::shared_ptr<region>> allocate(std::size_t size) override {
    try {
      std::string obstacle;
      auto [memory, address] = regions_->make(size, around_.here, obstacle);
      if (!obstacle.empty() && !told_of_memory_.exchange(true)) notice_later(obstacle);
      return std::shared_ptr<region>(
          std::make_shared<registered_region>(regions_, std::move(memory), address, tcp::descriptor_prefix));
    } catch (const std::bad_alloc&) {
      return fail(errc::unavailable, "no memory for a region of " + std::to_string(size) + " bytes");
    }
  }

  std::size_t progress() override { return inbox_->run(); }
  int event_fd() const override { return inbox_->fd(); }

 private:
  /// A context and the thread that runs it.
  struct worker {
    asio::io_context context{1};
    asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(context);
    std::thread thread{[this] { context.run(); }};
  };
  /// Sockets of a peer whose others are yet to come.
  struct arriving {
    std::vector<std::optional<asio_tcp::socket>> sockets;
    std::size_t count = 0;
    std::shared_ptr<asio::steady_timer> patience;
  };

  tcp::introduction introduction() const { return {settings_.token, around_.here}; }
  asio::io_context& context(std::size_t i) { return workers_[i % workers_.size()]->context; }

  /// From any thread.
  void notice_later(const std::string& obstacle) {
    inbox_->post([told = std::weak_ptr(handlers_), obstacle] {
      const auto handlers = told.lock();
      if (handlers && handlers->on_notice)
        handlers->on_notice("regions of this process cannot be mapped by others on this machine: " + obstacle);
    });
  }

  /// Mapped memory that nobody uses is let go of.
  asio::awaitable<void> sweep() {
    asio::steady_timer pause(context(0));
    boost::system::error_code failed;
    do {
      pause.expires_after(sweep_time);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, failed));
    } while (!failed && segments_->sweep());
  }

  tcp::key random_key() {
    tcp::key k;
    for (char& c : k) c = static_cast<char>(random_());
    return k;
  }

  result<std::shared_ptr<connection>> reach(const std::string& address,
                                            std::chrono::steady_clock::time_point deadline) {
    auto endpoints = tcp::resolve(address, false, deadline);
    if (!endpoints) return fail(endpoints.error());
    asio::io_context here;
    std::optional<result<tcp::greeted>> greeted;
    const auto greet = [&]() -> asio::awaitable<void> {
      greeted.emplace(co_await tcp::greet(*endpoints, settings_.streams + 1, introduction(), random_key()));
    };
    asio::co_spawn(here, greet, [](const std::exception_ptr& thrown) {
      if (thrown) std::rethrow_exception(thrown);  // out of run_until
    });
    here.run_until(deadline);
    if (!greeted) return fail(errc::timeout, "no answer from " + address + " by the deadline");
    if (!*greeted) return fail(greeted->error());
    return std::shared_ptr<connection>(joined(std::move((*greeted)->sockets), address, (*greeted)->there));
  }

  result<std::shared_ptr<asio_tcp::acceptor>> open(const asio_tcp::endpoint& endpoint) {
    auto acceptor = std::make_shared<asio_tcp::acceptor>(context(0));
    boost::system::error_code failed;
    acceptor->open(endpoint.protocol(), failed);
    if (!failed) acceptor->set_option(asio::socket_base::reuse_address(true), failed);
    if (!failed) acceptor->bind(endpoint, failed);
    if (!failed) acceptor->listen(asio::socket_base::max_listen_connections, failed);
    if (failed) return fail(errc::invalid_argument, tcp::written(endpoint) + ": " + failed.message());
    return acceptor;
  }

  /// In context 0, as all that follows but `joined` and `stop`.
  asio::awaitable<void> accept_loop(std::shared_ptr<asio_tcp::acceptor> acceptor) {
    acceptors_.push_back(acceptor);
    while (acceptor->is_open()) {
      boost::system::error_code failed;
      auto peer = std::make_shared<asio_tcp::socket>(context(0));
      co_await acceptor->async_accept(*peer, asio::redirect_error(asio::use_awaitable, failed));
      if (failed == asio::error::operation_aborted) co_return;
      if (failed) {  // such as no descriptors: wait until some are free
        asio::steady_timer later(context(0), std::chrono::milliseconds(50));
        co_await later.async_wait(asio::redirect_error(asio::use_awaitable, failed));
        continue;
      }
      if (handshakes_ >= most_handshakes) continue;
      ++handshakes_;
      asio::co_spawn(context(0), receive(peer), [this](const std::exception_ptr&) { --handshakes_; });
    }
  }

  asio::awaitable<void> receive(std::shared_ptr<asio_tcp::socket> peer) {
    asio::steady_timer patience(context(0), handshake_time);
    patience.async_wait([peer](boost::system::error_code cancelled) {
      boost::system::error_code ignored;
      if (!cancelled) peer->close(ignored);
    });
    auto said = co_await tcp::answer(*peer, introduction());
    patience.cancel();
    if (!said || stopping_) co_return;
    auto& group = arriving_[said->connection];
    if (group.sockets.empty()) {
      group.sockets.resize(said->streams);
      group.patience = std::make_shared<asio::steady_timer>(context(0), handshake_time);
      group.patience->async_wait([this, k = said->connection](boost::system::error_code cancelled) {
        if (!cancelled) arriving_.erase(k);
      });
    }
    if (group.sockets.size() != said->streams || group.sockets[said->stream]) co_return;
    group.sockets[said->stream] = std::move(*peer);
    if (++group.count < group.sockets.size()) co_return;
    std::vector<asio_tcp::socket> sockets;
    for (auto& s : group.sockets) sockets.push_back(std::move(*s));
    group.patience->cancel();
    arriving_.erase(said->connection);
    boost::system::error_code gone;
    const auto from = sockets.front().remote_endpoint(gone);
    auto made = joined(std::move(sockets), gone ? std::string("a peer") : tcp::written(from), said->there);
    inbox_->post([made = std::move(made), told = std::weak_ptr(handlers_)]() mutable {
      const auto handlers = told.lock();
      if (handlers && handlers->on_accepted) handlers->on_accepted(std::move(made));
    });
  }

  /// Sockets of a whole handshake become a connection; each moves to the context that will run it. From any thread.
  std::shared_ptr<connection> joined(std::vector<asio_tcp::socket> sockets, std::string peer,
                                     const whereabouts& there) {
    std::vector<asio_tcp::socket> moved;
    for (auto& s : sockets) {
      tcp::prepare(s, settings_.silence);
      const auto protocol = s.local_endpoint().protocol();
      moved.emplace_back(context(next_context_++), protocol, s.release());
    }
    auto made = std::make_shared<link>(around_, std::move(peer), there);
    auto object = std::make_shared<tcp::tcp_connection>(made);
    {
      std::lock_guard lock(links_mutex_);
      std::erase_if(links_, [](const auto& l) { return l.expired(); });
      links_.push_back(made);
    }
    made->begin(std::move(moved), object);
    return object;
  }

  std::vector<std::shared_ptr<link>> live_links() {
    std::lock_guard lock(links_mutex_);
    std::vector<std::shared_ptr<link>> live;
    for (const auto& l : links_)
      if (auto held = l.lock()) live.push_back(std::move(held));
    return live;
  }

  void stop() {
    segments_->on_first({});
    if (!workers_.empty())
      asio::post(context(0), [this] {
        stopping_ = true;
        boost::system::error_code ignored;
        for (auto& a : acceptors_)
          if (auto acceptor = a.lock()) acceptor->close(ignored);
        arriving_.clear();
      });
    for (auto& l : live_links()) l->close();
    const auto patience = std::chrono::steady_clock::now() + parting;
    const auto parted = [this] {
      const auto live = live_links();
      return std::all_of(live.begin(), live.end(), [](const auto& l) { return l->over(); });
    };
    while (!parted() && std::chrono::steady_clock::now() < patience)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (auto& w : workers_) w->context.stop();
    for (auto& w : workers_) w->thread.join();
    // One thread from here on. What still waits in a context ends, so that nothing of it is left when that goes.
    for (auto& l : live_links()) l->shut_all();
    for (bool more = true; more;) {
      more = false;
      for (auto& w : workers_) {
        w->context.restart();
        more = w->context.poll() > 0 || more;
      }
    }
    inbox_->close();
  }

  tcp_settings settings_;
  std::shared_ptr<inbox> inbox_ = std::make_shared<inbox>();
  std::shared_ptr<const transport_handlers> handlers_;
  std::shared_ptr<regions> regions_ = std::make_shared<regions>();
  std::shared_ptr<segment_cache> segments_ = std::make_shared<segment_cache>();
  std::atomic<bool> told_of_memory_ = false;
  link::surroundings around_;
  std::random_device random_;
  std::vector<std::weak_ptr<asio_tcp::acceptor>> acceptors_;
  std::map<tcp::key, arriving> arriving_;
  std::size_t handshakes_ = 0;
  bool stopping_ = false;
  std::atomic<std::size_t> next_context_ = 0;
  std::mutex links_mutex_;
  std::vector<std::weak_ptr<link>> links_;
  std::vector<std::unique_ptr<worker>> workers_;  ///< last: gone first
};

}  // namespace

std::unique_ptr<transport> make_tcp_transport(transport_handlers handlers, const tcp_settings& settings) {
  return std::make_unique<tcp_transport>(std::move(handlers), settings);
}

transport_maker tcp_maker(tcp_settings settings) {
  return [settings = std::move(settings)](transport_handlers handlers) {
    return make_tcp_transport(std::move(handlers), settings);
  };
}

}  // namespace weir

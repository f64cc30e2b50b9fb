#pragma once
// The one thread of a UCX transport: it owns worker, endpoints, sockets and links, and sleeps when nothing is to be
// done.

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "link.hpp"

namespace weir::ucx {

struct settings {
  std::string token;
  std::size_t chunk = std::size_t{4} << 20;
  std::size_t window = 8;
  std::chrono::milliseconds silence{10'000};
  bool shared_memory = true;
};

/// Who is to be reached: the transport, and its worker's address.
struct other_side {
  transport_id id{};
  std::string address;
};

/// What a handshake agreed on.
struct agreed {
  std::shared_ptr<endpoint> with;
  bool reused = false;
};

class service final : public service_of_links {
 public:
  /// Throws std::runtime_error if UCX can't work here, std::system_error without descriptors or threads.
  service(std::shared_ptr<const transport_handlers> handlers, std::shared_ptr<inbox> to_user, const settings& s);
  ~service() override;

  // ---- the user's thread
  result<std::string> listen(const std::string& address);
  result<std::shared_ptr<connection>> connect(const std::string& address, time_point deadline);
  /// From any thread.
  result<std::shared_ptr<region>> allocate(std::size_t size);
  const whereabouts& here() const noexcept { return here_; }
  bool shares_memory() const noexcept { return settings_.shared_memory && here_.machine != 0; }

  // ---- its own
  void wake(link& l, time_point when) override;
  void forget(link& l) override;
  void doom(endpoint& e, const std::string& why) override;
  void unwatch(link& l) override;

 private:
  /// A peer that connected and is not yet introduced.
  struct visitor {
    side_socket socket;
    std::string peer;
    time_point patience;
    std::shared_ptr<weir::ucx::link> link;  ///< once it said hello
    other_side side;
    bool slow = false;  ///< it is on this machine, and shares no memory
  };

  void run();
  bool work();
  bool linger_awake();
  void sleep();
  void watch(int milliseconds);
  void accept(int listener);
  bool attend(visitor& v);
  bool hello(visitor& v, const side_message& m);
  bool ready(visitor& v, const side_message& m);
  bool turn_away(visitor& v, errc code, const std::string& why);
  void expire();
  void retire(endpoint& e, const std::string& why);
  void end_doomed();
  void tidy();
  void end();
  /// Runs in the service's thread, and waits for the result.
  template <class Work>
  auto call(Work work) {
    std::promise<decltype(work())> promise;
    auto outcome = promise.get_future();
    mail_->post([&] { promise.set_value(work()); });
    return outcome.get();
  }

  std::uint64_t random();
  std::shared_ptr<link> new_link();
  whereabouts shared(bool peer_shares) const;
  greeting greet(const link& l) const;
  std::string greeting_text(said what, const link& l, const greeting& g, const std::string& token) const;
  template <class Condition>
  std::shared_ptr<endpoint> known(const link& l, const other_side& peer, Condition condition) const;
  result<agreed> new_endpoint(const link& l, const other_side& peer);
  result<agreed> agree_as_client(const link& l, const other_side& peer, const greeting& there);
  result<agreed> agree_as_server(const link& l, const other_side& peer, const agreement& there);
  result<std::shared_ptr<worker>> new_worker();
  void suspected(const std::shared_ptr<worker>& w);
  void notice(const std::string& what);
  void look_at(const endpoint& e, const whereabouts& there, bool maps, const std::string& peer);

  ucs_status_t on_message(const worker& at, const void* header, std::size_t header_length, void* data,
                          std::size_t length, bool announced);

  settings settings_;
  std::shared_ptr<const transport_handlers> handlers_;
  std::shared_ptr<inbox> to_user_;
  std::shared_ptr<inbox> mail_ = std::make_shared<inbox>();
  std::shared_ptr<regions> regions_ = std::make_shared<regions>();
  std::shared_ptr<segment_cache> segments_ = std::make_shared<segment_cache>();
  whereabouts here_;
  std::string environment_;  ///< as it was when UCX read it
  std::shared_ptr<context> context_;
  surroundings around_;
  std::atomic<bool> told_of_memory_ = false;

  // the thread's
  bool stopping_ = false;
  bool some_doomed_ = false;
  bool told_of_path_ = false;
  bool sweeping_ = false;
  bool eager_ = false;  ///< the next sleep is short
  unsigned fruitless_ = 0;
  time_point worked_{};
  time_point swept_{}, accept_again_{};
  std::vector<descriptor> listeners_;
  std::vector<std::unique_ptr<visitor>> visitors_;
  std::map<std::uint64_t, std::shared_ptr<link>> links_;
  /// New connections have the last. Those before it are there for the connections that they had when a peer was lost.
  std::vector<std::shared_ptr<worker>> workers_;
  std::vector<std::shared_ptr<endpoint>> alive_, closing_;
  std::set<std::pair<time_point, std::shared_ptr<link>>> timers_;
  std::thread thread_;
};

}  // namespace weir::ucx

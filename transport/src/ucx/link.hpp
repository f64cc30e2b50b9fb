#pragma once
// One connection: what the user asked for, cut into requests, and answers to the peer's.

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "endpoint.hpp"
#include "local_lane.hpp"
#include "side.hpp"
#include "weir/transport/inbox.hpp"
#include "weir/transport/transport.hpp"

namespace weir::ucx {

class link;

/// What all links of a transport have.
struct surroundings {
  std::shared_ptr<weir::inbox> inbox;    ///< to the user's thread
  std::shared_ptr<weir::inbox> service;  ///< to the service's
  std::weak_ptr<const transport_handlers> handlers;
  std::shared_ptr<weir::regions> regions;
  std::shared_ptr<segment_cache> segments;
  std::size_t chunk = 0;
  std::size_t window = 0;
};

/// What a link asks of the service; in its thread.
class service_of_links {
 public:
  virtual ~service_of_links() = default;

  /// The link's `expire` is wanted then; time_point::max() for never.
  virtual void wake(link& l, time_point when) = 0;
  /// The link is over.
  virtual void forget(link& l) = 0;
  /// The endpoint's peer is gone, or of no use: it is to be closed, by the loop.
  virtual void doom(endpoint& e, const std::string& why) = 0;
  /// What has been said on the link's socket is wanted no more.
  virtual void unwatch(link& l) = 0;
};

/// A get or put of the user's.
struct operation {
  bool is_get = true;
  region_key key{};
  std::uint64_t offset = 0;
  std::byte* into = nullptr;
  const std::byte* from = nullptr;
  std::size_t size = 0;
  time_point deadline;
  completion done;

  std::size_t issued = 0;
  bool all_issued = false;
  std::size_t chunks = 0;  ///< that wait for an answer
  std::size_t held = 0;    ///< operations of UCX's that may use the user's memory
  std::optional<error> failure;
  bool over = false;
};

class link : public std::enable_shared_from_this<link> {
 public:
  /// `at` is where the peer is told to send what it says.
  link(surroundings around, service_of_links& service, std::uint64_t id, std::shared_ptr<worker> at)
      : around_(std::move(around)), service_(service), id_(id), at_(std::move(at)) {}

  // ---- the user's thread
  void transfer(std::shared_ptr<operation> op, const std::string& descriptor);
  result<void> send(std::span<const std::byte> frame);
  result<mapped_region> map(const std::string& descriptor);
  std::string lane() const;
  void close();

  // ---- the service's thread
  std::uint64_t id() const noexcept { return id_; }
  const std::shared_ptr<worker>& at() const noexcept { return at_; }
  const std::string& peer() const noexcept { return peer_; }
  std::shared_ptr<ucx::endpoint> endpoint() const noexcept { return endpoint_; }
  side_socket& socket() noexcept { return socket_; }
  time_point wanted{time_point::max()};  ///< the service's

  /// Who is there, as the handshake told; before `begin`.
  void introduce(std::string peer, std::uint64_t id_there, const whereabouts& here, const whereabouts& there);
  void begin(std::shared_ptr<ucx::endpoint> e, side_socket socket, std::weak_ptr<connection> object);
  ucs_status_t on_message(const message& m, void* data, std::size_t length, bool announced);
  void on_socket();
  void expire(time_point now);
  /// The connection ends as lost if the peer is not heard for so long, whatever else was agreed on.
  void probe(std::chrono::steady_clock::duration patience);
  void let_go();
  /// The peer is lost, or broke the protocol.
  void broke(const error& why);
  /// The service ends: nothing is waited for.
  void shut();

 private:
  enum class state { new_, up, leaving, left_by_peer, over };
  struct chunk {
    std::shared_ptr<operation> of;
    std::uint64_t offset = 0;  ///< within the operation
    std::size_t size = 0;
    bool receiving = false;
    bool direct = false;
    time_point began;
    std::vector<std::byte> bounce;
  };

  // user's and service's
  std::optional<error> why_not() const;
  bool closed() const;
  void post(std::function<void()> work) { around_.inbox->post(std::move(work)); }
  template <class Work>
  void on_service(Work work);
  bool copied_from_memory(operation& op, const region_address& a);
  void tell_closed(const error& why);

  // service's
  void order(std::shared_ptr<operation> op);
  void issue();
  void issue_one(const std::shared_ptr<operation>& op);
  void send_put(std::uint64_t id, chunk& c);
  bool near(const operation& op) const;
  void settle(const std::shared_ptr<operation>& op);
  void set_deadline(const std::shared_ptr<operation>& op, time_point when);
  void end_all(const error& why);
  void answer(const message& m, std::span<const std::byte> payload, std::shared_ptr<const void> keep, unsigned flags,
              ended then = {});
  void refuse(std::uint64_t id, errc code, const std::string& reason);
  ucs_status_t breach(const std::string& what);
  ucs_status_t on_get(const message& m);
  ucs_status_t on_data(const message& m, void* data, std::size_t length, bool announced);
  ucs_status_t on_put(const message& m, void* data, std::size_t length, bool announced);
  ucs_status_t on_verdict(const message& m, void* data, std::size_t length);
  ucs_status_t on_frame(const message& m, const void* data, std::size_t length);
  ucs_status_t on_taken(const message& m);
  ucs_status_t on_ping();
  ucs_status_t on_pong();
  void arrived(std::uint64_t id, ucs_status_t status);
  void stored(const message& m, const std::shared_ptr<memory>& into, ucs_status_t status);
  void send_frame(std::vector<std::byte> frame);
  void frames_taken(std::size_t bytes);
  void deliver(std::vector<std::byte> frame);
  void left(std::uint64_t frames);
  void end();
  void arm();

  surroundings around_;
  service_of_links& service_;  ///< while its thread runs
  std::uint64_t id_;
  std::shared_ptr<worker> at_;
  std::uint64_t id_there_ = 0;
  std::string peer_;
  std::optional<local_lane> local_;
  bool local_failed_ = false;  ///< the user's thread alone
  std::string wire_;           ///< what carries bulk that is not mapped
  std::weak_ptr<connection> object_;

  mutable std::mutex mutex_;
  std::optional<error> broken_;
  bool closed_ = false;
  std::size_t frames_out_ = 0;  ///< bytes that the peer's user has not taken

  state state_ = state::new_;
  std::shared_ptr<ucx::endpoint> endpoint_;
  side_socket socket_;
  time_point linger_ = time_point::max();
  time_point probed_ = time_point::max();  ///< when an answer to a probe is overdue
  std::deque<std::shared_ptr<operation>> queue_;
  std::set<std::pair<time_point, std::shared_ptr<operation>>> deadlines_;
  std::map<std::uint64_t, chunk> chunks_;
  std::uint64_t last_id_ = 0;
  std::chrono::steady_clock::duration slowest_{};  ///< of recent chunks
  std::size_t answers_ = 0;                        ///< to the peer's requests, under way

  std::uint64_t frames_sent_ = 0, frames_due_ = 0;  ///< numbers of the next
  std::map<std::uint64_t, std::vector<std::byte>> early_;
  std::size_t frames_in_ = 0;                ///< bytes that wait for the user
  std::size_t taken_ = 0;                    ///< bytes that the peer was not told of
  std::optional<std::uint64_t> last_frame_;  ///< of the peer's, by its goodbye
};

class ucx_connection final : public connection {
 public:
  explicit ucx_connection(std::shared_ptr<link> l) : link_(std::move(l)) {}
  ~ucx_connection() override { link_->close(); }
  void get(const std::string& descriptor, std::uint64_t offset, std::span<std::byte> into, time_point deadline,
           completion done) override {
    auto op = std::make_shared<operation>();
    op->offset = offset;
    op->into = into.data();
    op->size = into.size();
    op->deadline = deadline;
    op->done = std::move(done);
    link_->transfer(std::move(op), descriptor);
  }
  void put(const std::string& descriptor, std::uint64_t offset, std::span<const std::byte> from, time_point deadline,
           completion done) override {
    auto op = std::make_shared<operation>();
    op->is_get = false;
    op->offset = offset;
    op->from = from.data();
    op->size = from.size();
    op->deadline = deadline;
    op->done = std::move(done);
    link_->transfer(std::move(op), descriptor);
  }
  result<mapped_region> map(const std::string& descriptor) override { return link_->map(descriptor); }
  result<void> send(std::span<const std::byte> frame) override { return link_->send(frame); }
  std::string lane() const override { return link_->lane(); }
  void close() override { link_->close(); }

 private:
  std::shared_ptr<link> link_;
};

}  // namespace weir::ucx

#pragma once
// The streams to one peer together, and the connection object that the user has.

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "local_lane.hpp"
#include "stream.hpp"
#include "weir/transport/tcp.hpp"

namespace weir::tcp {

/// Held by its streams' loops, its operations and the user's connection. Thread-safe but where it says otherwise.
class link : public std::enable_shared_from_this<link> {
 public:
  struct surroundings {
    std::shared_ptr<weir::inbox> inbox;
    std::weak_ptr<const transport_handlers> handlers;  ///< the transport's: they may hold connections
    std::shared_ptr<weir::regions> regions;
    std::shared_ptr<segment_cache> segments;
    whereabouts here;
    std::size_t chunk = 0;
  };
  link(surroundings around, std::string peer, const whereabouts& there)
      : around_(std::move(around)),
        peer_(std::move(peer)),
        local_(around_.segments, around_.inbox, around_.here, there) {}

  /// Before anything else, once: the sockets, that for frames first, each of the context whose thread runs it.
  void begin(std::vector<boost::asio::ip::tcp::socket> sockets, std::weak_ptr<connection> object);

  const std::string& peer() const noexcept { return peer_; }
  weir::regions& regions() noexcept { return *around_.regions; }

  /// Divides an operation among the streams.
  void transfer(part whole, std::size_t size, const std::string& descriptor, completion done);
  result<mapped_region> map(const std::string& descriptor);
  std::string lane() const;
  result<void> send(std::span<const std::byte> frame);
  /// The user's end: goodbye, and nothing is heard any more.
  void close();
  bool closed() const;
  /// Whether its sockets are closed.
  bool over() const;
  /// The connection is over, for that reason. Once; the user hears of it unless he closed it.
  void broke(const error& why);
  /// Without a goodbye, from the thread of the transport's destructor once the contexts' threads have ended.
  void shut_all();

  void post(std::function<void()> work) { around_.inbox->post(std::move(work)); }
  /// From stream 0: false if reading has to wait for `resume`.
  bool deliver(std::vector<std::byte> frame);
  void frame_taken(std::size_t bytes);    ///< by the user's handler
  void frame_written(std::size_t bytes);  ///< to the socket

 private:
  std::optional<error> why_not() const;
  bool copied_from_memory(const part& whole, std::size_t size, const region_address& a, completion& done);
  void notice(const std::string& what);
  template <class Work>
  void on(stream& s, Work work);

  surroundings around_;
  std::string peer_;
  local_lane local_;
  bool local_failed_ = false;  ///< the user's thread alone
  std::weak_ptr<connection> object_;
  std::vector<std::unique_ptr<stream>> streams_;
  mutable std::mutex mutex_;
  std::optional<error> broken_;
  bool closed_ = false;
  bool paused_ = false;
  std::size_t frames_in_ = 0;   ///< bytes that wait for the user's progress
  std::size_t frames_out_ = 0;  ///< bytes that wait to be written
  std::size_t next_stream_ = 0;
};

class tcp_connection final : public connection {
 public:
  explicit tcp_connection(std::shared_ptr<link> l) : link_(std::move(l)) {}
  ~tcp_connection() override { link_->close(); }
  void get(const std::string& descriptor, std::uint64_t offset, std::span<std::byte> into, time_point deadline,
           completion done) override {
    part whole;
    whole.offset = offset;
    whole.into = into.data();
    whole.deadline = deadline;
    link_->transfer(std::move(whole), into.size(), descriptor, std::move(done));
  }
  void put(const std::string& descriptor, std::uint64_t offset, std::span<const std::byte> from, time_point deadline,
           completion done) override {
    part whole;
    whole.is_get = false;
    whole.offset = offset;
    whole.from = from.data();
    whole.deadline = deadline;
    link_->transfer(std::move(whole), from.size(), descriptor, std::move(done));
  }
  result<mapped_region> map(const std::string& descriptor) override { return link_->map(descriptor); }
  std::string lane() const override { return link_->lane(); }
  result<void> send(std::span<const std::byte> frame) override { return link_->send(frame); }
  void close() override { link_->close(); }

 private:
  std::shared_ptr<link> link_;
};

}  // namespace weir::tcp

#pragma once
// One of the TCP connections to a peer: requests of ours that go out on it, and answers to the peer's.

#include <sys/uio.h>

#include <utility>
// clang-format off
#include <boost/asio/awaitable.hpp>  // Boost 1.74's needs <utility> before it
// clang-format on
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "regions.hpp"
#include "weir/transport/inbox.hpp"
#include "wire.hpp"

namespace weir::tcp {

class link;
using time_point = std::chrono::steady_clock::time_point;

/// A get or put of the user's, whose parts are under way on several streams. Thread-safe.
class operation {
 public:
  operation(std::shared_ptr<link> on, std::size_t parts, completion done)
      : link_(std::move(on)), left_(parts), done_(std::move(done)) {}
  /// The last part's end posts the completion.
  void part_ended(const result<void>& outcome);

 private:
  std::shared_ptr<link> link_;
  std::mutex mutex_;
  std::size_t left_;
  std::optional<error> first_failure_;
  completion done_;
};

/// What one stream carries of an operation.
struct part {
  std::shared_ptr<operation> of;
  bool is_get = true;
  tcp::key key{};
  std::uint64_t offset = 0;
  std::byte* into = nullptr;
  const std::byte* from = nullptr;
  std::size_t size = 0;
  time_point deadline;
};

/// Lives in its io_context's thread: every member function is called there. Belongs to its link.
class stream {
 public:
  stream(link& owner, std::size_t number, boost::asio::ip::tcp::socket socket);

  boost::asio::io_context& context() noexcept { return context_; }
  /// Starts to read and write. `keep` keeps the link while they go on.
  void begin(const std::shared_ptr<link>& keep);
  void order(std::vector<part> parts);
  void send_frame(std::vector<std::byte> frame);
  /// Reading goes on after a pause for frames that nobody took.
  void resume();
  /// Ends what is ours with `why`; what the peer still sends is passed over. Says goodbye if `polite`.
  void let_go(const error& why, bool polite);
  /// The socket is closed, and both loops end. What is ours ends with `why`.
  void shut(const error& why);

 private:
  /// What is to be written: a header, then a payload from where it lies.
  struct outgoing {
    header head;
    std::span<const std::byte> payload;
    std::shared_ptr<const void> keep;  ///< what the payload lies in, unless it is the user's
    std::uint64_t request = 0;         ///< of ours: 0 is none
    std::size_t written = 0;           ///< of both
  };
  enum class place { waiting, under_way };
  struct request {
    part what;
    place at = place::waiting;
  };

  boost::asio::awaitable<void> read_loop();
  boost::asio::awaitable<void> write_loop();
  std::size_t wanted(iovec (&into)[2]) noexcept;
  std::size_t gathered(iovec (&from)[16]) noexcept;
  void wrote(std::size_t bytes);
  /// False after a breach of the protocol, which it has reported.
  bool received(std::size_t bytes);
  bool began(const header& h);
  bool payload_ended();
  bool began_frame(const header& h);
  bool began_answer(const header& h);
  bool began_get(const header& h);
  bool began_put(const header& h);
  bool breach(const std::string& what);
  void refuse(std::uint64_t id, errc code, std::string reason);
  void enqueue(outgoing item);
  void issue();
  void end(std::uint64_t id, const result<void>& outcome);
  void end_all(const error& why);
  void take_back(std::uint64_t id);
  void expire();
  void arm();
  void loop_ended();

  link& link_;
  std::size_t number_;
  boost::asio::io_context& context_;
  /// What belongs to the context: gone once both loops have ended, for a link may outlive its transport.
  struct io {
    boost::asio::ip::tcp::socket socket;
    boost::asio::steady_timer to_write, to_read, deadline;
  };
  std::optional<io> io_;
  bool open_ = true;      ///< until shut
  bool ours_ = true;      ///< until let_go or shut
  bool stopped_ = false;  ///< until resume
  int loops_ = 2;

  // reading
  header in_{}, next_{};
  std::size_t in_have_ = 0;  ///< of the header's bytes; all of them while the payload comes
  std::byte* to_ = nullptr;  ///< where the payload's rest goes; null: nowhere
  std::uint64_t left_ = 0;
  std::vector<std::byte> buffer_;       ///< of a frame or a reason
  std::shared_ptr<memory> written_to_;  ///< of a put that comes
  std::optional<error> put_refusal_;    ///< of a put that comes, and goes nowhere

  // writing
  std::deque<outgoing> out_;
  std::size_t answers_waiting_ = 0;  ///< in out_, to the peer's requests

  // ours
  std::uint64_t last_id_ = 0;
  std::map<std::uint64_t, request> requests_;
  std::deque<std::uint64_t> waiting_;
  std::size_t under_way_ = 0;
  std::set<std::pair<time_point, std::uint64_t>> deadlines_;
};

}  // namespace weir::tcp

#include "link.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <limits>

namespace weir::tcp {

namespace {

/// Bytes of frames that may wait on the way out, and for the user on the way in.
constexpr std::size_t frames_bound = std::size_t{16} << 20;

}  // namespace

template <class Work>
void link::on(stream& s, Work work) {
  boost::asio::post(s.context(), [keep = shared_from_this(), &s, work = std::move(work)]() mutable { work(s); });
}

void link::begin(std::vector<boost::asio::ip::tcp::socket> sockets, std::weak_ptr<connection> object) {
  object_ = std::move(object);
  for (auto& socket : sockets) streams_.push_back(std::make_unique<stream>(*this, streams_.size(), std::move(socket)));
  for (auto& s : streams_) on(*s, [keep = shared_from_this()](stream& there) { there.begin(keep); });
}

std::optional<error> link::why_not() const {
  std::lock_guard lock(mutex_);
  if (closed_) return error{errc::unavailable, "the connection to " + peer_ + " was closed"};
  if (broken_) return error{errc::unavailable, broken_->message};
  return std::nullopt;
}

bool link::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

bool link::over() const {
  std::lock_guard lock(mutex_);
  return broken_.has_value();
}

void link::transfer(part whole, std::size_t size, const std::string& descriptor, completion done) {
  auto refusal = why_not();
  const auto address = read_descriptor(descriptor_prefix, descriptor);
  if (!refusal && !address)
    refusal = error{errc::unavailable, "no region of that descriptor: it is none of a TCP transport's"};
  if (!refusal && size > std::numeric_limits<std::uint64_t>::max() - whole.offset)
    refusal =
        error{errc::invalid_argument, "bytes from " + std::to_string(whole.offset) + " on lie outside any region"};
  if (refusal) return post([done = std::move(done), why = std::move(*refusal)] { done(fail(why)); });
  if (whole.is_get && copied_from_memory(whole, size, *address, done)) return;
  whole.key = address->key;
  const auto bulk = streams_.size() - 1;
  const auto parts = std::max<std::size_t>(1, (size + around_.chunk - 1) / around_.chunk);
  whole.of = std::make_shared<operation>(shared_from_this(), parts, std::move(done));
  std::vector<std::vector<part>> shares(bulk);
  for (std::size_t i = 0; i < parts; ++i) {
    auto piece = whole;
    const auto from = i * around_.chunk;
    piece.offset += from;
    if (piece.is_get && size > 0) piece.into += from;
    if (!piece.is_get && size > 0) piece.from += from;
    piece.size = std::min(around_.chunk, size - from);
    shares[(next_stream_ + i) % bulk].push_back(std::move(piece));
  }
  next_stream_ = (next_stream_ + parts) % bulk;
  for (std::size_t i = 0; i < bulk; ++i)
    if (!shares[i].empty())
      on(*streams_[i + 1], [share = std::move(shares[i])](stream& there) mutable { there.order(std::move(share)); });
}

/// False if it has to go by the wire. Should it arrive there, though the machine could do better, the user is told
/// once.
bool link::copied_from_memory(const part& whole, std::size_t size, const region_address& a, completion& done) {
  std::string obstacle;
  const auto refused = [self = weak_from_this()]() -> std::optional<error> {
    const auto l = self.lock();
    return l ? l->why_not() : error{errc::unavailable, "the connection was closed"};
  };
  if (local_.get(a, whole.offset, {whole.into, size}, whole.deadline, refused, done, obstacle)) return true;
  if (!obstacle.empty() && !local_failed_)
    done = [self = weak_from_this(), obstacle, done = std::move(done)](result<void> outcome) {
      if (const auto l = self.lock(); l && outcome && !std::exchange(l->local_failed_, true))
        l->notice("bulk data from " + l->peer() + " goes by " + l->lane() + ", not by mapped memory: " + obstacle);
      done(std::move(outcome));
    };
  return false;
}

void link::notice(const std::string& what) {
  const auto handlers = around_.handlers.lock();
  if (handlers && handlers->on_notice) handlers->on_notice(what);
}

result<mapped_region> link::map(const std::string& descriptor) {
  if (const auto refusal = why_not()) return fail(*refusal);
  const auto address = read_descriptor(descriptor_prefix, descriptor);
  if (!address) return fail(errc::unavailable, "no region of that descriptor: it is none of a TCP transport's");
  return local_.map(*address, peer_);
}

std::string link::lane() const {
  if (local_.same_host() && !local_failed_) return "mapped memory";
  return "tcp, " + std::to_string(streams_.size() - 1) + (streams_.size() == 2 ? " stream" : " streams");
}

result<void> link::send(std::span<const std::byte> frame) {
  if (frame.size() > longest_frame)
    return fail(errc::invalid_argument, "a frame of " + std::to_string(frame.size()) + " bytes is longer than " +
                                            std::to_string(longest_frame));
  if (auto refusal = why_not()) return fail(*refusal);
  {
    std::lock_guard lock(mutex_);
    if (frames_out_ + frame.size() > frames_bound)
      return fail(errc::unavailable, "no room for a frame to " + peer_ + ": " + std::to_string(frames_out_) +
                                         " bytes wait that it does not take");
    frames_out_ += frame.size();
  }
  on(*streams_[0], [copy = std::vector<std::byte>(frame.begin(), frame.end())](stream& there) mutable {
    there.send_frame(std::move(copy));
  });
  return {};
}

void link::frame_written(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  frames_out_ -= bytes;
}

bool link::deliver(std::vector<std::byte> frame) {
  bool go_on = true;
  {
    std::lock_guard lock(mutex_);
    frames_in_ += frame.size();
    paused_ = frames_in_ > frames_bound;
    go_on = !paused_;
  }
  post([keep = shared_from_this(), frame = std::move(frame)] {
    const auto object = keep->object_.lock();
    const auto handlers = keep->around_.handlers.lock();
    if (object && handlers && !keep->closed() && handlers->on_frame) handlers->on_frame(*object, frame);
    keep->frame_taken(frame.size());
  });
  return go_on;
}

void link::frame_taken(std::size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    frames_in_ -= bytes;
    if (!paused_ || frames_in_ > frames_bound / 2 || closed_) return;
    paused_ = false;
  }
  on(*streams_[0], [](stream& there) { there.resume(); });
}

void link::close() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true) || broken_) return;
  }
  const error why{errc::unavailable, "the connection to " + peer_ + " was closed"};
  for (auto& s : streams_)
    on(*s, [why, polite = s == streams_.front()](stream& there) {
      there.resume();
      there.let_go(why, polite);
    });
}

void link::broke(const error& why) {
  {
    std::lock_guard lock(mutex_);
    if (broken_) return;
    broken_ = why;
    if (!closed_)
      post([keep = shared_from_this(), why] {
        const auto object = keep->object_.lock();
        const auto handlers = keep->around_.handlers.lock();
        if (object && handlers && !keep->closed() && handlers->on_closed) handlers->on_closed(*object, why);
      });
  }
  for (auto& s : streams_) on(*s, [why](stream& there) { there.shut({errc::unavailable, why.message}); });
}

void link::shut_all() {
  for (auto& s : streams_) s->shut({errc::unavailable, "the transport is gone"});
}

}  // namespace weir::tcp

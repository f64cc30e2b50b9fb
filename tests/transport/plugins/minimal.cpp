// The least that is a transport: one for the threads of a process, and a plugin. All of it, to be read beside
// transport/README.md; it keeps every rule of the interface, and none of them fast.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "weir/transport/plugin.hpp"

namespace {

using namespace weir;
using time_point = std::chrono::steady_clock::time_point;

/// What is to be run by a transport's next progress(): completions and handlers are called from there alone.
struct queue {
  int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  std::mutex mutex;
  std::deque<std::function<void()>> work;
  ~queue() { ::close(fd); }
  void add(std::function<void()> what) {
    std::lock_guard lock(mutex);
    work.push_back(std::move(what));
    (void)::eventfd_write(fd, 1);
  }
  std::size_t run() {
    std::deque<std::function<void()>> due;
    {
      std::lock_guard lock(mutex);
      eventfd_t ignored;
      (void)::eventfd_read(fd, &ignored);
      due.swap(work);
    }
    for (auto& what : due) what();  // without the lock: they may start operations
    return due.size();
  }
};

/// What transports of one maker share. A region is in it for as long as it lives; who copies holds the lock.
struct hub {
  std::mutex mutex;
  std::map<std::string, std::span<std::byte>> regions;
  std::map<std::string, std::function<std::shared_ptr<connection>(std::shared_ptr<connection>)>> listeners;
  std::uint64_t last_key = 0;
};

class minimal_region final : public region {
 public:
  minimal_region(std::shared_ptr<hub> h, std::size_t size)
      : hub_(std::move(h)),
        memory_(static_cast<std::byte*>(std::aligned_alloc(64, (size + 64) / 64 * 64))),
        size_(size) {
    if (memory_ == nullptr) throw std::bad_alloc();
    std::memset(memory_, 0, size);
    std::lock_guard lock(hub_->mutex);
    descriptor_ = "minimal:" + std::to_string(++hub_->last_key) + ":";  // nothing crosses a process: no secret
    hub_->regions.emplace(descriptor_, bytes());
  }
  ~minimal_region() override {
    {
      std::lock_guard lock(hub_->mutex);  // waits for a copy under way; none begins after
      hub_->regions.erase(descriptor_);
    }
    std::free(memory_);  // NOLINT(cppcoreguidelines-no-malloc)
  }
  std::span<std::byte> bytes() noexcept override { return {memory_, size_}; }
  const std::string& descriptor() const noexcept override { return descriptor_; }

 private:
  std::shared_ptr<hub> hub_;
  std::byte* memory_;
  std::size_t size_;
  std::string descriptor_;
};

/// One end; it knows the other weakly, and its transport by what that leaves behind for it.
class minimal_connection final : public connection {
 public:
  minimal_connection(std::shared_ptr<hub> h, std::shared_ptr<queue> mine, std::weak_ptr<const transport_handlers> told)
      : hub_(std::move(h)), mine_(std::move(mine)), told_(std::move(told)) {}
  ~minimal_connection() override { minimal_connection::close(); }

  static void join(const std::shared_ptr<minimal_connection>& a, const std::shared_ptr<minimal_connection>& b) {
    a->peer_ = b;
    b->peer_ = a;
    b->open_ = a->open_;
  }

  void get(const std::string& descriptor, std::uint64_t offset, std::span<std::byte> into, time_point,
           completion done) override {
    transfer(descriptor, offset, into.size(), std::move(done),
             [into](std::byte* at) { std::memcpy(into.data(), at, into.size()); });
  }
  void put(const std::string& descriptor, std::uint64_t offset, std::span<const std::byte> from, time_point,
           completion done) override {
    transfer(descriptor, offset, from.size(), std::move(done),
             [from](std::byte* at) { std::memcpy(at, from.data(), from.size()); });
  }
  result<mapped_region> map(const std::string&) override { return fail(errc::unsupported, "minimal maps nothing"); }
  std::string lane() const override { return "memory of this process"; }

  result<void> send(std::span<const std::byte> frame) override {
    const auto to = peer_.lock();
    if (!*open_ || !to) return fail(errc::unavailable, "the peer is gone");
    if (frame.size() > 65536) return fail(errc::invalid_argument, "a frame has at most 65536 bytes");
    to->mine_->add([at = peer_, copy = std::vector<std::byte>(frame.begin(), frame.end())] {
      const auto there = at.lock();
      const auto told = there ? there->told_.lock() : nullptr;
      if (told && told->on_frame) told->on_frame(*there, copy);
    });
    return {};
  }
  void close() override {
    if (!open_->exchange(false)) return;
    if (const auto to = peer_.lock())
      to->mine_->add([at = peer_] {
        const auto there = at.lock();
        const auto told = there ? there->told_.lock() : nullptr;
        if (told && told->on_closed) told->on_closed(*there, {errc::unavailable, "the peer closed the connection"});
      });
  }

 private:
  template <class Copy>
  void transfer(const std::string& descriptor, std::uint64_t offset, std::size_t size, completion done, Copy copy) {
    mine_->add([=, h = hub_, open = open_, done = std::move(done)] {
      if (!*open) return done(fail(errc::unavailable, "the connection was closed"));
      result<void> outcome;
      {
        std::lock_guard lock(h->mutex);
        const auto found = h->regions.find(descriptor);
        if (found == h->regions.end())
          outcome = fail(errc::unavailable, "no such region");
        else if (offset > found->second.size() || size > found->second.size() - offset)
          outcome = fail(errc::invalid_argument, "outside the region");
        else if (size > 0)
          copy(found->second.data() + offset);
      }
      done(std::move(outcome));
    });
  }

  std::shared_ptr<hub> hub_;
  std::shared_ptr<queue> mine_;
  std::weak_ptr<const transport_handlers> told_;
  std::weak_ptr<minimal_connection> peer_;
  std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(true);
};

class minimal_transport final : public transport {
 public:
  minimal_transport(std::shared_ptr<hub> h, transport_handlers handlers)
      : hub_(std::move(h)), handlers_(std::make_shared<const transport_handlers>(std::move(handlers))) {}
  ~minimal_transport() override {
    std::lock_guard lock(hub_->mutex);
    for (const auto& address : listening_) hub_->listeners.erase(address);
    std::lock_guard dropped(mine_->mutex);
    mine_->work.clear();
  }
  transport_capabilities capabilities() const override { return {"minimal", false, false, "", true, false, 65536}; }
  result<std::string> listen(const std::string& address) override {
    // Called with the hub's lock, in the connecting side's thread: it touches nothing but what is shared.
    auto accept = [h = hub_, queue = mine_, told = std::weak_ptr(handlers_)](std::shared_ptr<connection> from) {
      auto made = std::make_shared<minimal_connection>(h, queue, told);
      minimal_connection::join(std::static_pointer_cast<minimal_connection>(from), made);
      queue->add([made, told] {
        const auto handlers = told.lock();
        if (handlers && handlers->on_accepted) handlers->on_accepted(made);
      });
      return made;
    };
    std::lock_guard lock(hub_->mutex);
    if (!hub_->listeners.emplace(address, accept).second) return fail(errc::invalid_argument, address + " is taken");
    listening_.push_back(address);
    return address;
  }
  result<std::shared_ptr<connection>> connect(const std::string& address, time_point) override {
    std::lock_guard lock(hub_->mutex);
    const auto found = hub_->listeners.find(address);
    if (found == hub_->listeners.end()) return fail(errc::not_found, "nobody listens at " + address);
    auto made = std::make_shared<minimal_connection>(hub_, mine_, handlers_);
    found->second(made);
    return std::shared_ptr<connection>(std::move(made));
  }
  result<std::shared_ptr<region>> allocate(std::size_t size) override {
    try {
      return std::shared_ptr<region>(std::make_shared<minimal_region>(hub_, size));
    } catch (const std::bad_alloc&) {
      return fail(errc::unavailable, "no memory for a region of " + std::to_string(size) + " bytes");
    }
  }
  std::size_t progress() override { return mine_->run(); }
  int event_fd() const override { return mine_->fd; }

 private:
  std::shared_ptr<hub> hub_;
  std::shared_ptr<const transport_handlers> handlers_;
  std::shared_ptr<queue> mine_ = std::make_shared<queue>();
  std::vector<std::string> listening_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const weir_transport_plugin* weir_transport_plugin_v1() {
  static const auto mine =
      describe_plugin("minimal", "nothing else", [](const transport_settings& settings) -> result<transport_maker> {
        bool refuse = false;  // a setting, to show how one is read
        settings_reader r("minimal", settings);
        r.flag("refuse", refuse);
        if (auto read = r.end(); !read) return fail(read.error());
        if (refuse) return fail(errc::unsupported, "transport minimal: it was told to refuse");
        return [shared = std::make_shared<hub>()](transport_handlers handlers) {
          return std::make_unique<minimal_transport>(shared, std::move(handlers));
        };
      });
  return &mine;
}

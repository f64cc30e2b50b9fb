#include "weir/transport/inproc.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "weir/transport/inbox.hpp"

namespace weir {

namespace {

constexpr std::size_t longest_frame = std::size_t{1} << 20;

/// A region's memory. A read or write holds it and its lock, so that deregistration waits for a copy under way.
struct memory {
  explicit memory(std::size_t n) : size(n) {
    const auto rounded = (std::max<std::size_t>(n, 1) + 63) / 64 * 64;
    data.reset(static_cast<std::byte*>(std::aligned_alloc(64, rounded)));
    if (!data) throw std::bad_alloc();
    std::memset(data.get(), 0, rounded);
  }
  struct freed {
    void operator()(std::byte* p) const noexcept { std::free(p); }  // NOLINT(cppcoreguidelines-no-malloc)
  };
  std::unique_ptr<std::byte, freed> data;
  std::size_t size;
  std::mutex copying;
  bool registered = true;
};

}  // namespace

class inproc_fabric {
 public:
  std::string add(const std::shared_ptr<memory>& m) {
    std::lock_guard lock(mutex_);
    std::string key(16, '\0');
    for (char& c : key) c = static_cast<char>(random_());
    auto descriptor = "inproc:" + key;
    regions_.emplace(descriptor, m);
    return descriptor;
  }
  void remove(const std::string& descriptor) {
    std::lock_guard lock(mutex_);
    regions_.erase(descriptor);
  }
  /// Where its regions can be mapped: in no other fabric.
  std::string name() const { return "inproc fabric " + std::to_string(reinterpret_cast<std::uintptr_t>(this)); }
  std::shared_ptr<memory> find(const std::string& descriptor) {
    std::lock_guard lock(mutex_);
    auto found = regions_.find(descriptor);
    return found == regions_.end() ? nullptr : found->second;
  }

  /// A listener: where its transport's inbox is, and what to do there with a new peer.
  struct listener {
    std::weak_ptr<weir::inbox> inbox;
    std::function<void(std::shared_ptr<void> peer)> accept;
  };
  bool listen(const std::string& address, listener l) {
    std::lock_guard lock(mutex_);
    return listeners_.emplace(address, std::move(l)).second;
  }
  void stop_listening(const std::string& address) {
    std::lock_guard lock(mutex_);
    listeners_.erase(address);
  }
  std::optional<listener> find_listener(const std::string& address) {
    std::lock_guard lock(mutex_);
    auto found = listeners_.find(address);
    return found == listeners_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::mutex mutex_;
  std::random_device random_;
  std::map<std::string, std::shared_ptr<memory>> regions_;
  std::map<std::string, listener> listeners_;
};

namespace {

class inproc_region final : public region {
 public:
  inproc_region(std::shared_ptr<inproc_fabric> fabric, std::size_t size)
      : fabric_(std::move(fabric)), memory_(std::make_shared<memory>(size)), descriptor_(fabric_->add(memory_)) {}
  ~inproc_region() override {
    fabric_->remove(descriptor_);
    std::lock_guard lock(memory_->copying);
    memory_->registered = false;
  }
  std::span<std::byte> bytes() noexcept override { return {memory_->data.get(), memory_->size}; }
  const std::string& descriptor() const noexcept override { return descriptor_; }

 private:
  std::shared_ptr<inproc_fabric> fabric_;
  std::shared_ptr<memory> memory_;
  std::string descriptor_;
};

/// The two ends of one connection; each end posts to the other's inbox.
struct link {
  struct end {
    std::weak_ptr<weir::inbox> inbox;
    std::weak_ptr<connection> object;
    /// Its transport's alone: they may hold this very connection.
    std::weak_ptr<const transport_handlers> handlers;
  };
  std::mutex mutex;
  end ends[2];
  bool open = true;

  /// Whom to tell, in the thread of that end. Asked only then: what is sent before the other side has accepted comes
  /// after.
  std::pair<std::shared_ptr<connection>, std::shared_ptr<const transport_handlers>> at(int side) {
    std::lock_guard lock(mutex);
    return {ends[side].object.lock(), ends[side].handlers.lock()};
  }
};

class inproc_connection final : public connection, public std::enable_shared_from_this<inproc_connection> {
 public:
  inproc_connection(std::shared_ptr<inproc_fabric> fabric, std::shared_ptr<weir::inbox> inbox, std::shared_ptr<link> l,
                    int side)
      : fabric_(std::move(fabric)), inbox_(std::move(inbox)), link_(std::move(l)), side_(side) {}
  ~inproc_connection() override { inproc_connection::close(); }

  void get(const std::string& descriptor, std::uint64_t offset, std::span<std::byte> into,
           std::chrono::steady_clock::time_point, completion done) override {
    copy(
        descriptor, offset, into.size(), [into](std::byte* at) { std::memcpy(into.data(), at, into.size()); },
        std::move(done));
  }
  void put(const std::string& descriptor, std::uint64_t offset, std::span<const std::byte> from,
           std::chrono::steady_clock::time_point, completion done) override {
    copy(
        descriptor, offset, from.size(), [from](std::byte* at) { std::memcpy(at, from.data(), from.size()); },
        std::move(done));
  }

  result<mapped_region> map(const std::string& descriptor) override {
    if (!is_open()) return fail(errc::unavailable, "the connection is closed");
    auto found = fabric_->find(descriptor);
    if (!found) return fail(errc::unavailable, "no region of that descriptor: it is gone, or of another run");
    const std::span<const std::byte> bytes(found->data.get(), found->size);
    return mapped_region{std::move(found), bytes};
  }

  result<void> send(std::span<const std::byte> frame) override {
    if (frame.size() > longest_frame)
      return fail(errc::invalid_argument, "a frame of " + std::to_string(frame.size()) + " bytes is longer than " +
                                              std::to_string(longest_frame));
    std::lock_guard lock(link_->mutex);
    auto& peer = link_->ends[1 - side_];
    auto inbox = peer.inbox.lock();
    if (!link_->open || !inbox) return fail(errc::unavailable, "the peer is gone");
    inbox->post([l = link_, to = 1 - side_, copy = std::vector<std::byte>(frame.begin(), frame.end())] {
      const auto [c, told] = l->at(to);
      if (c && told && told->on_frame) told->on_frame(*c, copy);
    });
    return {};
  }

  std::string lane() const override { return "memory of this process"; }

  void close() override {
    std::lock_guard lock(link_->mutex);
    if (!std::exchange(link_->open, false)) return;
    auto& peer = link_->ends[1 - side_];
    if (auto inbox = peer.inbox.lock())
      inbox->post([l = link_, to = 1 - side_] {
        const auto [c, told] = l->at(to);
        if (c && told && told->on_closed) told->on_closed(*c, {errc::unavailable, "the peer closed the connection"});
      });
  }

  bool is_open() const {
    std::lock_guard lock(link_->mutex);
    return link_->open;
  }

 private:
  template <class Copy>
  void copy(const std::string& descriptor, std::uint64_t offset, std::size_t size, Copy transfer, completion done) {
    inbox_->post([fabric = fabric_, l = link_, descriptor, offset, size, transfer, done = std::move(done)] {
      {
        std::lock_guard lock(l->mutex);
        if (!l->open) return done(fail(errc::unavailable, "the connection was closed"));
      }
      auto found = fabric->find(descriptor);
      if (!found) return done(fail(errc::unavailable, "no region of that descriptor: it is gone, or of another run"));
      if (offset > found->size || size > found->size - offset)
        return done(fail(errc::invalid_argument, "bytes " + std::to_string(offset) + " to " +
                                                     std::to_string(offset + size) + " lie outside the region's " +
                                                     std::to_string(found->size)));
      {
        std::lock_guard lock(found->copying);
        if (!found->registered) return done(fail(errc::unavailable, "the region was taken back"));
        if (size > 0) transfer(found->data.get() + offset);
      }
      done({});
    });
  }

  std::shared_ptr<inproc_fabric> fabric_;
  std::shared_ptr<inbox> inbox_;
  std::shared_ptr<link> link_;
  int side_;
};

}  // namespace

class inproc_transport final : public transport {
 public:
  explicit inproc_transport(std::shared_ptr<inproc_fabric> fabric, transport_handlers handlers)
      : fabric_(std::move(fabric)), handlers_(std::make_shared<transport_handlers>(std::move(handlers))) {}
  ~inproc_transport() override {
    for (const auto& address : listening_) fabric_->stop_listening(address);
    inbox_->close();
  }

  transport_capabilities capabilities() const override {
    return {"inproc", false, true, fabric_->name(), true, false, longest_frame};
  }

  result<std::string> listen(const std::string& address) override {
    auto accept = [this](std::shared_ptr<void> shared) {
      auto l = std::static_pointer_cast<link>(std::move(shared));
      auto made = std::make_shared<inproc_connection>(fabric_, inbox_, l, 1);
      {
        std::lock_guard lock(l->mutex);
        l->ends[1].object = made;
      }
      if (handlers_->on_accepted) handlers_->on_accepted(std::move(made));
    };
    if (!fabric_->listen(address, {inbox_, [accept, handlers = handlers_,
                                            inbox = std::weak_ptr(inbox_)](std::shared_ptr<void> shared) {
                                     auto l = std::static_pointer_cast<link>(shared);
                                     l->ends[1].inbox = inbox;
                                     l->ends[1].handlers = handlers;
                                     // Runs in the listener's progress(), so the transport is alive.
                                     if (auto there = inbox.lock()) there->post([accept, shared] { accept(shared); });
                                   }}))
      return fail(errc::invalid_argument, "the address " + address + " is taken");
    listening_.push_back(address);
    return address;
  }

  result<std::shared_ptr<connection>> connect(const std::string& address,
                                              std::chrono::steady_clock::time_point) override {
    auto found = fabric_->find_listener(address);
    if (!found || found->inbox.expired()) return fail(errc::not_found, "nobody listens at " + address);
    auto l = std::make_shared<link>();
    auto made = std::make_shared<inproc_connection>(fabric_, inbox_, l, 0);
    l->ends[0] = {inbox_, made, handlers_};
    found->accept(l);
    return std::shared_ptr<connection>(std::move(made));
  }

  result<std::shared_ptr<region>> allocate(std::size_t size) override {
    try {
      return std::shared_ptr<region>(std::make_shared<inproc_region>(fabric_, size));
    } catch (const std::bad_alloc&) {
      return fail(errc::unavailable, "no memory for a region of " + std::to_string(size) + " bytes");
    }
  }

  std::size_t progress() override { return inbox_->run(); }
  int event_fd() const override { return inbox_->fd(); }

 private:
  std::shared_ptr<inproc_fabric> fabric_;
  std::shared_ptr<inbox> inbox_ = std::make_shared<inbox>();
  std::shared_ptr<const transport_handlers> handlers_;
  std::vector<std::string> listening_;
};

std::shared_ptr<inproc_fabric> make_inproc_fabric() { return std::make_shared<inproc_fabric>(); }

std::unique_ptr<transport> make_inproc_transport(std::shared_ptr<inproc_fabric> fabric, transport_handlers handlers) {
  return std::make_unique<inproc_transport>(std::move(fabric), std::move(handlers));
}

transport_maker inproc_maker(std::shared_ptr<inproc_fabric> fabric) {
  return [fabric = std::move(fabric)](transport_handlers handlers) {
    return make_inproc_transport(fabric, std::move(handlers));
  };
}

}  // namespace weir

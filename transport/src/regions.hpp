#pragma once
// The memory that a transport's peers may reach, by random keys: for every transport that crosses processes.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "shared_memory.hpp"
#include "weir/transport/transport.hpp"

namespace weir {

/// Zeroed, touched, aligned to a page. Those that send from it or receive into it hold it, so that it outlives its
/// region.
struct memory {
  /// Of this process alone.
  explicit memory(std::size_t bytes) : size(bytes), mapped(std::max<std::size_t>(bytes, 1)) {
    void* at = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    (void)::madvise(at, mapped, MADV_HUGEPAGE);  // fewer faults and misses where the system has them; else nothing
    data = static_cast<std::byte*>(at);
    std::memset(data, 0, mapped);
  }
  /// That others can map.
  memory(std::unique_ptr<segment> s, std::size_t bytes) : data(s->data()), size(bytes), shared(std::move(s)) {}
  ~memory() {
    registration.reset();
    if (mapped > 0) ::munmap(data, mapped);
  }
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;

  std::byte* data;
  std::size_t size;
  std::size_t mapped = 0;              ///< by this object itself
  std::unique_ptr<segment> shared;     ///< if others can map it
  std::shared_ptr<void> registration;  ///< what a transport's library knows it by
  std::atomic<bool> registered{true};
};

/// A descriptor is a prefix that names the transport, where the memory can be mapped if it can, and the key.
struct region_address {
  region_key key{};
  std::optional<segment_place> place;
};

inline std::string write_descriptor(std::string_view prefix, const region_address& a) {
  std::string text(prefix);
  if (a.place) text.append(reinterpret_cast<const char*>(&*a.place), sizeof *a.place);
  return text.append(a.key.data(), a.key.size());
}

/// Nothing if it is none of such a transport's.
inline std::optional<region_address> read_descriptor(std::string_view prefix, std::string_view text) noexcept {
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  region_address a;
  if (text.size() == sizeof(segment_place) + a.key.size()) {
    std::memcpy(&a.place.emplace(), text.data(), sizeof(segment_place));
    text.remove_prefix(sizeof(segment_place));
  }
  if (text.size() != a.key.size()) return std::nullopt;
  std::copy(text.begin(), text.end(), a.key.begin());
  return a;
}

/// Thread-safe.
class regions {
 public:
  /// Memory and its key; shared with this host's other processes if `owner` is somewhere that it can be. `obstacle` is
  /// set if it should be shared, and the system is in the way. Throws std::bad_alloc.
  std::pair<std::shared_ptr<memory>, region_address> make(std::size_t bytes, const whereabouts& owner,
                                                          std::string& obstacle) {
    region_address a;
    {
      std::lock_guard lock(mutex_);
      for (char& c : a.key) c = static_cast<char>(random_());
    }
    if (owner.machine == 0) return {std::make_shared<memory>(bytes), a};
    auto s = segment::make(bytes, a.key, owner.transport);
    if (s) {
      a.place = (*s)->place();
      return {std::make_shared<memory>(std::move(*s), bytes), a};
    }
    if (s.error().code == errc::unavailable) throw std::bad_alloc();
    obstacle = s.error().message;
    return {std::make_shared<memory>(bytes), a};
  }
  void add(const region_key& k, std::shared_ptr<memory> m) {
    std::lock_guard lock(mutex_);
    known_.emplace(k, std::move(m));
  }
  void remove(const region_key& k) {
    std::lock_guard lock(mutex_);
    known_.erase(k);
  }
  std::shared_ptr<memory> find(const region_key& k) const {
    std::lock_guard lock(mutex_);
    const auto found = known_.find(k);
    return found == known_.end() ? nullptr : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::random_device random_;
  std::map<region_key, std::shared_ptr<memory>> known_;
};

/// What the user has of it.
class registered_region final : public region {
 public:
  registered_region(std::shared_ptr<regions> all, std::shared_ptr<memory> m, const region_address& a,
                    std::string_view prefix)
      : all_(std::move(all)), memory_(std::move(m)), key_(a.key), descriptor_(write_descriptor(prefix, a)) {
    all_->add(key_, memory_);
  }
  ~registered_region() override {
    all_->remove(key_);
    memory_->registered = false;
    if (memory_->shared) memory_->shared->retire();
  }
  registered_region(const registered_region&) = delete;
  registered_region& operator=(const registered_region&) = delete;
  std::span<std::byte> bytes() noexcept override { return {memory_->data, memory_->size}; }
  const std::string& descriptor() const noexcept override { return descriptor_; }

 private:
  std::shared_ptr<regions> all_;
  std::shared_ptr<memory> memory_;
  region_key key_;
  std::string descriptor_;
};

/// The text of errors that every transport has.
inline std::string outside(std::uint64_t offset, std::uint64_t length, std::size_t size) {
  return "bytes " + std::to_string(offset) + " and " + std::to_string(length) + " after it lie outside the region's " +
         std::to_string(size);
}
inline constexpr const char* no_such_region = "no region of that descriptor: it is gone, or of another run";

}  // namespace weir

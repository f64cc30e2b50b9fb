#pragma once
// The memory that a TCP transport's peers may reach, by random keys.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <string_view>

#include "weir/transport/transport.hpp"
#include "wire.hpp"

namespace weir::tcp {

/// Zeroed, touched, aligned to a page. Those that send from it or receive into it hold it, so that it outlives its
/// region.
struct memory {
  explicit memory(std::size_t bytes) : size(bytes), mapped(std::max<std::size_t>(bytes, 1)) {
    void* at = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    (void)::madvise(at, mapped, MADV_HUGEPAGE);  // fewer faults and misses where the system has them; else nothing
    data = static_cast<std::byte*>(at);
    std::memset(data, 0, mapped);
  }
  ~memory() { ::munmap(data, mapped); }
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;

  std::byte* data;
  std::size_t size;
  std::size_t mapped;
  std::atomic<bool> registered{true};
};

inline constexpr std::string_view descriptor_prefix = "tcp:";

/// Thread-safe.
class regions {
 public:
  key add(std::shared_ptr<memory> m) {
    std::lock_guard lock(mutex_);
    key k;
    do
      for (char& c : k) c = static_cast<char>(random_());
    while (!known_.emplace(k, std::move(m)).second);
    return k;
  }
  void remove(const key& k) {
    std::lock_guard lock(mutex_);
    known_.erase(k);
  }
  std::shared_ptr<memory> find(const key& k) const {
    std::lock_guard lock(mutex_);
    const auto found = known_.find(k);
    return found == known_.end() ? nullptr : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::random_device random_;
  std::map<key, std::shared_ptr<memory>> known_;
};

class tcp_region final : public region {
 public:
  tcp_region(std::shared_ptr<regions> all, std::size_t bytes)
      : all_(std::move(all)), memory_(std::make_shared<memory>(bytes)), key_(all_->add(memory_)) {
    descriptor_ = std::string(descriptor_prefix) + std::string(key_.data(), key_.size());
  }
  ~tcp_region() override {
    all_->remove(key_);
    memory_->registered = false;
  }
  std::span<std::byte> bytes() noexcept override { return {memory_->data, memory_->size}; }
  const std::string& descriptor() const noexcept override { return descriptor_; }

 private:
  std::shared_ptr<regions> all_;
  std::shared_ptr<memory> memory_;
  key key_;
  std::string descriptor_;
};

/// False if the descriptor is none of a TCP region.
inline bool read_descriptor(std::string_view text, key& k) noexcept {
  if (text.size() != descriptor_prefix.size() + k.size() || !text.starts_with(descriptor_prefix)) return false;
  std::copy(text.begin() + descriptor_prefix.size(), text.end(), k.begin());
  return true;
}

}  // namespace weir::tcp

#include "shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <string_view>
#include <system_error>

namespace weir {

namespace {

/// A mapping that nobody used for so long is let go of.
constexpr std::chrono::seconds keep_time{1};
/// Mappings that are kept though nobody uses them.
constexpr std::size_t most_kept = 64;
constexpr std::string_view memfd_name = "weir";

std::string reason_of(int number) { return std::generic_category().message(number); }

std::uint64_t inode_of(const char* path) noexcept {
  struct stat s {};
  return ::stat(path, &s) == 0 ? s.st_ino : 0;
}

/// FNV-1a: of the boot's own random id, so that two machines differ. Never 0.
std::uint64_t machine_of_this_boot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (!std::getline(file, id) || id.empty()) return 0;
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash == 0 ? 1 : hash;
}

struct descriptor {
  int fd = -1;
  ~descriptor() {
    if (fd >= 0) ::close(fd);
  }
  descriptor(int opened) noexcept : fd(opened) {}  // NOLINT(google-explicit-constructor)
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  int release() noexcept { return std::exchange(fd, -1); }
};

/// Whether there is so much memory at all: what the system thinks of private memory of that size. A memfd is not asked.
bool conceivable(std::size_t bytes) noexcept {
  void* probe = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) return false;
  ::munmap(probe, bytes);
  return true;
}

/// Every page there, so that no use of it can fail for lack of memory. In one step where the system has it
/// (Linux 5.14), which also takes huge pages where they are allowed.
bool populated(int fd, void* at, std::size_t bytes) noexcept {
#ifdef MADV_POPULATE_WRITE
  int failed = 0;
  do failed = ::madvise(at, bytes, MADV_POPULATE_WRITE);
  while (failed != 0 && errno == EINTR);
  if (failed == 0) return true;
  if (errno != EINVAL) return false;
#endif
  if (::posix_fallocate(fd, 0, static_cast<off_t>(bytes)) != 0) return false;
  std::memset(at, 0, bytes);
  return true;
}

unexpected no_memory(std::size_t size) {
  return fail(errc::unavailable, "no memory for a region of " + std::to_string(size) + " bytes");
}

}  // namespace

whereabouts make_whereabouts(bool shares_memory) {
  whereabouts w;
  std::random_device random;
  for (char& c : w.transport) c = static_cast<char>(random());
  if (!shares_memory) return w;
  w.processes = inode_of("/proc/self/ns/pid");
  w.network = inode_of("/proc/self/ns/net");
  if (w.processes != 0 && w.network != 0) w.machine = machine_of_this_boot();
  return w;
}

// ---- the owner's side

result<std::unique_ptr<segment>> segment::make(std::size_t size, const region_key& key, const transport_id& owner) {
  if (size > std::numeric_limits<off_t>::max() - segment_data) return no_memory(size);
  const auto bytes = segment_data + size;
  if (!conceivable(bytes)) return no_memory(size);
  descriptor fd(::memfd_create(memfd_name.data(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.fd < 0) return fail(errc::unsupported, "no memfd: " + reason_of(errno));
  if (::ftruncate(fd.fd, static_cast<off_t>(bytes)) != 0) return no_memory(size);
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.fd, 0);
  if (at == MAP_FAILED) return no_memory(size);
  (void)::madvise(at, bytes, MADV_HUGEPAGE);
  if (!populated(fd.fd, at, bytes)) {
    ::munmap(at, bytes);
    return no_memory(size);
  }
  // Without these seals a peer does not map it. That others don't write is a help, and asked of Linux 5.1 on.
  const auto seals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (::fcntl(fd.fd, F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0 &&
      ::fcntl(fd.fd, F_ADD_SEALS, seals | F_SEAL_SEAL) != 0) {
    ::munmap(at, bytes);
    return fail(errc::unsupported, "a memfd without seals: " + reason_of(errno));
  }
  auto* head = new (at) segment_header;
  head->key = key;
  head->owner = owner;
  head->size = size;
  std::unique_ptr<segment> made(new segment);
  made->at_ = static_cast<std::byte*>(at);
  made->mapped_ = bytes;
  made->place_ = {inode_of("/proc/self/ns/pid"), static_cast<std::uint32_t>(::getpid()),
                  static_cast<std::uint32_t>(fd.fd), size};
  made->fd_ = fd.release();
  return made;
}

segment::~segment() {
  retire();
  ::munmap(at_, mapped_);
}

void segment::retire() noexcept {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  reinterpret_cast<segment_header*>(at_)->live.store(0, std::memory_order_release);
  ::close(fd);
}

// ---- the peer's side

mapped_segment::~mapped_segment() { ::munmap(const_cast<std::byte*>(at_), mapped_); }

result<segment_found> map_segment(const segment_place& place, const region_key& key, const transport_id& owner) {
  const auto other = [] {
    return fail(errc::unavailable, "no region of that descriptor: it is gone, or of another run");
  };
  if (place.size > std::numeric_limits<off_t>::max() - segment_data) return other();
  const auto path = "/proc/" + std::to_string(place.pid) + "/fd/" + std::to_string(place.fd);
  // Looked at before it is opened: to open a device or a pipe can do something.
  char target[64];
  const auto length = ::readlink(path.c_str(), target, sizeof target);
  const auto obstacle = [&](const char* what) {
    return segment_found{nullptr, std::string(what) + " " + path + ": " + reason_of(errno)};
  };
  if (length < 0) return obstacle("the system does not let this process see the peer's memory at");
  if (!std::string_view(target, static_cast<std::size_t>(length)).starts_with("/memfd:" + std::string(memfd_name)))
    return other();
  const descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (fd.fd < 0) return obstacle("the system does not let this process open the peer's memory at");
  struct stat s {};
  const int seals = ::fcntl(fd.fd, F_GET_SEALS);
  const auto bytes = segment_data + place.size;
  // What cannot shrink cannot fault.
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd.fd, &s) != 0 || !S_ISREG(s.st_mode) ||
      static_cast<std::uint64_t>(s.st_size) != bytes)
    return other();
  void* at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.fd, 0);
  if (at == MAP_FAILED) return obstacle("this process could not map the peer's memory at");
  (void)::madvise(at, bytes, MADV_HUGEPAGE);
  auto mapped = std::make_shared<const mapped_segment>(static_cast<const std::byte*>(at), bytes);
  const auto& head = mapped->header();
  if (head.magic != segment_header::expected_magic || head.version != segment_header::expected_version ||
      head.key != key || head.owner != owner || head.size != place.size || !mapped->live())
    return other();
  return segment_found{std::move(mapped), {}};
}

result<segment_found> segment_cache::find(const segment_place& place, const region_key& key,
                                          const transport_id& owner) {
  const auto now = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  const auto known = entries_.find(key);
  if (known != entries_.end() && known->second.place == place)
    if (auto mapped = known->second.known.lock(); mapped && mapped->live()) {
      if (mapped->header().owner != owner)
        return fail(errc::unavailable, "no region of that descriptor: it is another peer's");
      known->second.held = mapped;
      known->second.used = now;
      return segment_found{std::move(mapped), {}};
    }
  auto found = map_segment(place, key, owner);
  if (!found || !found->segment) return found;
  entries_[key] = {place, found->segment, found->segment, now};
  trim();
  if (!std::exchange(swept_, true) && on_first_) on_first_();
  return found;
}

/// Only as many are kept for nobody as the bound says.
void segment_cache::trim() {
  std::erase_if(entries_, [](const auto& e) { return e.second.known.expired(); });
  auto oldest = entries_.end();
  std::size_t kept = 0;
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    if (!at->second.held) continue;
    ++kept;
    if (oldest == entries_.end() || at->second.used < oldest->second.used) oldest = at;
  }
  if (kept > most_kept) oldest->second.held.reset();
}

bool segment_cache::sweep() {
  const auto now = std::chrono::steady_clock::now();
  std::lock_guard lock(mutex_);
  for (auto& [key, e] : entries_)
    if (e.held && (!e.held->live() || now - e.used >= keep_time)) e.held.reset();
  std::erase_if(entries_, [](const auto& e) { return e.second.known.expired(); });
  swept_ = std::any_of(entries_.begin(), entries_.end(), [](const auto& e) { return e.second.held != nullptr; });
  return swept_;
}

void segment_cache::on_first(std::function<void()> tell) {
  std::lock_guard lock(mutex_);
  on_first_ = std::move(tell);
}

}  // namespace weir

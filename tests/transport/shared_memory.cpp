// Regions that peers on the same host map: what every transport does that offers it, then what a descriptor can lie
// about, owners that go away, and what is left behind.
#include "shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "local_lane.hpp"
#include "process.hpp"
#include "weir/transport/tcp.hpp"

using namespace weir::testing;
using namespace std::chrono_literals;

namespace {

implementation mapped_tcp() { return {weir::tcp_maker(), "127.0.0.1:0"}; }

/// Segments in this process's memory.
std::size_t segments_mapped() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/memfd:weir") != std::string::npos ? 1 : 0;
  return count;
}

/// What differs from a region's descriptor in one byte of its place or key.
struct forgery {
  const char* name;
  std::function<void(weir::region_address&)> change;
};

std::string forged(const std::string& descriptor, const std::function<void(weir::region_address&)>& change) {
  auto a = *weir::read_descriptor("tcp:", descriptor);
  change(a);
  return weir::write_descriptor("tcp:", a);
}

struct file {
  explicit file(int opened) : fd(opened) { REQUIRE(fd >= 0); }
  ~file() { ::close(fd); }
  file(const file&) = delete;
  file& operator=(const file&) = delete;
  int fd;
};

/// A memfd with a segment's header, that a peer who lies may have made.
void write_header(int fd, const weir::region_key& key, const weir::transport_id& owner, std::uint64_t size,
                  const std::function<void(weir::segment_header&)>& change = {}) {
  weir::segment_header head;
  head.key = key;
  head.owner = owner;
  head.size = size;
  if (change) change(head);
  REQUIRE(::ftruncate(fd, static_cast<off_t>(weir::segment_data + size)) == 0);
  REQUIRE(::pwrite(fd, &head, sizeof head, 0) == sizeof head);
}

}  // namespace

TEST_CASE("shared memory: another process's region is mapped, and its bytes are the same") {
  serving_process server("tcp", 10'000'019);
  client_of client(weir::tcp_maker(), server.address);
  CHECK(client.to_server->lane() == "mapped memory");
  const auto expected = pattern(10'000'019, 1);
  std::vector<std::byte> got(expected.size());
  REQUIRE(client.get(server.descriptor, 0, got));
  CHECK(got == expected);
  auto view = client.to_server->map(server.descriptor);
  REQUIRE(view);
  CHECK(std::equal(expected.begin(), expected.end(), view->bytes.begin(), view->bytes.end()));
  auto again = client.to_server->map(server.descriptor);
  REQUIRE(again);
  CHECK(again->bytes.data() == view->bytes.data());  // one mapping
  // The view outlives region, owner and connection.
  CHECK(server.process.ask("destroy") == std::vector<std::string>{"destroyed"});
  CHECK(client.to_server->map(server.descriptor).error().code == weir::errc::unavailable);
  CHECK(client.get(server.descriptor, 0, got).error().code == weir::errc::unavailable);
  server.process.kill();
  client.to_server->close();
  client.mine.reset();
  CHECK(std::equal(expected.begin(), expected.end(), view->bytes.begin(), view->bytes.end()));
  CHECK(client.notices.empty());
}

TEST_CASE("shared memory: an owner killed while a peer copies leaves whole data or an error, and the connection ends") {
  constexpr std::size_t size = 64 << 20;
  serving_process server("tcp", size);
  client_of client(weir::tcp_maker(), server.address);
  std::vector<std::byte> got(size);
  std::optional<weir::result<void>> outcome;
  client.to_server->get(server.descriptor, 0, got, pair_of_transports::soon(),
                        [&](weir::result<void> r) { outcome = std::move(r); });
  client.mine->progress();  // a piece
  REQUIRE_FALSE(outcome);
  server.process.kill();
  REQUIRE(client.until([&] { return outcome.has_value(); }));
  if (*outcome)
    CHECK(got == pattern(size, 1));
  else
    CHECK(outcome->error().code == weir::errc::unavailable);
  REQUIRE(client.until([&] { return client.closed == 1; }));
  CHECK(client.get(server.descriptor, 0, got).error().code == weir::errc::unavailable);
  CHECK_FALSE(client.to_server->map(server.descriptor));
}

TEST_CASE("shared memory: a get is cut off between two pieces by what ends it") {
  constexpr std::size_t size = 32 << 20;
  pair_of_transports p(mapped_tcp());
  auto memory = *p.server->allocate(size);
  std::vector<std::byte> got(size);
  std::optional<weir::result<void>> outcome;
  auto begin = [&](std::chrono::steady_clock::time_point deadline) {
    p.to_server->get(memory->descriptor(), 0, got, deadline, [&](weir::result<void> r) { outcome = std::move(r); });
    CHECK(p.client->progress() > 0);
    REQUIRE_FALSE(outcome);
  };
  SECTION("the region's end") {
    begin(p.soon());
    memory.reset();
    REQUIRE(p.until([&] { return outcome.has_value(); }));
    REQUIRE_FALSE(*outcome);
    CHECK(outcome->error().code == weir::errc::unavailable);
  }
  SECTION("the connection's end") {
    begin(p.soon());
    p.to_server->close();
    REQUIRE(p.until([&] { return outcome.has_value(); }));
    REQUIRE_FALSE(*outcome);
    CHECK(outcome->error().code == weir::errc::unavailable);
    CHECK(p.to_server->map(memory->descriptor()).error().code == weir::errc::unavailable);
  }
  SECTION("the deadline") {
    const auto deadline = std::chrono::steady_clock::now() + 500ms;
    begin(deadline);
    std::this_thread::sleep_until(deadline);
    REQUIRE(p.until([&] { return outcome.has_value(); }));
    REQUIRE_FALSE(*outcome);
    CHECK(outcome->error().code == weir::errc::timeout);
  }
}

TEST_CASE("shared memory: a region taken back while a peer reads it gives whole data or an error") {
  taking_back(mapped_tcp(), 1 << 22);
}

TEST_CASE("shared memory: a descriptor that lies reaches nothing else") {
  pair_of_transports p(mapped_tcp());
  auto memory = *p.server->allocate(100'000), other = *p.server->allocate(200'000);
  auto stranger = weir::make_tcp_transport();
  auto strangers = *stranger->allocate(100'000);
  std::fill(other->bytes().begin(), other->bytes().end(), std::byte{66});
  std::fill(strangers->bytes().begin(), strangers->bytes().end(), std::byte{66});
  const auto others = *weir::read_descriptor("tcp:", other->descriptor())->place;
  const file zero(::open("/dev/zero", O_RDWR)), text(::open("/etc/passwd", O_RDONLY));
  const std::vector<forgery> forgeries{
      {"another key", [](auto& a) { a.key[3] = static_cast<char>(a.key[3] ^ 1); }},
      {"another region's memory", [&](auto& a) { a.place = others; }},
      {"another region's descriptor number", [&](auto& a) { a.place->fd = others.fd; }},
      {"a larger size", [](auto& a) { a.place->size += 1; }},
      {"a size that overflows", [](auto& a) { a.place->size = ~std::uint64_t{0} - 100; }},
      {"no size", [](auto& a) { a.place->size = 0; }},
      {"a device", [&](auto& a) { a.place->fd = static_cast<std::uint32_t>(zero.fd); }},
      {"a file", [&](auto& a) { a.place->fd = static_cast<std::uint32_t>(text.fd); }},
      {"standard input", [](auto& a) { a.place->fd = 0; }},
  };
  std::vector<std::byte> got(100'000);
  const bool known = GENERATE(false, true);  // whether the region was mapped before
  if (known) REQUIRE(p.get(memory->descriptor(), 0, got));
  for (const auto& f : forgeries) {
    INFO(f.name);
    const auto descriptor = forged(memory->descriptor(), f.change);
    CHECK(p.get(descriptor, 0, got).error().code == weir::errc::unavailable);
    CHECK(p.to_server->map(descriptor).error().code == weir::errc::unavailable);
    CHECK(std::all_of(got.begin(), got.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
  // A true descriptor of somebody who is not this peer, though he is one of this process.
  const auto at = *stranger->listen("127.0.0.1:0");
  auto to_stranger = *p.client->connect(at, p.soon());
  if (known) REQUIRE(to_stranger->map(strangers->descriptor()));
  CHECK(p.get(strangers->descriptor(), 0, got).error().code == weir::errc::unavailable);
  CHECK(p.to_server->map(strangers->descriptor()).error().code == weir::errc::unavailable);
  // A process that is not there can't be looked at: the peer is asked, who knows the key.
  const auto nowhere = forged(memory->descriptor(), [](auto& a) { a.place->pid = 0x7FFFFFFF; });
  CHECK(p.get(nowhere, 0, got));
  CHECK_FALSE(p.to_server->map(nowhere));
  CHECK(p.get(memory->descriptor(), 0, got));  // and all goes on
}

TEST_CASE("shared memory: memory that is not what it should be is not mapped") {
  weir::region_key key;
  weir::transport_id owner;
  key.fill('k');
  owner.fill('o');
  constexpr std::uint64_t size = 50'000;
  auto looked_for = [&](int fd) {
    return weir::map_segment({0, static_cast<std::uint32_t>(::getpid()), static_cast<std::uint32_t>(fd), size}, key,
                             owner);
  };
  auto sealed = [](int fd) { REQUIRE(::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0); };
  auto fresh = [] { return ::memfd_create("weir", MFD_CLOEXEC | MFD_ALLOW_SEALING); };
  {
    const file good(fresh());
    write_header(good.fd, key, owner, size);
    CHECK(looked_for(good.fd).error().code == weir::errc::unavailable);  // it could shrink
    sealed(good.fd);
    auto found = looked_for(good.fd);
    REQUIRE(found);
    CHECK(found->segment->bytes().size() == size);
  }
  for (const auto& change : std::vector<std::function<void(weir::segment_header&)>>{
           [](auto& h) { h.magic ^= 1; }, [](auto& h) { h.version = 2; }, [](auto& h) { h.live = 0; },
           [](auto& h) { h.key[15] = 'x'; }, [](auto& h) { h.owner[0] = 'x'; }, [](auto& h) { h.size += 1; }}) {
    const file wrong(fresh());
    write_header(wrong.fd, key, owner, size, change);
    sealed(wrong.fd);
    CHECK(looked_for(wrong.fd).error().code == weir::errc::unavailable);
  }
  {
    const file empty(fresh());
    sealed(empty.fd);
    CHECK(looked_for(empty.fd).error().code == weir::errc::unavailable);
  }
  {
    const file named(::memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    write_header(named.fd, key, owner, size);
    sealed(named.fd);
    CHECK(looked_for(named.fd).error().code == weir::errc::unavailable);
  }
  const auto nothing = looked_for(19'999);
  REQUIRE(nothing);
  CHECK_FALSE(nothing->segment);
  CHECK(nothing->obstacle.find("19999") != std::string::npos);
}

TEST_CASE("shared memory: a peer can't write into it") {
  auto owner = weir::make_tcp_transport();
  auto memory = *owner->allocate(8192);
  const auto place = *weir::read_descriptor("tcp:", memory->descriptor())->place;
  const auto path = "/proc/self/fd/" + std::to_string(place.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  CHECK(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  CHECK(::pwrite(fd, "x", 1, 5000) < 0);
  CHECK(::ftruncate(fd, 0) < 0);
  ::close(fd);
  memory->bytes()[0] = std::byte{1};  // the owner does
}

TEST_CASE("shared memory: hosts are told apart, and a wall between processes of one machine is said") {
  auto cache = std::make_shared<weir::segment_cache>();
  auto in = std::make_shared<weir::inbox>();
  const auto here = weir::make_whereabouts(true);
  REQUIRE(here.machine != 0);
  auto s = *weir::segment::make(1000, {}, here.transport);
  weir::region_address at{{}, s->place()};
  auto lane = [&](const std::function<void(weir::whereabouts&)>& change) {
    auto there = here;
    change(there);
    return weir::local_lane(cache, in, here, there);
  };
  CHECK(lane([](auto&) {}).find(at)->segment);
  for (const auto& other : {lane([](auto& w) { w.network ^= 1; }), lane([](auto& w) { w.machine ^= 1; }),
                            lane([](auto& w) { w.machine = 0; })}) {
    const auto found = other.find(at);
    REQUIRE(found);
    CHECK_FALSE(found->segment);
    CHECK(found->obstacle.empty());
    CHECK(other.map(at, "it").error().code == weir::errc::unsupported);
  }
  const auto walled = lane([](auto& w) { w.processes ^= 1; }).find(at);
  REQUIRE(walled);
  CHECK(walled->obstacle.find("namespace") != std::string::npos);
  CHECK_FALSE(lane([](auto&) {}).find({{}, std::nullopt})->segment);
}

TEST_CASE("shared memory: a peer that may not see the memory gets it by the wire, and says so once") {
  if (::getuid() != 0) return;  // the peer has to be another user
  serving_process server("tcp", 100'000);
  peer_process other({"fetch", "tcp", server.address, to_hex(server.descriptor), "100000", "65534"});
  CHECK(other.line() == std::vector<std::string>{"whole", "whole", "tcp,_4_streams", "1"});
  CHECK(other.end() == 0);
  peer_process same({"fetch", "tcp", server.address, to_hex(server.descriptor), "100000", "0"});
  CHECK(same.line() == std::vector<std::string>{"whole", "whole", "mapped_memory", "0"});
}

TEST_CASE("shared memory: without descriptors regions are of this process alone, and that is said once") {
  std::vector<std::string> notices;
  auto t = weir::make_tcp_transport({{}, {}, {}, [&](const std::string& what) { notices.push_back(what); }});
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const int lowest = ::dup(0);
  ::close(lowest);
  rlimit none{static_cast<rlim_t>(lowest), before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  auto one = t->allocate(100), other = t->allocate(100);
  ::setrlimit(RLIMIT_NOFILE, &before);
  REQUIRE((one && other));
  CHECK(notices.empty());
  t->progress();
  REQUIRE(notices.size() == 1);
  CHECK(notices[0].find("open files") != std::string::npos);
  CHECK_FALSE(weir::read_descriptor("tcp:", (*one)->descriptor())->place);
}

TEST_CASE("shared memory: thousands of regions and connections leave neither descriptor nor mapping") {
  pair_of_transports p(mapped_tcp());
  const auto descriptors = open_descriptors();
  const auto mappings = segments_mapped();
  std::vector<std::byte> got(5000);
  for (int i = 0; i < 3000; ++i) {
    auto memory = *p.server->allocate(5000);
    REQUIRE(p.get(memory->descriptor(), 0, got));
    if (i % 3 == 0) REQUIRE(p.to_server->map(memory->descriptor()));
    if (i % 10 == 0) {
      p.to_server = *p.client->connect(p.address, p.soon());
      p.accepted.reset();
      REQUIRE(p.until([&] { return p.accepted != nullptr; }));
    }
    REQUIRE(segments_mapped() <= mappings + 100);
  }
  CHECK(p.until([&] { return segments_mapped() == mappings; }));  // what nobody uses is let go of
  CHECK(p.until([&] { return open_descriptors() == descriptors; }));
}

TEST_CASE("shared memory: many regions at once, each its own") {
  pair_of_transports p(mapped_tcp());
  std::vector<std::shared_ptr<weir::region>> all;
  for (unsigned i = 0; i < 1000; ++i) {
    all.push_back(*p.server->allocate(100 + i));
    std::memcpy(all.back()->bytes().data(), &i, sizeof i);
  }
  for (unsigned i = 0; i < 1000; ++i) {
    unsigned got = 0;
    REQUIRE(p.get(all[i]->descriptor(), 0, std::as_writable_bytes(std::span(&got, 1))));
    CHECK(got == i);
  }
}

TEST_CASE("shared memory: bytes beyond 4 GiB are those that were meant") {
  constexpr std::size_t size = (std::size_t{4} << 30U) + 12'289;
  std::ifstream info("/proc/meminfo");
  std::size_t kib = 0;
  for (std::string word; kib == 0 && info >> word;)
    if (word == "MemAvailable:") info >> kib;
  if (kib >> 20U < 12) return;
  pair_of_transports p(mapped_tcp());
  auto memory = *p.server->allocate(size);
  for (const std::size_t at : {std::size_t{4}, (std::size_t{4} << 30U) + 4, size - 8})
    std::memcpy(memory->bytes().data() + at, &at, sizeof at);
  for (const std::size_t at : {std::size_t{4}, (std::size_t{4} << 30U) + 4, size - 8}) {
    std::size_t found = 0;
    REQUIRE(p.get(memory->descriptor(), at, std::as_writable_bytes(std::span(&found, 1))));
    CHECK(found == at);
  }
  std::byte beyond[2];
  CHECK(p.get(memory->descriptor(), size - 1, beyond).error().code == weir::errc::invalid_argument);
}

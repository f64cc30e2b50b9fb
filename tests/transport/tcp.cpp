// The TCP transport: what every transport does, then peers that are hostile, dead, silent or of another run.
#include "weir/transport/tcp.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "conformance.hpp"
#include "tcp/wire.hpp"
#include "two_hosts.hpp"

using namespace weir::testing;
using namespace std::chrono_literals;
using weir::tcp::header;
using weir::tcp::kind;

namespace {

weir::tcp_settings small(std::size_t threads = 1) {
  weir::tcp_settings s;
  s.streams = 2;
  s.threads = threads;
  s.chunk = 4096;
  s.shared_memory = false;  // what is tested here is the wire; shared_memory.cpp tests the rest
  return s;
}

implementation tcp(std::size_t threads = 1) { return {weir::tcp_maker(small(threads)), "127.0.0.1:0"}; }

std::chrono::steady_clock::time_point in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

/// A socket without a transport behind it.
class raw {
 public:
  explicit raw(int fd) : fd_(fd) {}
  raw(raw&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~raw() {
    if (fd_ >= 0) ::close(fd_);
  }
  static raw connected(const std::string& address) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
    const timeval patience{5, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return raw(fd);
  }
  void write(const void* from, std::size_t bytes) const { (void)!::send(fd_, from, bytes, MSG_NOSIGNAL); }
  void write(const header& h) const { write(&h, sizeof h); }
  bool read(void* into, std::size_t bytes) const {
    return ::recv(fd_, into, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }
  /// Whether the other side has ended the connection.
  bool ended() const {
    char c[256];
    ssize_t n = 0;
    while ((n = ::recv(fd_, c, sizeof c, 0)) > 0) {
    }
    return n == 0 || errno == ECONNRESET;
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

/// What a peer writes first: a hello, and nowhere as its whereabouts.
struct greeting {
  header head;
  weir::whereabouts there;
};
static_assert(sizeof(greeting) == sizeof(header) + sizeof(weir::whereabouts));

header hello(unsigned stream, unsigned streams, char connection) {
  header h;
  h.kind = kind::hello;
  h.id = weir::tcp::protocol_version;
  h.offset = stream;
  h.streams = static_cast<std::uint16_t>(streams);
  h.key.fill(connection);
  h.length = sizeof(weir::whereabouts);
  return h;
}

/// A peer that has shaken hands with two streams, the first for frames.
std::vector<raw> introduced(const std::string& address, char connection) {
  std::vector<raw> sockets;
  for (unsigned i = 0; i < 2; ++i) {
    sockets.push_back(raw::connected(address));
    const greeting said{hello(i, 2, connection), {}};
    sockets.back().write(&said, sizeof said);
    greeting answer;
    REQUIRE(sockets.back().read(&answer, sizeof answer));
    REQUIRE(answer.head.kind == kind::welcome);
  }
  return sockets;
}

/// A server that shakes hands and then does what the test says, in a thread.
class raw_server {
 public:
  explicit raw_server(std::function<void(std::vector<raw>&)> then) : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    REQUIRE(::bind(listener_.fd(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
    REQUIRE(::listen(listener_.fd(), 8) == 0);
    REQUIRE(::getsockname(listener_.fd(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
    address = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    thread_ = std::thread([this, then = std::move(then)] {
      std::vector<raw> sockets;
      for (int i = 0; i < 3; ++i) {
        sockets.emplace_back(::accept(listener_.fd(), nullptr, nullptr));
        header h;
        weir::whereabouts there;
        if (!sockets.back().read(&h, sizeof h) || !sockets.back().read(&there, sizeof there)) return;
        greeting answer;
        answer.head.kind = kind::welcome;
        answer.head.length = sizeof there;
        sockets.back().write(&answer, sizeof answer);
      }
      then(sockets);
    });
  }
  ~raw_server() {
    ::shutdown(listener_.fd(), SHUT_RDWR);
    thread_.join();
  }
  std::string address;

 private:
  raw listener_;
  std::thread thread_;
};

/// The outcome of a get of `size` bytes by `time`, from a server that is none.
weir::result<void> got(raw_server& server, std::size_t size, std::chrono::milliseconds time) {
  auto client = weir::make_tcp_transport({}, small());
  auto connected = client->connect(server.address, in(5s));
  REQUIRE(connected);
  std::vector<std::byte> buffer(size, std::byte{9});
  std::optional<weir::result<void>> outcome;
  const auto begin = std::chrono::steady_clock::now();
  (*connected)->get("tcp:0123456789abcdef", 0, buffer, in(time), [&](weir::result<void> r) { outcome = std::move(r); });
  while (!outcome && std::chrono::steady_clock::now() < begin + 10s) {
    pollfd waiting{client->event_fd(), POLLIN, 0};
    ::poll(&waiting, 1, 100);
    client->progress();
  }
  REQUIRE(outcome);
  CHECK(std::chrono::steady_clock::now() - begin < time + 2s);
  return *outcome;
}

}  // namespace

TEST_CASE("tcp conforms") { conformance(tcp()); }
TEST_CASE("tcp with shared memory conforms") { conformance({weir::tcp_maker(), "127.0.0.1:0"}); }
TEST_CASE("tcp conforms with several threads") { conformance(tcp(3)); }

TEST_CASE("tcp: many transfers at once, each in many requests, are whole") {
  for (std::size_t threads : {1, 2}) {
    pair_of_transports p(tcp(threads));
    constexpr std::size_t count = 20, size = 300'001;
    std::vector<std::shared_ptr<weir::region>> regions;
    std::vector<std::vector<std::byte>> sent, read(count, std::vector<std::byte>(size));
    std::size_t done = 0, failed = 0;
    auto count_end = [&](const weir::result<void>& r) { r ? ++done : ++failed; };
    for (unsigned i = 0; i < count; ++i) {
      regions.push_back(*p.server->allocate(size));
      sent.push_back(pattern(size, i));
      p.to_server->put(regions[i]->descriptor(), 0, sent[i], p.soon(), count_end);
    }
    REQUIRE(p.until([&] { return done + failed == count; }));
    for (unsigned i = 0; i < count; ++i) p.to_server->get(regions[i]->descriptor(), 0, read[i], p.soon(), count_end);
    REQUIRE(p.until([&] { return done + failed == 2 * count; }));
    CHECK(failed == 0);
    CHECK((read == sent));
  }
}

TEST_CASE("tcp: a peer is served though it makes no progress") {
  pair_of_transports p(tcp());
  auto memory = *p.server->allocate(100'000);
  std::fill(memory->bytes().begin(), memory->bytes().end(), std::byte{3});
  std::vector<std::byte> buffer(100'000);
  bool done = false;
  p.to_server->get(memory->descriptor(), 0, buffer, p.soon(), [&](weir::result<void> r) { done = r.has_value(); });
  for (const auto end = in(5s); !done && std::chrono::steady_clock::now() < end;) p.client->progress();
  CHECK(done);
  CHECK(std::all_of(buffer.begin(), buffer.end(), [](std::byte b) { return b == std::byte{3}; }));
}

TEST_CASE("tcp: a region taken back while a peer reads it gives whole data or an error") {
  taking_back(tcp(), 1 << 18);
}

TEST_CASE("tcp: a peer of another run, or another version, is refused and told why") {
  auto ours = small(), theirs = small();
  ours.token = "run 1";
  theirs.token = "run 2";
  auto server = weir::make_tcp_transport({}, ours), client = weir::make_tcp_transport({}, theirs);
  const auto at = server->listen("127.0.0.1:0");
  REQUIRE(at);
  const auto refused = client->connect(*at, in(5s));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == weir::errc::unavailable);
  CHECK(refused.error().message.find("another run") != std::string::npos);
  auto newer = hello(0, 2, 'n');
  newer.id = 7;
  const auto socket = raw::connected(*at);
  socket.write(newer);
  header answer;
  REQUIRE(socket.read(&answer, sizeof answer));
  CHECK(answer.kind == kind::refused);
  CHECK(answer.code == static_cast<std::uint8_t>(weir::errc::unsupported));
}

TEST_CASE("tcp: addresses that are none say what one looks like, and a silent host costs no more than the deadline") {
  auto t = weir::make_tcp_transport({}, small());
  for (const char* none : {"", ":", "host", "host:", ":80", "host:99999", "host:8x"}) {
    INFO(none);
    const auto c = t->connect(none, in(1s));
    REQUIRE_FALSE(c);
    CHECK(c.error().code == weir::errc::invalid_argument);
    CHECK(c.error().message.find("HOST:PORT") != std::string::npos);
    CHECK_FALSE(t->listen(none));
  }
  CHECK(t->connect("127.0.0.1:1", in(1s)).error().code == weir::errc::not_found);
  const raw silent(::socket(AF_INET, SOCK_STREAM, 0));  // listens, but nobody accepts
  sockaddr_in at{};
  socklen_t size = sizeof at;
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(silent.fd(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
  REQUIRE(::listen(silent.fd(), 8) == 0);
  REQUIRE(::getsockname(silent.fd(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(t->connect("127.0.0.1:" + std::to_string(ntohs(at.sin_port)), in(200ms)).error().code == weir::errc::timeout);
  CHECK(std::chrono::steady_clock::now() - begin < 2s);
  CHECK(t->listen("[::1]:0"));
  CHECK(t->listen("localhost:0"));
  CHECK(t->listen("*:0"));
}

TEST_CASE("tcp: a server that is flooded, insulted and half-greeted goes on to serve others") {
  pair_of_transports p(tcp());
  std::vector<raw> idle;
  for (int i = 0; i < 50; ++i) idle.push_back(raw::connected(p.address));
  idle.push_back(raw::connected(p.address));
  const greeting said{hello(0, 2, 'h'), {}};
  idle.back().write(&said, sizeof said);  // and never the second stream
  const auto insulting = raw::connected(p.address);
  insulting.write("GET / HTTP/1.1\r\nHost: weir\r\nAccept: everything that there is\r\n\r\n", 65);
  CHECK(insulting.ended());
  for (auto wrong : {hello(2, 2, 'w'), hello(0, 1, 'w'), hello(0, 66, 'w')}) {
    const auto socket = raw::connected(p.address);
    socket.write(wrong);
    header answer;
    REQUIRE(socket.read(&answer, sizeof answer));
    CHECK(answer.kind == kind::refused);
  }
  auto memory = *p.server->allocate(10);
  std::vector<std::byte> buffer(10);
  CHECK(p.get(memory->descriptor(), 0, buffer));
}

TEST_CASE("tcp: a breach of the protocol ends its connection, and no other") {
  auto kept = std::make_shared<std::vector<std::shared_ptr<weir::connection>>>();
  std::vector<weir::error> ends;
  auto server =
      weir::make_tcp_transport({[kept](std::shared_ptr<weir::connection> c) { kept->push_back(std::move(c)); },
                                {},
                                [&](weir::connection&, const weir::error& why) { ends.push_back(why); }},
                               small());
  const auto address = *server->listen("127.0.0.1:0");
  auto memory = *server->allocate(100);
  struct breach {
    const char* name;
    unsigned stream;
    std::function<void(header&)> change;
  };
  const std::vector<breach> breaches{
      {"no header", 1, [](header& h) { h.word = 1; }},
      {"an unknown kind", 1, [](header& h) { h.kind = static_cast<kind>(77); }},
      {"a second hello", 1, [](header& h) { h.kind = kind::hello; }},
      {"an answer to nothing", 1, [](header& h) { h.kind = kind::data; }},
      {"a refusal of nothing", 1, [](header& h) { h.kind = kind::refused; }},
      {"a frame on a stream of bytes", 1, [](header& h) { h.kind = kind::frame; }},
      {"a frame that is too long", 0, [](header& h) { h.kind = kind::frame, h.length = 1ULL << 40; }},
      {"a get on the stream of frames", 0, [](header& h) { h.kind = kind::get; }},
      {"a put on the stream of frames", 0, [](header& h) { h.kind = kind::put; }},
      {"a goodbye with a payload", 0, [](header& h) { h.kind = kind::goodbye, h.length = 8; }},
  };
  for (std::size_t i = 0; i < breaches.size(); ++i) {
    INFO(breaches[i].name);
    const auto sockets = introduced(address, static_cast<char>('a' + i));
    header h;
    h.kind = kind::get;
    breaches[i].change(h);
    sockets[breaches[i].stream].write(h);
    CHECK(sockets[0].ended());
    CHECK(sockets[1].ended());
    for (const auto end = in(5s); ends.size() <= i && std::chrono::steady_clock::now() < end;) server->progress();
    REQUIRE(ends.size() == i + 1);
    CHECK(ends.back().code == weir::errc::invalid_data);
    CHECK(ends.back().message.find("127.0.0.1:") == 0);
  }
  // More requests at once than the protocol allows, and none of the answers taken.
  const auto greedy = introduced(address, 'z');
  auto large = *server->allocate(8 << 20);
  for (std::uint64_t i = 1; i < 1000; ++i) {
    header h;
    h.kind = kind::get;
    h.id = i;
    h.length = 8 << 20;
    std::memcpy(h.key.data(), large->descriptor().data() + 4, 16);
    greedy[1].write(h);
  }
  for (const auto end = in(5s); ends.size() <= breaches.size() && std::chrono::steady_clock::now() < end;)
    server->progress();
  CHECK(ends.size() == breaches.size() + 1);
  // Requests for what is not there are answered, not ended.
  const auto asking = introduced(address, 'y');
  for (auto k : {kind::get, kind::put})
    for (std::uint64_t offset : {std::uint64_t{0}, ~std::uint64_t{0}}) {
      header h;
      h.kind = k;
      h.id = 5;
      h.offset = offset;
      if (offset != 0) std::memcpy(h.key.data(), memory->descriptor().data() + 4, 16);
      asking[1].write(h);
      header answer;
      REQUIRE(asking[1].read(&answer, sizeof answer));
      CHECK(answer.kind == kind::refused);
      CHECK(answer.id == 5);
      CHECK(static_cast<weir::errc>(answer.code) ==
            (offset == 0 ? weir::errc::unavailable : weir::errc::invalid_argument));
      std::vector<char> reason(answer.length);
      REQUIRE(asking[1].read(reason.data(), reason.size()));
    }
}

TEST_CASE("tcp: a peer that never answers costs the deadline; one that dies in the middle costs nothing more") {
  std::atomic<bool> over{false};
  auto sit = [&](std::vector<raw>&) {
    while (!over) std::this_thread::sleep_for(1ms);
  };
  {
    raw_server silent(sit);
    const auto outcome = got(silent, 100, 150ms);
    over = true;
    REQUIRE_FALSE(outcome);
    CHECK(outcome.error().code == weir::errc::timeout);
  }
  auto answer_part = [](std::vector<raw>& sockets, std::uint64_t of, bool answer_wrongly) {
    header h;
    if (!sockets[1].read(&h, sizeof h)) return;
    h.kind = answer_wrongly ? kind::stored : kind::data;
    sockets[1].write(h);
    const std::vector<std::byte> half(of, std::byte{1});
    sockets[1].write(half.data(), half.size());
  };
  {
    raw_server dying([&](std::vector<raw>& sockets) { answer_part(sockets, 50, false); });
    const auto outcome = got(dying, 100, 5s);
    REQUIRE_FALSE(outcome);
    CHECK(outcome.error().code == weir::errc::unavailable);
    CHECK(outcome.error().message.find("lost") != std::string::npos);
  }
  over = false;
  {
    raw_server stalling([&](std::vector<raw>& sockets) {
      answer_part(sockets, 50, false);
      sit(sockets);
    });
    const auto outcome = got(stalling, 100, 150ms);
    over = true;
    REQUIRE_FALSE(outcome);
    CHECK(outcome.error().code == weir::errc::timeout);
  }
  {
    raw_server lying([&](std::vector<raw>& sockets) {
      answer_part(sockets, 0, true);
      header h;
      (void)sockets[1].read(&h, sizeof h);
    });
    const auto outcome = got(lying, 100, 5s);
    REQUIRE_FALSE(outcome);
    CHECK(outcome.error().message.find("broke the protocol") != std::string::npos);
  }
}

TEST_CASE("tcp: after a deadline the memory is the caller's again, and the connection serves on") {
  pair_of_transports p(tcp());
  constexpr std::size_t size = 8 << 20;
  auto memory = *p.server->allocate(size);
  std::fill(memory->bytes().begin(), memory->bytes().end(), std::byte{1});
  int late = 0;
  for (int round = 0; round < 20; ++round) {
    auto buffer = std::make_unique<std::vector<std::byte>>(size);
    const auto deadline = in(std::chrono::milliseconds(round / 4));
    const auto outcome = p.wait([&](weir::completion done) {
      if (round % 2 == 0)
        p.to_server->get(memory->descriptor(), 0, *buffer, deadline, std::move(done));
      else
        p.to_server->put(memory->descriptor(), 0, *buffer, deadline, std::move(done));
    });
    if (!outcome) CHECK(outcome.error().code == weir::errc::timeout);
    late += outcome ? 0 : 1;
    buffer.reset();  // a sanitizer sees who still uses it
  }
  CHECK(late > 0);
  std::vector<std::byte> last(1000);
  CHECK(p.put(memory->descriptor(), 0, last));
  CHECK(p.get(memory->descriptor(), 0, last));
}

TEST_CASE("tcp: frames that a peer does not take fill a bounded queue, and none is lost of those that were accepted") {
  pair_of_transports p(tcp());
  const auto frame = pattern(1 << 20, 1);
  std::size_t accepted = 0;
  weir::result<void> last;
  for (; accepted < 500; ++accepted) {
    last = p.to_server->send(frame);
    if (!last) break;
    if (accepted % 8 == 0) std::this_thread::sleep_for(2ms);
  }
  REQUIRE_FALSE(last);  // the server makes no progress
  CHECK(last.error().code == weir::errc::unavailable);
  CHECK(last.error().message.find("no room") != std::string::npos);
  REQUIRE(p.until([&] { return p.at_server.frames.size() == accepted; }));
  CHECK(std::all_of(p.at_server.frames.begin(), p.at_server.frames.end(), [&](const auto& f) { return f == frame; }));
  CHECK(p.to_server->send(frame));
}

TEST_CASE("tcp: without descriptors a connect is an error, and the transport serves on once there are some") {
  pair_of_transports p(tcp());
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const auto held = p.accepted;  // the next one takes its place
  const auto used = open_descriptors();
  for (rlim_t more : {0, 1, 2, 3, 4, 5}) {
    INFO(more);
    rlimit few{used + more, before.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
    auto refused = p.client->connect(p.address, in(300ms));
    ::setrlimit(RLIMIT_NOFILE, &before);
    REQUIRE_FALSE(refused);
    INFO(refused.error().message);
    if (more < 2)
      CHECK(refused.error().message.find("open files") != std::string::npos);  // with more, the server lacks them
  }
  CHECK(p.client->connect(p.address, in(5s)));
  auto memory = *p.server->allocate(10);
  std::vector<std::byte> buffer(10);
  const auto outcome = p.get(memory->descriptor(), 0, buffer);
  INFO((outcome ? "" : outcome.error().message));
  CHECK(outcome);
}

TEST_CASE("tcp: settings out of range are the caller's fault") {
  for (auto change : std::vector<std::function<void(weir::tcp_settings&)>>{
           [](auto& s) { s.streams = 0; }, [](auto& s) { s.streams = 65; }, [](auto& s) { s.threads = 0; },
           [](auto& s) { s.chunk = 4095; }, [](auto& s) { s.token.resize(256); }}) {
    weir::tcp_settings s;
    change(s);
    CHECK_THROWS_AS(weir::make_tcp_transport({}, s), std::invalid_argument);
  }
}

TEST_CASE("tcp: a cut cable ends what is under way, and connections where nothing is") { check_cut_cable("tcp"); }

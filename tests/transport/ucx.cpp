// The UCX transport: what every transport does, over each of UCX's ways, then peers that are hostile, dead, stopped or
// of another run. The ways are chosen by UCX_TLS, which UCX reads when a transport is made.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>

#include "conformance.hpp"
#include "raw_socket.hpp"
#include "two_hosts.hpp"
#include "ucx/environment.hpp"
#include "ucx/wire.hpp"
#include "weir/transport/load.hpp"

using namespace weir::testing;
using namespace std::chrono_literals;
namespace fs = std::filesystem;
namespace ucx = weir::ucx;

namespace {

const char* const tcp_only = "tcp";
const char* const memory_only = "posix,sysv,cma,self";

/// An environment variable while it lives.
struct variable {
  variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~variable() { ::unsetenv(name_); }
  variable(const variable&) = delete;
  variable& operator=(const variable&) = delete;

 private:
  const char* name_;
};

weir::transport_maker maker(const weir::transport_settings& settings = {{"shared_memory", "off"}}) {
  auto loaded = weir::load_transport("ucx", settings);
  INFO((loaded ? std::string() : loaded.error().message));
  REQUIRE(loaded);
  return loaded->make;
}

implementation over_wire() { return {maker(), "127.0.0.1:0"}; }

std::chrono::steady_clock::time_point in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

/// Shared-memory segments of this process: sysv ones that it made, and what has a name, which UCX takes away at once.
std::size_t segments() {
  std::size_t count = 0;
  for (const auto& e : fs::directory_iterator("/dev/shm"))
    count += e.path().filename().string().starts_with("ucx") ? 1 : 0;
  std::ifstream sysv("/proc/sysvipc/shm");
  std::string line;
  std::getline(sysv, line);  // key shmid perms size cpid ...
  while (std::getline(sysv, line)) {
    std::istringstream words(line);
    long key = 0, id = 0, permissions = 0, size = 0, maker = 0;
    words >> key >> id >> permissions >> size >> maker;
    count += maker == ::getpid() ? 1 : 0;
  }
  return count;
}

/// Resident memory, in KiB; always 0 under a sanitizer, which keeps what was freed and finds leaks by itself.
std::size_t resident() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 0;
#endif
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmRSS:") {
      std::size_t kib = 0;
      status >> kib;
      return kib;
    }
  return 0;
}

std::size_t available_gib() {
  std::ifstream info("/proc/meminfo");
  for (std::string word; info >> word;)
    if (word == "MemAvailable:") {
      std::size_t kib = 0;
      info >> kib;
      return kib >> 20U;
    }
  return 0;
}

std::string text(ucx::side_header head, const std::string& body) {
  head.length = static_cast<std::uint32_t>(body.size());
  return std::string(reinterpret_cast<const char*>(&head), sizeof head) + body;
}

template <class T>
std::string bytes_of(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

std::uint32_t library() {  // as the peers say it
  auto loaded = weir::load_transport("ucx");
  REQUIRE(loaded);
  unsigned major = 0, minor = 0;
  REQUIRE(std::sscanf(loaded->built_with.c_str(), "UCX %u.%u", &major, &minor) == 2);
  return major << 16U | minor;
}

/// A hello that is in order, changed.
std::string hello(const std::function<void(ucx::side_header&, ucx::greeting&, std::string& address)>& change) {
  ucx::side_header head;
  head.said = ucx::said::hello;
  head.library = library();
  ucx::greeting g;
  g.link = 77;
  g.here.transport.fill('r');
  std::string address(100, 'a');
  const auto settings = ucx::shared_environment();
  g.settings = static_cast<std::uint32_t>(settings.size());
  g.address_sum = ucx::sum_of(address);
  change(head, g, address);
  return text(head, bytes_of(g) + settings + address);
}

}  // namespace

TEST_CASE("ucx with mapped memory conforms") { conformance({maker({}), "127.0.0.1:0"}); }
TEST_CASE("ucx over tcp conforms") {
  const variable tls("UCX_TLS", tcp_only);
  conformance(over_wire());
}
TEST_CASE("ucx over memory of the machine conforms") {
  const variable tls("UCX_TLS", memory_only);
  conformance(over_wire());
}

TEST_CASE("ucx: what UCX chose is said, and a slow way on one machine is a notice, once") {
  std::vector<std::string> notices;
  auto pair = [&](const weir::transport_maker& make) {
    notices.clear();
    auto server = make({}), client = make({{}, {}, {}, [&](const std::string&what) { notices.push_back(what); }});
    const auto at = *server->listen("127.0.0.1:0");
    auto one = *client->connect(at, in(5s)), other = *client->connect(at, in(5s));
    client->progress();
    return one->lane();
  };
  CHECK(pair(maker({})) == "mapped memory");
  CHECK(notices.empty());
  {
    const variable tls("UCX_TLS", tcp_only);
    CHECK(pair(maker()) == "ucx: tcp");
    REQUIRE(notices.size() == 1);
    CHECK(notices[0].find("ucx: tcp") != std::string::npos);
    CHECK(notices[0].find("on this machine") != std::string::npos);
  }
  {
    const variable tls("UCX_TLS", memory_only);
    const auto lane = pair(maker());
    CHECK((lane == "ucx: posix" || lane == "ucx: sysv"));
    CHECK(notices.empty());
  }
  // Peer failure handling alone must not send bytes of one machine through sockets (nixl #1846).
  const auto lane = pair(maker());
  CHECK(lane.find("tcp") == std::string::npos);
}

TEST_CASE("ucx: where UCX_TLS leaves nothing the error says what to set") {
  {
    const variable tls("UCX_TLS", "rc_mlx5");
    const auto none = weir::load_transport("ucx");
    REQUIRE_FALSE(none);
    CHECK(none.error().code == weir::errc::unsupported);
    CHECK(none.error().message.find("UCX_TLS=rc_mlx5") != std::string::npos);
  }
  std::unique_ptr<weir::transport> server, client;
  {
    const variable tls("UCX_TLS", tcp_only);
    server = maker()({});
  }
  {
    const variable tls("UCX_TLS", memory_only);
    client = maker()({});
  }
  const auto at = *server->listen("127.0.0.1:0");
  const auto none = client->connect(at, in(5s));
  REQUIRE_FALSE(none);
  // Lanes that differ end the process in UCX; so the handshake compares what decides on them.
  CHECK(none.error().code == weir::errc::unsupported);
  CHECK(none.error().message.find("\"UCX_TLS=tcp\" on this side, \"UCX_TLS=posix,sysv,cma,self\"") !=
        std::string::npos);
  CHECK(none.error().message.find("set the same on both") != std::string::npos);
  // The same on both, and yet nothing: memory of the machine that can't tell of a peer's end.
  {
    const variable own("UCX_TLS", memory_only), no("UCX_MM_ERROR_HANDLING", "n");
    server = maker()({});
    client = maker()({});
    const auto way = client->connect(*server->listen("127.0.0.1:0"), in(5s));
    REQUIRE_FALSE(way);
    CHECK(way.error().message.find("UCX finds no way to the peer") != std::string::npos);
    CHECK(way.error().message.find("UCX_MM_ERROR_HANDLING=y") != std::string::npos);
  }
  CHECK_FALSE(weir::load_transport("ucx", {{"windw", "3"}}));
}

TEST_CASE("ucx: many transfers at once, each in many requests, are whole") {
  for (const char* way : {tcp_only, memory_only}) {
    const variable tls("UCX_TLS", way);
    pair_of_transports p({maker({{"shared_memory", "off"}, {"chunk", "64k"}}), "127.0.0.1:0"});
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

TEST_CASE("ucx: a peer is served though it makes no progress") {
  pair_of_transports p(over_wire());
  auto memory = *p.server->allocate(10'000'000);
  std::fill(memory->bytes().begin(), memory->bytes().end(), std::byte{3});
  std::vector<std::byte> buffer(10'000'000);
  bool done = false;
  p.to_server->get(memory->descriptor(), 0, buffer, p.soon(), [&](weir::result<void> r) { done = r.has_value(); });
  for (const auto end = in(5s); !done && std::chrono::steady_clock::now() < end;) p.client->progress();
  CHECK(done);
  CHECK(std::all_of(buffer.begin(), buffer.end(), [](std::byte b) { return b == std::byte{3}; }));
}

TEST_CASE("ucx: a region taken back while a peer reads it gives whole data or an error") {
  for (const char* way : {tcp_only, memory_only}) {
    const variable tls("UCX_TLS", way);
    taking_back(over_wire(), 1 << 20);
  }
}

TEST_CASE("ucx: peers at once, in both directions, and again after all of them went") {
  const auto make = maker();
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<weir::connection>> accepted;
    auto server = make({[&](auto c) { accepted.push_back(std::move(c)); }, {}, {}});
    const auto at = *server->listen("127.0.0.1:0");
    std::vector<std::unique_ptr<weir::transport>> clients;
    std::vector<std::shared_ptr<weir::connection>> connections;
    for (int i = 0; i < 6; ++i) {
      clients.push_back(make({}));
      connections.push_back(*clients.back()->connect(at, in(5s)));
    }
    auto memory = *server->allocate(3'000'000);
    const auto expected = pattern(3'000'000, 9);
    std::copy(expected.begin(), expected.end(), memory->bytes().begin());
    std::vector<std::vector<std::byte>> got(6, std::vector<std::byte>(3'000'000));
    std::size_t done = 0;
    for (int i = 0; i < 6; ++i)
      connections[i]->get(memory->descriptor(), 0, got[i], in(10s), [&](weir::result<void> r) { done += r ? 1 : 100; });
    for (const auto end = in(10s); (done < 6 || accepted.size() < 6) && std::chrono::steady_clock::now() < end;) {
      server->progress();
      for (auto& c : clients) c->progress();
    }
    REQUIRE(done == 6);
    for (const auto& g : got) CHECK(g == expected);
    // The other way round, on the same connections.
    REQUIRE(accepted.size() == 6);
    auto theirs = *clients[0]->allocate(1000);
    std::size_t found = 0, refused = 0;
    std::vector<std::vector<std::byte>> back(6, std::vector<std::byte>(1000));
    for (int i = 0; i < 6; ++i)
      accepted[i]->get(theirs->descriptor(), 0, back[i], in(10s),
                       [&](weir::result<void> r) { r ? ++found : ++refused; });
    for (const auto end = in(10s); found + refused < 6 && std::chrono::steady_clock::now() < end;) server->progress();
    CHECK(found == 1);  // the one that it belongs to
    CHECK(refused == 5);
  }
}

TEST_CASE("ucx: two that connect to each other at the same time") {
  const auto make = maker();
  for (int round = 0; round < 20; ++round) {
    std::vector<std::shared_ptr<weir::connection>> kept[2];
    std::unique_ptr<weir::transport> t[2];
    std::string at[2];
    for (int i : {0, 1}) {
      t[i] = make({[&, i](auto c) { kept[i].push_back(std::move(c)); }, {}, {}});
      at[i] = *t[i]->listen("127.0.0.1:0");
    }
    std::shared_ptr<weir::connection> to[2];
    std::thread other([&] {
      auto c = t[1]->connect(at[0], in(5s));
      if (c) to[1] = *c;
    });
    auto c = t[0]->connect(at[1], in(5s));
    other.join();
    REQUIRE(c);
    to[0] = *c;
    REQUIRE(to[1]);
    for (int i : {0, 1}) {
      auto memory = *t[1 - i]->allocate(100'000);
      std::vector<std::byte> got(100'000, std::byte{1});
      std::optional<weir::result<void>> outcome;
      to[i]->get(memory->descriptor(), 0, got, in(5s), [&](weir::result<void> r) { outcome = std::move(r); });
      for (const auto end = in(6s); !outcome && std::chrono::steady_clock::now() < end;) t[i]->progress();
      REQUIRE(outcome);
      INFO((*outcome ? std::string() : outcome->error().message));
      CHECK(*outcome);
      to[i]->close();  // must not take the other's way along
    }
  }
}

TEST_CASE("ucx: a peer of another run, another version or another UCX is refused and told why") {
  auto server = maker({{"token", "run 1"}})({}), client = maker({{"token", "run 2"}})({});
  const auto at = *server->listen("127.0.0.1:0");
  const auto refused = client->connect(at, in(5s));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == weir::errc::unavailable);
  CHECK(refused.error().message.find("another run") != std::string::npos);
  auto told = [&](const std::string& what) {
    const raw_socket socket(at);
    socket.write(what);
    const auto answer = socket.read<ucx::side_header>();
    REQUIRE(answer);
    CHECK(answer->first.said == ucx::said::refused);
    CHECK(socket.ended());
    return answer->second;
  };
  CHECK(told(hello([](auto& h, auto&, auto&) { h.version = 9; })).find("run the same Weir") != std::string::npos);
  CHECK(told(hello([](auto& h, auto&, auto&) { h.library += 1; })).find("UCX") != std::string::npos);
}

TEST_CASE("ucx: a server that is flooded, insulted and half-greeted goes on to serve others") {
  pair_of_transports p(over_wire());
  std::vector<std::unique_ptr<raw_socket>> idle;
  for (int i = 0; i < 50; ++i) idle.push_back(std::make_unique<raw_socket>(p.address));
  auto refused = [&](const std::string& what) {
    const raw_socket socket(p.address);
    socket.write(what);
    const auto answer = socket.read<ucx::side_header>();
    CHECK((!answer || answer->first.said == ucx::said::refused));
    CHECK(socket.ended());
  };
  refused("GET / HTTP/1.1\r\nHost: weir\r\n\r\n");
  refused(hello([](auto& h, auto&, auto&) { h.said = ucx::said::ready; }));
  refused(hello([](auto& h, auto&, auto&) { h.said = static_cast<ucx::said>(99); }));
  refused(hello([](auto&, auto& g, auto&) { g.link = 0; }));
  refused(hello([](auto&, auto& g, auto&) { g.token = 5'000; }));
  refused(hello([](auto&, auto& g, auto&) { g.token = ~0U; }));
  refused(hello([](auto&, auto& g, auto&) { g.settings = ~0U; }));
  refused(hello([](auto&, auto& g, auto&) { g.settings -= 1; }));
  refused(hello([](auto&, auto&, auto& a) { a.clear(); }));
  refused(hello([](auto&, auto&, auto& a) { a[50] = 'b'; }));  // damaged on its way
  refused(hello([](auto&, auto&, auto& a) { a.assign(66'000, 'x'); }));
  ucx::side_header endless;
  endless.said = ucx::said::hello;
  endless.length = ~0U;
  refused(bytes_of(endless));
  ucx::side_header empty;
  empty.said = ucx::said::hello;
  empty.library = library();
  refused(bytes_of(empty));
  {  // a hello, then nonsense instead of ready
    const raw_socket socket(p.address);
    socket.write(hello([](auto&, auto&, auto&) {}));
    const auto welcome = socket.read<ucx::side_header>();
    REQUIRE(welcome);
    CHECK(welcome->first.said == ucx::said::welcome);
    socket.write(text(ucx::side_header{}, "nonsense"));
    const auto answer = socket.read<ucx::side_header>();
    REQUIRE(answer);
    CHECK(answer->first.said == ucx::said::refused);
    CHECK(socket.ended());
  }
  {  // one that agrees on an endpoint that never was
    const raw_socket socket(p.address);
    socket.write(hello([](auto&, auto&, auto&) {}));
    REQUIRE(socket.read<ucx::side_header>());
    ucx::side_header head;
    head.said = ucx::said::ready;
    socket.write(text(head, bytes_of(ucx::agreement{5, 1})));
    const auto answer = socket.read<ucx::side_header>();
    REQUIRE(answer);
    CHECK(answer->first.said == ucx::said::refused);
  }
  auto memory = *p.server->allocate(10);
  std::vector<std::byte> buffer(10);
  CHECK(p.get(memory->descriptor(), 0, buffer));
}

TEST_CASE("ucx: addresses that are none say what one looks like, and a silent host costs no more than the deadline") {
  auto t = maker()({});
  for (const char* none : {"", ":", "host", "host:", ":80", "host:99999"}) {
    INFO(none);
    const auto c = t->connect(none, in(1s));
    REQUIRE_FALSE(c);
    CHECK(c.error().code == weir::errc::invalid_argument);
    CHECK_FALSE(t->listen(none));
  }
  CHECK(t->connect("127.0.0.1:1", in(1s)).error().code == weir::errc::not_found);
  const int silent = ::socket(AF_INET, SOCK_STREAM, 0);  // listens, but nobody accepts
  sockaddr_in at{};
  socklen_t size = sizeof at;
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(silent, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
  REQUIRE(::listen(silent, 8) == 0);
  REQUIRE(::getsockname(silent, reinterpret_cast<sockaddr*>(&at), &size) == 0);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(t->connect("127.0.0.1:" + std::to_string(ntohs(at.sin_port)), in(200ms)).error().code == weir::errc::timeout);
  CHECK(std::chrono::steady_clock::now() - begin < 3s);
  ::close(silent);
}

TEST_CASE("ucx: a peer killed in the middle of a transfer ends it at once, whatever the way") {
  constexpr std::size_t size = 256 << 20;
  std::vector<std::byte> got(size);
  for (const char* way : {tcp_only, memory_only}) {
    INFO(way);
    const variable tls("UCX_TLS", way);
    serving_process server("ucx", size, {"shared_memory=off", "chunk=1m"});
    client_of client(maker({{"shared_memory", "off"}, {"chunk", "1m"}}), server.address);
    std::optional<weir::result<void>> outcome;
    int calls = 0;
    std::fill(got.begin(), got.end(), std::byte{0});
    client.to_server->get(server.descriptor, 0, got, in(60s), [&](weir::result<void> r) {
      outcome = std::move(r);
      ++calls;
    });
    // The first byte of pattern(size, 1) that is not 0 tells that bytes have begun to come.
    const auto first = pattern(4096, 1);
    const auto mark =
        std::find_if(first.begin(), first.end(), [](std::byte b) { return b != std::byte{0}; }) - first.begin();
    const volatile std::byte* seen = &got[static_cast<std::size_t>(mark)];
    REQUIRE(client.until([&] { return *seen != std::byte{0} || outcome; }));
    server.process.kill();
    const auto killed = std::chrono::steady_clock::now();
    REQUIRE(client.until([&] { return outcome.has_value(); }));
    CHECK(std::chrono::steady_clock::now() - killed < 5s);  // not a timeout of UCX's
    if (*outcome)
      CHECK(got == pattern(size, 1));
    else
      CHECK(outcome->error().code == weir::errc::unavailable);
    REQUIRE(client.until([&] { return client.closed == 1; }));
    CHECK(client.get(server.descriptor, 0, std::span(got).first(10)).error().code == weir::errc::unavailable);
    CHECK(client.to_server->send({}).error().code == weir::errc::unavailable);
    CHECK(calls == 1);
    // And a new peer is served by the same transport.
    serving_process next("ucx", 1000, {"shared_memory=off"});
    auto again = client.mine->connect(next.address, in(5s));
    REQUIRE(again);
    client.to_server = *again;
    std::vector<std::byte> small(1000);
    const auto served = client.get(next.descriptor, 0, small);
    INFO((served ? std::string() : served.error().message));
    CHECK(served);
    CHECK((small == pattern(1000, 1)));
  }
}

TEST_CASE("ucx: a peer killed while it says something holds up no connection that is made afterwards") {
  const variable tls("UCX_TLS", memory_only);
  serving_process first("ucx", 1000, {"shared_memory=off"});
  client_of client(maker({{"shared_memory", "off"}}), first.address);
  const std::vector<std::byte> frame(2000);
  auto* chatty = &first.process;
  std::unique_ptr<serving_process> next;
  // One kill in a few leaves a place in UCX's queue taken and never filled.
  for (int round = 0; round < 16; ++round) {
    INFO(round);
    const auto heard = client.frames.size();
    for (int i = 0; i < 40; ++i) REQUIRE(client.to_server->send(frame));  // each comes back
    REQUIRE(client.until([&] { return client.frames.size() > heard + static_cast<std::size_t>(round); }));
    chatty->kill();
    const auto closed = client.closed;
    REQUIRE(client.until([&] { return client.closed > closed || client.to_server->send({}).has_value() == false; }));
    next = std::make_unique<serving_process>("ucx", 1000, std::vector<std::string>{"shared_memory=off"});
    auto again = client.mine->connect(next->address, in(5s));
    REQUIRE(again);
    client.to_server = *again;
    chatty = &next->process;
    std::vector<std::byte> got(1000);
    REQUIRE(client.get(next->descriptor, 0, got));
    CHECK((got == pattern(1000, 1)));
  }
}

TEST_CASE("ucx: a stopped peer costs the deadline, the buffer is the caller's again, and it is served on") {
  for (const char* way : {tcp_only, memory_only}) {
    INFO(way);
    const variable tls("UCX_TLS", way);
    serving_process server("ucx", 8 << 20, {"shared_memory=off", "chunk=1m"});
    client_of client(maker({{"shared_memory", "off"}, {"chunk", "1m"}}), server.address);
    std::vector<std::byte> first(1 << 20);
    REQUIRE(client.get(server.descriptor, 0, first));
    server.process.signal(SIGSTOP);
    for (const bool get : {true, false}) {
      auto buffer = std::make_unique<std::vector<std::byte>>(8 << 20);
      std::optional<weir::result<void>> outcome;
      const auto deadline = in(300ms);
      auto done = [&](weir::result<void> r) { outcome = std::move(r); };
      if (get)
        client.to_server->get(server.descriptor, 0, *buffer, deadline, done);
      else
        client.to_server->put(server.descriptor, 0, *buffer, deadline, done);
      REQUIRE(client.until([&] { return outcome.has_value(); }));
      CHECK(std::chrono::steady_clock::now() - deadline < 2s);
      REQUIRE_FALSE(*outcome);
      CHECK(outcome->error().code == weir::errc::timeout);
      buffer.reset();  // a sanitizer sees who still uses it
    }
    server.process.signal(SIGCONT);
    // Active messages of a peer that was interrupted still call back (ucx #10370).
    std::vector<std::byte> whole(8 << 20);
    const auto outcome = client.get(server.descriptor, 0, whole);
    INFO((outcome ? std::string() : outcome.error().message));
    CHECK(outcome);
  }
}

TEST_CASE(
    "ucx: a peer that stops in the middle, until a deadline that was far, loses its connection and not the buffer") {
  constexpr std::size_t size = 64 << 20;
  for (const char* way : {tcp_only, memory_only}) {
    INFO(way);
    const variable tls("UCX_TLS", way);
    serving_process server("ucx", size, {"shared_memory=off", "chunk=64m"});
    client_of client(maker({{"shared_memory", "off"}, {"chunk", "64m"}}), server.address);
    auto got = std::make_unique<std::vector<std::byte>>(size);
    std::optional<weir::result<void>> outcome;
    const auto deadline = in(1500ms);
    client.to_server->get(server.descriptor, 0, *got, deadline, [&](weir::result<void> r) { outcome = std::move(r); });
    const auto expected = pattern(4096, 1);
    const volatile std::byte* seen = got->data();
    std::size_t mark = 0;
    while (expected[mark] == std::byte{0}) ++mark;
    REQUIRE(client.until([&] { return seen[mark] != std::byte{0} || outcome; }));
    server.process.signal(SIGSTOP);
    REQUIRE(client.until([&] { return outcome.has_value(); }));
    if (!*outcome) {  // it may have been through already
      CHECK(std::chrono::steady_clock::now() - deadline < 2s);
      CHECK(outcome->error().code == weir::errc::timeout);
      got.reset();
      REQUIRE(client.until([&] { return client.closed == 1; }));
    }
    server.process.signal(SIGCONT);
    auto again = client.mine->connect(server.address, in(5s));
    REQUIRE(again);
    client.to_server = *again;
    std::vector<std::byte> small(1000);
    CHECK(client.get(server.descriptor, 0, small));
  }
}

TEST_CASE("ucx: after a deadline the memory is the caller's again, and the connection serves on") {
  for (const char* way : {tcp_only, memory_only}) {
    const variable tls("UCX_TLS", way);
    pair_of_transports p(over_wire());
    constexpr std::size_t size = 8 << 20;
    auto memory = *p.server->allocate(size);
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
}

TEST_CASE("ucx: a close in the middle of a transfer gives the buffer back") {
  for (const char* way : {tcp_only, memory_only}) {
    const variable tls("UCX_TLS", way);
    pair_of_transports p(over_wire());
    constexpr std::size_t size = 64 << 20;
    auto memory = *p.server->allocate(size);
    for (const bool get : {true, false}) {
      auto buffer = std::make_unique<std::vector<std::byte>>(size);
      const auto outcome = p.wait([&](weir::completion done) {
        if (get)
          p.to_server->get(memory->descriptor(), 0, *buffer, in(60s), std::move(done));
        else
          p.to_server->put(memory->descriptor(), 0, *buffer, in(60s), std::move(done));
        std::this_thread::yield();
        p.to_server->close();
      });
      REQUIRE_FALSE(outcome);
      CHECK(outcome.error().code == weir::errc::unavailable);
      buffer.reset();
      p.accepted.reset();
      p.to_server = *p.client->connect(p.address, p.soon());
      REQUIRE(p.until([&] { return p.accepted != nullptr; }));
    }
  }
}

TEST_CASE("ucx: frames that a peer does not take fill a bounded queue, and none is lost of those that were accepted") {
  for (const char* way : {tcp_only, memory_only}) {
    const variable tls("UCX_TLS", way);
    pair_of_transports p(over_wire());
    const auto frame = pattern(1 << 20, 1);
    std::size_t accepted = 0;
    weir::result<void> last;
    for (; accepted < 500; ++accepted) {
      last = p.to_server->send(frame);
      if (!last) break;
    }
    REQUIRE_FALSE(last);  // the server makes no progress
    CHECK(last.error().message.find("no room") != std::string::npos);
    REQUIRE(p.until([&] { return p.at_server.frames.size() == accepted; }));
    CHECK(std::all_of(p.at_server.frames.begin(), p.at_server.frames.end(), [&](const auto& f) { return f == frame; }));
    REQUIRE(p.until([&] { return p.to_server->send(frame).has_value(); }));
    // All that was sent before a close arrives before it.
    for (int i = 0; i < 5; ++i) REQUIRE(p.until([&] { return p.to_server->send(frame).has_value(); }));
    p.to_server->close();
    REQUIRE(p.until([&] { return p.at_server.closed == 1; }));
    CHECK(p.at_server.frames.size() == accepted + 6);
  }
}

TEST_CASE("ucx: nothing to do costs nothing, and work after a pause is done at once") {
  for (const char* way : {tcp_only, memory_only}) {
    INFO(way);
    const variable tls("UCX_TLS", way);
    serving_process server("ucx", 1 << 20, {"shared_memory=off"});
    client_of client(maker(), server.address);
    std::vector<std::byte> got(1 << 20);
    REQUIRE(client.get(server.descriptor, 0, got));
    const auto before = std::stol(server.process.ask("cpu").at(0));
    const auto own = std::clock();
    std::this_thread::sleep_for(1s);
    CHECK(std::stol(server.process.ask("cpu").at(0)) - before < 100);  // of 1,000 ms
    CHECK((std::clock() - own) * 1000 / CLOCKS_PER_SEC < 100);
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(client.get(server.descriptor, 0, got));
    CHECK(std::chrono::steady_clock::now() - begin < 2s);  // and not after UCX's 20 s (ucx #7864)
  }
}

TEST_CASE("ucx: thousands of connections, with and without others beside, leave no memory, descriptor or segment") {
  const variable tls("UCX_TLS", memory_only);
  const auto before_all = segments();
  {
    pair_of_transports p(over_wire());
    p.accepted.reset();
    p.to_server.reset();
    auto memory = *p.server->allocate(1000);
    std::vector<std::byte> got(1000);
    auto round = [&](int i) {
      p.to_server = *p.client->connect(p.address, p.soon());
      REQUIRE(p.until([&] { return p.accepted != nullptr; }));
      if (i % 10 == 0) REQUIRE(p.get(memory->descriptor(), 0, got));
      p.accepted.reset();
      p.to_server.reset();
    };
    for (int i = 0; i < 500; ++i) round(i);
    const auto descriptors = open_descriptors(), kib = resident(), shared = segments();
    for (int i = 0; i < 2000; ++i) round(i);
    CHECK(p.until([&] { return open_descriptors() <= descriptors; }));
    CHECK(p.until([&] { return segments() <= shared; }));
    CHECK(resident() < kib + 4096);
  }
  CHECK(segments() <= before_all);
}

TEST_CASE("ucx: transports that come and go leave nothing") {
  const auto make = maker();
  auto round = [&] {
    auto server = make({}), client = make({});
    auto c = *client->connect(*server->listen("127.0.0.1:0"), in(5s));
    auto memory = *server->allocate(100'000);
    std::vector<std::byte> got(100'000);
    std::optional<bool> done;
    c->get(memory->descriptor(), 0, got, in(5s), [&](weir::result<void> r) { done = r.has_value(); });
    for (const auto end = in(5s); !done && std::chrono::steady_clock::now() < end;) client->progress();
    CHECK(done == true);
  };
  for (int i = 0; i < 5; ++i) round();
  const auto descriptors = open_descriptors(), kib = resident(), shared = segments();
  for (int i = 0; i < 30; ++i) round();
  CHECK(open_descriptors() <= descriptors);
  CHECK(segments() <= shared);
  CHECK(resident() < kib + 16'384);
}

TEST_CASE("ucx: many regions at once, each its own") {
  pair_of_transports p(over_wire());
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

/// A test of its own for ctest: it takes memory and time.
TEST_CASE("ucx: more than 4 GiB in one piece", "[.][large]") {
  if (available_gib() < 12) return;
  constexpr std::size_t size = (std::size_t{4} << 30U) + 12'289, step = (std::size_t{64} << 20U) + 4097;
  const variable tls("UCX_TLS", memory_only);
  pair_of_transports p(over_wire());
  auto memory = *p.server->allocate(size);
  auto mark = [&](std::size_t at) { std::memcpy(memory->bytes().data() + at, &at, sizeof at); };
  for (std::size_t at = 0; at + sizeof at <= size; at += step) mark(at);
  mark(size - sizeof size);
  auto* into = static_cast<std::byte*>(
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  REQUIRE(into != MAP_FAILED);
  (void)::madvise(into, size, MADV_HUGEPAGE);
  std::optional<weir::result<void>> outcome;
  p.to_server->get(memory->descriptor(), 0, {into, size}, in(300s),
                   [&](weir::result<void> r) { outcome = std::move(r); });
  while (!outcome) {
    pollfd waiting{p.client->event_fd(), POLLIN, 0};
    if (p.client->progress() == 0) ::poll(&waiting, 1, 1000);
  }
  REQUIRE(*outcome);
  auto marked = [&](std::size_t at) {
    std::size_t found = 0;
    std::memcpy(&found, into + at, sizeof found);
    return found == at;
  };
  bool whole = marked(size - sizeof size);
  for (std::size_t at = 0; at + sizeof at <= size; at += step) whole = whole && marked(at);
  CHECK(whole);
  ::munmap(into, size);
}

TEST_CASE("ucx: a cut cable ends what is under way, and connections where nothing is") {
  const variable tls("UCX_TLS", tcp_only);
  check_cut_cable("ucx");
}

#pragma once
// What every transport must do, whatever carries the bytes: `TEST_CASE("mine conforms") { conformance({maker,
// address}); }`

#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "weir/transport/transport.hpp"

namespace weir::testing {

/// What is tested. Transports of one maker can reach one another; `address` is one to listen at that is free.
struct implementation {
  transport_maker make;
  std::string address = "conformance";
};

/// Two transports with a connection between them.
struct pair_of_transports {
  /// What one side heard.
  struct side {
    std::vector<std::vector<std::byte>> frames;
    int closed = 0;
    transport_handlers handlers(std::shared_ptr<connection>* accepted = nullptr) {
      return {[accepted](std::shared_ptr<connection> c) {
                if (accepted != nullptr) *accepted = std::move(c);
              },
              [this](connection&, std::span<const std::byte> f) { frames.emplace_back(f.begin(), f.end()); },
              [this](connection&, const error&) { ++closed; }};
    }
  };
  side at_server, at_client;
  std::shared_ptr<connection> accepted;
  std::unique_ptr<transport> server, client;
  std::string address;  ///< where the server is reached
  std::shared_ptr<connection> to_server;

  explicit pair_of_transports(const implementation& tested) {
    server = tested.make(at_server.handlers(&accepted));
    client = tested.make(at_client.handlers());
    auto at = server->listen(tested.address);
    REQUIRE(at);
    address = *at;
    auto connected = client->connect(address, soon());
    INFO((connected ? std::string() : connected.error().message));
    REQUIRE(connected);
    to_server = *connected;
    REQUIRE(until([this] { return accepted != nullptr; }));
  }

  static std::chrono::steady_clock::time_point soon() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(5);
  }

  template <class Condition>
  bool until(Condition condition) {
    for (const auto end = soon(); std::chrono::steady_clock::now() < end;) {
      if (condition()) return true;
      if (server->progress() + client->progress() == 0) std::this_thread::yield();
    }
    return condition();
  }

  result<void> wait(const std::function<void(completion)>& start) {
    std::optional<result<void>> outcome;
    start([&](result<void> r) { outcome = std::move(r); });
    REQUIRE_FALSE(outcome);  // never inside the call
    REQUIRE(until([&] { return outcome.has_value(); }));
    return *outcome;
  }
  result<void> get(const std::string& descriptor, std::uint64_t offset, std::span<std::byte> into) {
    return wait([&](completion done) { to_server->get(descriptor, offset, into, soon(), std::move(done)); });
  }
  result<void> put(const std::string& descriptor, std::uint64_t offset, std::span<const std::byte> from) {
    return wait([&](completion done) { to_server->put(descriptor, offset, from, soon(), std::move(done)); });
  }
};

inline std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 2654435761U + seed) >> 7U);
  return bytes;
}

inline void transfers(const implementation& tested) {
  pair_of_transports p(tested);
  for (std::size_t size : {0UL, 1UL, 63UL, 64UL, 4097UL, 1000003UL}) {
    auto memory = p.server->allocate(size);
    REQUIRE(memory);
    REQUIRE((*memory)->bytes().size() == size);
    CHECK(reinterpret_cast<std::uintptr_t>((*memory)->bytes().data()) % 64 == 0);
    CHECK(std::all_of((*memory)->bytes().begin(), (*memory)->bytes().end(),
                      [](std::byte b) { return b == std::byte{0}; }));
    const auto sent = pattern(size, 1);
    CHECK(p.put((*memory)->descriptor(), 0, sent));
    CHECK(std::equal(sent.begin(), sent.end(), (*memory)->bytes().begin()));
    std::vector<std::byte> got(size);
    CHECK(p.get((*memory)->descriptor(), 0, got));
    CHECK(got == sent);
    if (size > 2) {
      std::vector<std::byte> middle(size - 2);
      CHECK(p.get((*memory)->descriptor(), 1, middle));
      CHECK(std::equal(middle.begin(), middle.end(), sent.begin() + 1));
    }
  }
}

inline void refusals(const implementation& tested) {
  pair_of_transports p(tested);
  auto memory = p.server->allocate(100);
  REQUIRE(memory);
  std::vector<std::byte> buffer(10);
  const auto descriptor = (*memory)->descriptor();
  CHECK(p.get(descriptor, 91, buffer).error().code == errc::invalid_argument);
  CHECK(p.put(descriptor, 101, {}).error().code == errc::invalid_argument);
  CHECK(p.get(descriptor, ~std::uint64_t{0} - 3, buffer).error().code == errc::invalid_argument);
  auto wrong = descriptor;
  wrong.back() = static_cast<char>(wrong.back() ^ 1);
  CHECK(p.get(wrong, 0, buffer).error().code == errc::unavailable);
  CHECK(p.get("", 0, buffer).error().code == errc::unavailable);
  memory->reset();
  CHECK(p.get(descriptor, 0, buffer).error().code == errc::unavailable);
  CHECK_FALSE(p.to_server->map(descriptor));
  const std::vector<std::byte> long_frame(p.client->capabilities().longest_frame + 1);
  CHECK(p.to_server->send(long_frame).error().code == errc::invalid_argument);
  CHECK_FALSE(p.client->connect("nobody is here", p.soon()));
  CHECK_FALSE(p.server->listen(p.address));
}

inline void frames(const implementation& tested) {
  pair_of_transports p(tested);
  for (unsigned i = 0; i < 100; ++i) {
    REQUIRE(p.to_server->send(pattern(i * 37, i)));
    REQUIRE(p.accepted->send(pattern(i * 41, i)));
  }
  CHECK(p.at_server.frames.empty());  // handlers run in progress() only
  REQUIRE(p.until([&] { return p.at_server.frames.size() == 100 && p.at_client.frames.size() == 100; }));
  for (unsigned i = 0; i < 100; ++i) {
    CHECK(p.at_server.frames[i] == pattern(i * 37, i));
    CHECK(p.at_client.frames[i] == pattern(i * 41, i));
  }
  const auto longest = pattern(std::min<std::size_t>(p.client->capabilities().longest_frame, 1 << 20), 5);
  REQUIRE(p.to_server->send(longest));
  REQUIRE(p.until([&] { return p.at_server.frames.size() == 101; }));
  CHECK(p.at_server.frames.back() == longest);
  // A connection may be used at once, before the other side has accepted it.
  auto second = p.client->connect(p.address, p.soon());
  REQUIRE(second);
  REQUIRE((*second)->send(pattern(9, 9)));
  REQUIRE(p.until([&] { return p.at_server.frames.size() == 102; }));
  CHECK(p.at_server.frames.back() == pattern(9, 9));
}

/// `close` ends the connection from the client's side: what is under way there completes, and the server hears once.
inline void ending(const implementation& tested, const std::function<void(pair_of_transports&)>& close) {
  pair_of_transports p(tested);
  auto memory = p.server->allocate(10);
  REQUIRE(memory);
  std::vector<std::byte> buffer(10);
  std::optional<result<void>> outcome;
  int calls = 0;
  p.to_server->get((*memory)->descriptor(), 0, buffer, p.soon(), [&](result<void> r) {
    outcome = std::move(r);
    ++calls;
  });
  close(p);
  CHECK(p.until([&] { return outcome && p.at_server.closed > 0; }));
  REQUIRE(outcome);
  REQUIRE_FALSE(*outcome);
  CHECK(outcome->error().code == errc::unavailable);
  CHECK(p.accepted->send(buffer).error().code == errc::unavailable);
  for (int i = 0; i < 100; ++i) p.server->progress(), p.client->progress();
  CHECK(calls == 1);
  CHECK(p.at_server.closed == 1);
}

inline void closing(const implementation& tested) {
  ending(tested, [](pair_of_transports& p) {
    p.to_server->close();
    p.to_server->close();
    CHECK(p.to_server->send({}).error().code == errc::unavailable);
  });
}

inline void destroying(const implementation& tested) {
  ending(tested, [](pair_of_transports& p) { p.to_server.reset(); });
}

inline void closing_by_the_server(const implementation& tested) {
  pair_of_transports p(tested);
  p.accepted->close();
  CHECK(p.until([&] { return p.at_client.closed == 1; }));
  std::vector<std::byte> buffer(1);
  CHECK(p.get("anything", 0, buffer).error().code == errc::unavailable);
  CHECK(p.to_server->send(buffer).error().code == errc::unavailable);
}

/// An operation whose deadline is past ends, in time or with `timeout`, once.
inline void deadlines(const implementation& tested) {
  pair_of_transports p(tested);
  auto memory = p.server->allocate(10);
  REQUIRE(memory);
  std::vector<std::byte> buffer(10);
  const auto outcome = p.wait([&](completion done) {
    p.to_server->get((*memory)->descriptor(), 0, buffer, std::chrono::steady_clock::now() - std::chrono::seconds(1),
                     std::move(done));
  });
  if (!outcome) CHECK(outcome.error().code == errc::timeout);
}

/// An event loop that looks at event_fd alone, and calls `progress` when it is readable, sees an operation through.
inline void waking(const implementation& tested) {
  pair_of_transports p(tested);
  auto memory = p.server->allocate(10);
  REQUIRE(memory);
  std::vector<std::byte> buffer(10);
  bool done = false;
  while (p.server->progress() + p.client->progress() > 0) {
  }
  p.to_server->get((*memory)->descriptor(), 0, buffer, p.soon(), [&](result<void> r) { done = r.has_value(); });
  REQUIRE(p.to_server->send(buffer));
  while (!done || p.at_server.frames.empty()) {
    pollfd waiting[]{{p.server->event_fd(), POLLIN, 0}, {p.client->event_fd(), POLLIN, 0}};
    REQUIRE(::poll(waiting, 2, 5000) > 0);
    if (waiting[0].revents != 0) p.server->progress();
    if (waiting[1].revents != 0) p.client->progress();
  }
}

/// Several threads may allocate at once.
inline void allocating(const implementation& tested) {
  pair_of_transports p(tested);
  std::vector<std::vector<std::shared_ptr<region>>> made(4);
  std::vector<std::thread> threads;
  for (auto& mine : made)
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i)
        if (auto memory = p.server->allocate(1000)) mine.push_back(*memory);
    });
  for (auto& t : threads) t.join();
  for (const auto& mine : made) CHECK(mine.size() == 100);
  auto one = p.server->allocate(8), other = p.server->allocate(8);
  REQUIRE((one && other));
  CHECK((*one)->descriptor() != (*other)->descriptor());
}

inline void mapping(const implementation& tested) {
  pair_of_transports p(tested);
  if (!p.client->capabilities().map) return;
  auto memory = p.server->allocate(1000);
  const auto sent = pattern(1000, 3);
  std::copy(sent.begin(), sent.end(), (*memory)->bytes().begin());
  auto view = p.to_server->map((*memory)->descriptor());
  REQUIRE(view);
  memory->reset();  // the view keeps the memory
  CHECK(std::equal(sent.begin(), sent.end(), view->bytes.begin(), view->bytes.end()));
}

inline std::size_t open_descriptors() {
  namespace fs = std::filesystem;
  return static_cast<std::size_t>(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

inline void many_connections(const implementation& tested) {
  pair_of_transports p(tested);
  const auto before = open_descriptors();
  for (int i = 0; i < 2000; ++i) {
    auto c = p.client->connect(p.address, p.soon());
    REQUIRE(c);
    (*c)->close();
    p.server->progress();
    p.client->progress();
  }
  p.accepted.reset();
  CHECK(p.until([&] { return open_descriptors() <= before; }));
}

/// Handlers may keep the connections that they were given, as a server's do: all of it goes with the transport.
inline void keeping(const implementation& tested) {
  auto kept = std::make_shared<std::vector<std::shared_ptr<connection>>>();
  {
    auto server = tested.make({[kept](std::shared_ptr<connection> c) { kept->push_back(std::move(c)); }, {}, {}});
    auto client = tested.make({});
    const auto at = server->listen(tested.address);
    REQUIRE(at);
    auto to_server = client->connect(*at, pair_of_transports::soon());
    REQUIRE(to_server);
    for (const auto end = pair_of_transports::soon(); kept->empty() && std::chrono::steady_clock::now() < end;)
      if (server->progress() == 0) std::this_thread::yield();
    REQUIRE(kept->size() == 1);
  }
  CHECK(kept.use_count() == 1);  // the handlers are gone, though a connection is still here
}

/// For transports that may serve a peer from another thread: memory that is taken back meanwhile.
inline void taking_back(const implementation& tested, std::size_t size) {
  pair_of_transports p(tested);
  for (int round = 0; round < 50; ++round) {
    auto memory = p.server->allocate(size);
    std::fill((*memory)->bytes().begin(), (*memory)->bytes().end(), std::byte{7});
    const auto descriptor = (*memory)->descriptor();
    std::thread taker([&] { memory->reset(); });
    std::vector<std::byte> got(size);
    const auto outcome = p.get(descriptor, 0, got);
    taker.join();
    if (outcome)
      CHECK(std::all_of(got.begin(), got.end(), [](std::byte b) { return b == std::byte{7}; }));
    else
      CHECK(outcome.error().code == errc::unavailable);
  }
}

/// All of it: a section each.
inline void conformance(const implementation& tested) {
  SECTION("moves any size") { transfers(tested); }
  SECTION("refuses what is wrong") { refusals(tested); }
  SECTION("keeps frames whole and in order") { frames(tested); }
  SECTION("completes what a close cuts off") { closing(tested); }
  SECTION("completes what a destroyed connection cuts off") { destroying(tested); }
  SECTION("tells the client of the server's close") { closing_by_the_server(tested); }
  SECTION("keeps deadlines") { deadlines(tested); }
  SECTION("lets its handlers keep connections") { keeping(tested); }
  SECTION("wakes an event loop") { waking(tested); }
  SECTION("allocates on any thread") { allocating(tested); }
  SECTION("maps, and a view outlives its region") { mapping(tested); }
  SECTION("leaks no descriptor over thousands of connections") { many_connections(tested); }
}

}  // namespace weir::testing

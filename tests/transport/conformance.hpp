#pragma once
// What every transport must do, whatever carries the bytes. Call `conformance` from a TEST_CASE with sections.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "weir/transport/transport.hpp"

namespace weir::testing {

/// Makes a transport that can reach the others of the same maker.
using transport_maker = std::function<std::unique_ptr<transport>(transport_handlers)>;

/// Two transports with a connection between them.
struct pair_of_transports {
  std::vector<std::vector<std::byte>> frames;
  std::shared_ptr<connection> accepted;
  bool closed = false;
  std::unique_ptr<transport> server, client;
  std::shared_ptr<connection> to_server;

  explicit pair_of_transports(const transport_maker& make, const std::string& address = "conformance") {
    server = make({[this](std::shared_ptr<connection> c) { accepted = std::move(c); },
                   [this](connection&, std::span<const std::byte> f) { frames.emplace_back(f.begin(), f.end()); },
                   [this](connection&, const error&) { closed = true; }});
    client = make({});
    auto at = server->listen(address);
    REQUIRE(at);
    auto connected = client->connect(*at, soon());
    REQUIRE(connected);
    to_server = *connected;
    REQUIRE(until([this] { return accepted != nullptr; }));
  }

  static std::chrono::steady_clock::time_point soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(5); }

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

inline void transfers(const transport_maker& make) {
  pair_of_transports p(make);
  for (std::size_t size : {0UL, 1UL, 63UL, 64UL, 4097UL, 1000003UL}) {
    auto memory = p.server->allocate(size);
    REQUIRE(memory);
    REQUIRE((*memory)->bytes().size() == size);
    CHECK(reinterpret_cast<std::uintptr_t>((*memory)->bytes().data()) % 64 == 0);
    CHECK(std::all_of((*memory)->bytes().begin(), (*memory)->bytes().end(), [](std::byte b) { return b == std::byte{0}; }));
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

inline void refusals(const transport_maker& make) {
  pair_of_transports p(make);
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
  CHECK_FALSE(p.server->listen("conformance"));
}

inline void frames(const transport_maker& make) {
  pair_of_transports p(make);
  for (unsigned i = 0; i < 100; ++i) REQUIRE(p.to_server->send(pattern(i * 37, i)));
  REQUIRE(p.until([&] { return p.frames.size() == 100; }));
  for (unsigned i = 0; i < 100; ++i) CHECK(p.frames[i] == pattern(i * 37, i));
}

inline void closing(const transport_maker& make) {
  pair_of_transports p(make);
  auto memory = p.server->allocate(10);
  std::vector<std::byte> buffer(10);
  std::optional<result<void>> outcome;
  p.to_server->get((*memory)->descriptor(), 0, buffer, p.soon(), [&](result<void> r) { outcome = std::move(r); });
  p.to_server->close();
  p.to_server->close();
  CHECK(p.until([&] { return outcome && p.closed; }));
  CHECK(outcome->error().code == errc::unavailable);
  CHECK(p.to_server->send(buffer).error().code == errc::unavailable);
}

inline void mapping(const transport_maker& make) {
  pair_of_transports p(make);
  if (!p.client->capabilities().map) return;
  auto memory = p.server->allocate(1000);
  const auto sent = pattern(1000, 3);
  std::copy(sent.begin(), sent.end(), (*memory)->bytes().begin());
  auto view = p.to_server->map((*memory)->descriptor());
  REQUIRE(view);
  memory->reset();  // the view keeps the memory
  CHECK(std::equal(sent.begin(), sent.end(), view->bytes.begin(), view->bytes.end()));
}

inline void many_connections(const transport_maker& make, const std::function<std::size_t()>& open_descriptors) {
  pair_of_transports p(make);
  const auto before = open_descriptors();
  for (int i = 0; i < 2000; ++i) {
    auto c = p.client->connect("conformance", p.soon());
    REQUIRE(c);
    (*c)->close();
    p.server->progress();
  }
  p.accepted.reset();
  CHECK(open_descriptors() <= before);
}

}  // namespace weir::testing

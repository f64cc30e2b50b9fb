#pragma once
// A source and receivers in one thread, and what each of them should hold.

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "weir/transport/inproc.hpp"
#include "weir/transport/tcp.hpp"
#include "weir/weights/broadcast.hpp"

namespace weir::testing {

using namespace std::chrono_literals;

inline std::vector<std::byte> content(std::size_t bytes, weight_version version) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>((i * 2654435761U) >> 9U);
  // About one 16-bit word in 200 differs from one version to the next.
  for (weight_version v = 1; v <= version; ++v)
    for (std::size_t i = v % 190; i + 1 < bytes; i += 400)
      made[i & ~std::size_t{1}] ^= static_cast<std::byte>(v * 37 + 1);
  return made;
}

struct receiving {
  std::unique_ptr<broadcast_receiver> it;
  std::vector<weight_version> arrived;
  std::vector<std::string> notices;
  arrived_weights newest;
  bool adopts = true;    ///< at once
  bool stopped = false;  ///< as by SIGSTOP: its connections stay
  std::size_t bytes = 0;

  void on_arrived(const arrived_weights& w) {
    arrived.push_back(w.version);
    const auto expected = content(bytes, w.version);
    REQUIRE(w.bytes.size() == expected.size());
    // Of a version that is here, no bit is another one's: not now, and not for as long as it is held.
    REQUIRE(std::memcmp(w.bytes.data(), expected.data(), bytes) == 0);
    if (newest.owner) {
      const auto before = content(bytes, newest.version);
      REQUIRE(std::memcmp(newest.bytes.data(), before.data(), bytes) == 0);
    }
    newest = w;
  }
};

struct spreading {
  std::size_t bytes;
  std::function<transport_maker(const std::string& name)> makers;
  std::unique_ptr<broadcast_source> source;
  std::vector<std::shared_ptr<region>> regions;
  std::map<weight_version, std::shared_ptr<region>> in_use;
  std::vector<weight_version> released, spoiled, adopted;
  std::vector<broadcast_report> reports;
  std::vector<std::string> notices;
  std::vector<std::unique_ptr<receiving>> receivers;

  spreading(std::size_t size, std::function<transport_maker(const std::string&)> m, broadcast_settings s = {})
      : bytes(size), makers(std::move(m)) {
    s.bytes = bytes;
    if (s.listen == broadcast_settings{}.listen) s.listen = "source";
    divide_for_delta(0, bytes, 2, 64 << 10, s.ranges);
    source_handlers h;
    h.on_released = [this](weight_version v, bool bad) {
      released.push_back(v);
      if (bad)
        spoiled.push_back(v);
      else
        regions.push_back(in_use.at(v));
      in_use.erase(v);
    };
    h.on_adopted = [this](weight_version v) { adopted.push_back(v); };
    h.on_delivered = [this](const broadcast_report& r) { reports.push_back(r); };
    h.on_notice = [this](const std::string& n) { notices.push_back(n); };
    auto made = broadcast_source::make(makers("source"), s, std::move(h));
    REQUIRE(made);
    source = std::move(*made);
  }

  void publish(weight_version version) {
    if (regions.empty()) regions.push_back(*source->allocate());
    auto memory = regions.back();
    regions.pop_back();
    const auto made = content(bytes, version);
    std::memcpy(memory->bytes().data(), made.data(), bytes);
    in_use[version] = memory;
    source->publish(version, memory);
  }

  receiving& join(const std::string& name, std::function<void(receiver_settings&)> change = {},
                  decltype(receiver_handlers::on_joined) joined = {}) {
    auto r = std::make_unique<receiving>();
    r->bytes = bytes;
    receiver_settings s;
    s.name = name;
    s.source = source->address();
    s.listen = source->address() == "source" ? name : "127.0.0.1:0";
    s.bytes = bytes;
    s.silence = 2s;
    if (change) change(s);
    receiver_handlers h;
    h.on_joined = std::move(joined);
    h.on_arrived = [&r = *r](const arrived_weights& w) {
      r.on_arrived(w);
      if (r.adopts) r.it->adopted(w.version);
    };
    h.on_notice = [&r = *r](const std::string& n) { r.notices.push_back(n); };
    auto made = broadcast_receiver::make(makers(name), s, std::move(h));
    REQUIRE(made);
    r->it = std::move(*made);
    receivers.push_back(std::move(r));
    return *receivers.back();
  }

  void progress() {
    source->progress();
    for (auto& r : receivers)
      if (r->it && !r->stopped) r->it->progress();
  }
  template <class Condition>
  bool until(Condition condition) {
    for (const auto end = std::chrono::steady_clock::now() + 20s; std::chrono::steady_clock::now() < end;) {
      if (condition()) return true;
      progress();
    }
    return condition();
  }
  bool all_have(weight_version version) {
    return until([&] {
      for (const auto& r : receivers)
        if (r->it && !r->stopped && (r->arrived.empty() || r->arrived.back() < version)) return false;
      return true;
    });
  }
};

inline std::function<transport_maker(const std::string&)> over_inproc() {
  return [fabric = make_inproc_fabric()](const std::string&) { return inproc_maker(fabric); };
}

}  // namespace weir::testing

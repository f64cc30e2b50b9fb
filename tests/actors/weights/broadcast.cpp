// Broadcasts: every receiver gets whole versions, whatever fails on the way.
#include "broadcast_support.hpp"

using namespace weir;
using namespace weir::testing;

namespace {

constexpr std::size_t size = 700'000;

broadcast_settings shaped(std::optional<broadcast_shape> shape) {
  broadcast_settings s;
  s.shape = shape;
  s.chunk = 8 << 10;
  s.share = false;
  return s;
}
void fetching(receiver_settings& s) { s.map = false; }

}  // namespace

TEST_CASE("versions reach every receiver, by each plan") {
  for (std::optional<broadcast_shape> shape :
       {std::optional<broadcast_shape>{}, std::optional(broadcast_shape::direct), std::optional(broadcast_shape::chain),
        std::optional(broadcast_shape::tree)}) {
    spreading s(size, over_inproc(), shaped(shape));
    for (const char* name : {"a", "b", "c", "d", "e"}) s.join(name, fetching);
    REQUIRE(s.until([&] { return s.source->receivers() == 5; }));
    for (weight_version v = 0; v < 4; ++v) {
      s.publish(v);
      REQUIRE(s.all_have(v));
    }
    REQUIRE(s.until([&] { return s.adopted == std::vector<weight_version>{0, 1, 2, 3} && s.reports.size() == 4; }));
    CHECK(s.released == std::vector<weight_version>{0, 1, 2});
    CHECK(s.reports.back().receivers == 5);
    CHECK(s.reports.back().wire_bytes == 5 * size);
    if (shape) CHECK(s.reports.back().shape == *shape);
    for (const auto& r : s.receivers) CHECK(r->notices.empty());
  }
}

TEST_CASE("over TCP as well") {
  auto settings = shaped(broadcast_shape::chain);
  settings.listen = "localhost:0";
  settings.delta = delta_use::on;
  spreading s(
      size, [](const std::string&) { return tcp_maker(); }, settings);
  for (const char* name : {"a", "b", "c"}) s.join(name, fetching);
  REQUIRE(s.until([&] { return s.source->receivers() == 3; }));
  for (weight_version v = 0; v < 3; ++v) {
    s.publish(v);
    REQUIRE(s.all_have(v));
  }
  for (const auto& r : s.receivers) CHECK(r->newest.delta);
}

TEST_CASE("a delta is what travels where the base is there, and a chain of them where it is older") {
  auto settings = shaped(broadcast_shape::chain);
  settings.delta = delta_use::on;
  spreading s(size, over_inproc(), settings);
  auto& quick = s.join("quick", fetching);
  REQUIRE(s.until([&] { return s.source->receivers() == 1; }));
  s.publish(0);
  REQUIRE(s.all_have(0));
  CHECK_FALSE(quick.newest.delta);
  s.publish(1);
  REQUIRE(s.all_have(1));
  CHECK(quick.newest.delta);
  CHECK(quick.newest.wire_bytes < size / 20);
  REQUIRE(s.until([&] { return s.reports.size() == 2; }));
  CHECK(s.reports.back().delta_bytes == quick.newest.wire_bytes);

  auto& late = s.join("late", fetching);
  REQUIRE(s.all_have(1));
  CHECK_FALSE(late.newest.delta);

  // Three versions while neither looks: the chain from 1 is 2, 3, 4.
  for (weight_version v = 2; v <= 4; ++v) {
    s.publish(v);
    for (int i = 0; i < 50; ++i) s.source->progress();
  }
  REQUIRE(s.all_have(4));
  for (auto& r : s.receivers) {
    CHECK(r->newest.delta);
    CHECK(r->newest.wire_bytes < size / 10);
    CHECK(r->notices.empty());
  }
}

TEST_CASE("several threads code and apply a delta as one does") {
  const std::size_t bytes = 8'000'000;
  std::vector<std::uint64_t> sizes;
  for (std::size_t threads : {1, 3}) {
    auto settings = shaped(broadcast_shape::direct);
    settings.delta = delta_use::on;
    settings.delta_threads = threads;
    spreading s(bytes, over_inproc(), settings);
    auto& r = s.join("r", [&](receiver_settings& x) {
      fetching(x);
      x.delta_threads = threads;
    });
    for (weight_version v = 0; v < 3; ++v) {
      s.publish(v);
      REQUIRE(s.all_have(v));
    }
    CHECK(r.newest.delta);
    CHECK(r.notices.empty());
    sizes.push_back(r.newest.wire_bytes);
  }
  CHECK(sizes[0] == sizes[1]);
}

TEST_CASE("who joins late gets the newest version alone") {
  spreading s(size, over_inproc(), shaped(broadcast_shape::chain));
  s.publish(3);
  s.publish(4);
  CHECK(s.released == std::vector<weight_version>{3});
  auto& late = s.join("late", fetching);
  REQUIRE(s.all_have(4));
  CHECK(late.arrived == std::vector<weight_version>{4});
}

TEST_CASE("a slow receiver skips versions, mixes none, and holds none back") {
  spreading s(size, over_inproc(), shaped(broadcast_shape::direct));
  auto& slow = s.join("slow", [](receiver_settings& r) {
    r.map = false;
    r.window = 16 << 10;
  });
  REQUIRE(s.until([&] { return s.source->receivers() == 1; }));
  s.publish(0);
  s.source->progress();
  for (int i = 0; i < 6; ++i) s.progress();  // under way
  REQUIRE(slow.arrived.empty());
  for (weight_version v = 1; v < 9; ++v) s.publish(v);
  REQUIRE(s.all_have(8));
  CHECK(slow.arrived == std::vector<weight_version>{0, 8});
  CHECK(s.in_use.size() == 1);
}

TEST_CASE("a parent that dies costs its children nothing that they have") {
  for (auto shape : {broadcast_shape::chain, broadcast_shape::tree}) {
    spreading s(size, over_inproc(), shaped(shape));
    for (const char* name : {"a", "b", "c", "d", "e", "f"})
      s.join(name, [](receiver_settings& r) {
        r.map = false;
        r.window = 16 << 10;
      });
    REQUIRE(s.until([&] { return s.source->receivers() == 6; }));
    s.publish(1);
    for (int i = 0; i < 25; ++i) s.progress();
    for (const auto& r : s.receivers) REQUIRE(r->arrived.empty());
    s.receivers[1]->it.reset();  // in mid-transfer
    REQUIRE(s.all_have(1));
    // The child of the dead went on from the chunk that it had, with the parent's parent.
    const auto& child = *s.receivers[shape == broadcast_shape::chain ? 2 : 3];
    REQUIRE_FALSE(child.notices.empty());
    CHECK(child.notices.front().find("parent 1 of") != std::string::npos);
    CHECK(child.newest.wire_bytes < size + (64 << 10));
    REQUIRE(s.until([&] { return s.source->receivers() == 5; }));
    s.publish(2);
    REQUIRE(s.all_have(2));
  }
}

TEST_CASE("receivers on the source's machine read its memory in place, and it is not written while they do") {
  broadcast_settings settings;
  settings.chunk = 8 << 10;
  spreading s(size, over_inproc(), settings);
  auto& a = s.join("a");
  auto& b = s.join("b");
  s.publish(1);
  REQUIRE(s.all_have(1));
  CHECK(a.newest.mapped);
  CHECK(a.newest.wire_bytes == 0);
  CHECK(a.newest.bytes.data() == b.newest.bytes.data());
  const auto held = a.newest;
  s.publish(2);
  REQUIRE(s.all_have(2));
  for (int i = 0; i < 100; ++i) s.progress();
  CHECK(s.released.empty());  // `held`
  const_cast<arrived_weights&>(held).owner.reset();
  REQUIRE(s.until([&] { return s.released == std::vector<weight_version>{1}; }));
  CHECK(s.spoiled.empty());

  b.it.reset();  // it had version 2 mapped: who knows whether it still reads it
  s.publish(3);
  REQUIRE(s.until([&] { return s.released.size() == 2; }));
  CHECK(s.spoiled == std::vector<weight_version>{2});
}

TEST_CASE("who wants a copy of what is on its machine copies it, and can give it on") {
  broadcast_settings settings;
  settings.chunk = 8 << 10;
  spreading s(size, over_inproc(), settings);
  auto& a = s.join("a", fetching);
  s.publish(1);
  REQUIRE(s.all_have(1));
  CHECK_FALSE(a.newest.mapped);
  CHECK(a.newest.bytes.data() != s.in_use.at(1)->bytes().data());
  s.publish(2);
  REQUIRE(s.all_have(2));
  CHECK(a.notices.empty());
}

TEST_CASE("a receiver of another model is told so, and the others go on") {
  spreading s(size, over_inproc(), shaped({}));
  auto& wrong = s.join("wrong", [](receiver_settings& r) { r.bytes = 10; });
  s.join("right", fetching);
  s.publish(1);
  REQUIRE(s.until([&] { return s.receivers[1]->arrived.size() == 1; }));
  REQUIRE_FALSE(s.notices.empty());
  CHECK(s.notices.front().find("wrong expects 10 bytes of weights, here are 700000") != std::string::npos);
  REQUIRE(s.until([&] { return !wrong.notices.empty(); }));
  CHECK(wrong.arrived.empty());
}

TEST_CASE("a receiver that knows nothing of the model is told, before the first version") {
  auto settings = shaped({});
  settings.description = "what is in it";
  spreading s(size, over_inproc(), settings);
  s.publish(1);
  std::vector<std::string> told;
  auto& r = s.join(
      "r",
      [](receiver_settings& x) {
        fetching(x);
        x.bytes = 0;
      },
      [&](std::uint64_t bytes, const std::string& description) -> result<void> {
        told.push_back(std::to_string(bytes) + " " + description);
        return {};
      });
  REQUIRE(s.all_have(1));
  CHECK(r.arrived == std::vector<weight_version>{1});
  CHECK(told == std::vector<std::string>{"700000 what is in it"});
}

TEST_CASE("a receiver that cannot use what the source has says why, and leaves for good") {
  spreading s(size, over_inproc(), shaped({}));
  auto& r =
      s.join("r", fetching, [](std::uint64_t, const std::string&) { return fail(errc::invalid_data, "no tensor x"); });
  s.publish(1);
  REQUIRE(s.until([&] { return !r.notices.empty() && s.source->receivers() == 0; }));
  CHECK(r.notices == std::vector<std::string>{"the source of weights at source is let go of for good: no tensor x"});
  const auto end = std::chrono::steady_clock::now() + 700ms;  // longer than it takes to look for a source again
  CHECK_FALSE([&] {
    while (std::chrono::steady_clock::now() < end)
      if (s.progress(); s.source->receivers() > 0) return true;
    return false;
  }());
  CHECK(r.arrived.empty());
}

TEST_CASE("a receiver that stopped holds the others up for a while, and is let in again when it goes on") {
  auto settings = shaped(broadcast_shape::direct);
  settings.silence = 2s;
  spreading s(size, over_inproc(), settings);
  s.join("quick", fetching);
  auto& stopped = s.join("stopped", fetching);
  REQUIRE(s.until([&] { return s.source->receivers() == 2; }));
  s.publish(1);
  REQUIRE(s.until([&] { return s.adopted == std::vector<weight_version>{1}; }));
  stopped.stopped = true;
  s.publish(2);
  REQUIRE(s.all_have(2));
  CHECK(s.adopted == std::vector<weight_version>{1});
  REQUIRE(s.until([&] { return s.adopted == std::vector<weight_version>{1, 2}; }));
  CHECK(s.source->receivers() == 1);
  CHECK(s.notices == std::vector<std::string>{"receiver stopped is let go of: it has said nothing for 2000 ms"});
  stopped.stopped = false;
  REQUIRE(s.until([&] { return s.source->receivers() == 2; }));
  s.publish(3);
  REQUIRE(s.all_have(3));
  CHECK(stopped.arrived.back() == 3);
}

TEST_CASE("receivers without news are not let go of") {
  auto settings = shaped(broadcast_shape::direct);
  settings.silence = 2s;
  spreading s(size, over_inproc(), settings);
  s.join("a", fetching);
  s.publish(1);
  REQUIRE(s.all_have(1));
  const auto end = std::chrono::steady_clock::now() + 3s;
  REQUIRE(s.until([&] { return std::chrono::steady_clock::now() > end; }));
  CHECK(s.source->receivers() == 1);
  CHECK(s.notices.empty());
}

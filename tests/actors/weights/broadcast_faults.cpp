// Broadcasts among peers and memory that are not to be trusted.
#include "broadcast_support.hpp"

using namespace weir;
using namespace weir::testing;

namespace {

constexpr std::size_t size = 700'000;

broadcast_settings direct(delta_use delta = delta_use::off) {
  broadcast_settings s;
  s.shape = broadcast_shape::direct;
  s.chunk = 8 << 10;
  s.share = false;
  s.delta = delta;
  return s;
}
void narrow(receiver_settings& r) {
  r.map = false;
  r.window = 16 << 10;
}

/// A peer that says what it likes.
struct stranger {
  std::unique_ptr<transport> data;
  std::shared_ptr<connection> to;
  bool closed = false;
  stranger(spreading& s, const std::string& address) {
    transport_handlers h;
    h.on_closed = [this](connection&, const error&) { closed = true; };
    data = s.makers("stranger")(std::move(h));
    auto made = data->connect(address, std::chrono::steady_clock::now() + 5s);
    REQUIRE(made);
    to = *made;
  }
  void say(std::initializer_list<int> bytes) {
    std::vector<std::byte> frame;
    for (int b : bytes) frame.push_back(static_cast<std::byte>(b));
    REQUIRE(to->send(frame));
  }
};

}  // namespace

TEST_CASE("content that is not what the source said of it is never taken for the version") {
  spreading s(size, over_inproc(), direct());
  auto& r = s.join("r", narrow);
  REQUIRE(s.until([&] { return s.source->receivers() == 1; }));
  s.publish(1);
  // Checksums of the whole are known after a few rounds, when but the first chunks are there.
  for (int i = 0; i < 10; ++i) s.progress();
  REQUIRE(r.arrived.empty());
  auto& victim = s.in_use.at(1)->bytes()[size - 5];
  victim ^= std::byte{1};
  REQUIRE(s.until([&] { return !s.notices.empty(); }));
  CHECK(s.notices.front().find("did not get weight version 1") != std::string::npos);
  CHECK(std::any_of(r.notices.begin(), r.notices.end(), [](const std::string& n) {
    return n.find("chunk 85 with a wrong checksum") != std::string::npos;
  }));
  CHECK(r.arrived.empty());
  victim ^= std::byte{1};
  REQUIRE(s.all_have(1));
}

TEST_CASE("a delta that does not fit what is here is given up for the whole") {
  spreading s(size, over_inproc(), direct(delta_use::on));
  auto& r = s.join("r", narrow);
  REQUIRE(s.until([&] { return s.source->receivers() == 1; }));
  s.publish(1);
  REQUIRE(s.all_have(1));
  // Somebody wrote to the memory that is read here: the delta's base is not what it was made from.
  const_cast<std::byte&>(r.newest.bytes[300'001]) ^= std::byte{1};
  r.newest.owner.reset();
  s.publish(2);
  REQUIRE(s.all_have(2));
  CHECK_FALSE(r.newest.delta);
  REQUIRE_FALSE(r.notices.empty());
  CHECK(r.notices.front().find("taken whole") != std::string::npos);
}

TEST_CASE("strangers that break the protocol are let go of, and receivers go on") {
  spreading s(size, over_inproc(), direct());
  auto& r = s.join("r", narrow);
  REQUIRE(s.until([&] { return s.source->receivers() == 1; }));
  const std::initializer_list<int> frames[] = {
      {},                                                                               // empty
      {99, 1, 2, 3},                                                                    // no such kind
      {1, 1, 0},                                                                        // a greeting that is cut short
      {1, 77, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},  // of another version
      {9, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},  // a welcome by one that is not the source
      {8, 0, 0, 0, 0, 0, 0, 0, 0},              // a status of one that has not joined
      {6,   1,   0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255,
       255, 255, 0, 0, 0, 0, 0, 0, 0, 0,   255, 255, 255, 255},  // a list longer than its frame
  };
  for (const auto& frame : frames) {
    stranger to_source(s, s.source->address());
    to_source.say(frame);
    CHECK(s.until([&] { return to_source.data->progress(), to_source.closed; }));
    stranger to_receiver(s, "r");
    to_receiver.say(frame);
    for (int i = 0; i < 20; ++i) s.progress();
  }
  // Asking for what is not there is answered, not punished; far too much of it as well.
  stranger asks(s, s.source->address());
  for (int i = 0; i < 200; ++i)
    asks.say({3, i & 255, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  s.publish(1);
  REQUIRE(s.all_have(1));
  CHECK(r.arrived == std::vector<weight_version>{1});
  CHECK(s.source->receivers() == 1);
}

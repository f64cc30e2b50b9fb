#include "weir/transport/inproc.hpp"

#include <thread>

#include "conformance.hpp"

using namespace weir::testing;

namespace {

implementation inproc() { return {weir::inproc_maker(weir::make_inproc_fabric())}; }

}  // namespace

TEST_CASE("inproc conforms") { conformance(inproc()); }

TEST_CASE("fabrics don't see one another") {
  auto a = inproc().make({}), b = inproc().make({});
  REQUIRE(a->listen("here"));
  CHECK(b->connect("here", std::chrono::steady_clock::now()).error().code == weir::errc::not_found);
}

TEST_CASE("a region taken back while a peer reads it gives whole data or an error") {
  pair_of_transports p(inproc());
  for (int round = 0; round < 50; ++round) {
    auto memory = p.server->allocate(1 << 16);
    std::fill((*memory)->bytes().begin(), (*memory)->bytes().end(), std::byte{7});
    const auto descriptor = (*memory)->descriptor();
    std::thread taker([&] { memory->reset(); });
    std::vector<std::byte> got(1 << 16);
    const auto outcome = p.get(descriptor, 0, got);
    taker.join();
    if (outcome)
      CHECK(std::all_of(got.begin(), got.end(), [](std::byte b) { return b == std::byte{7}; }));
    else
      CHECK(outcome.error().code == weir::errc::unavailable);
  }
}

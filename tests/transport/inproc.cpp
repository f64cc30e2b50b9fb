#include "weir/transport/inproc.hpp"

#include <filesystem>
#include <thread>

#include "conformance.hpp"

using namespace weir::testing;

namespace {

transport_maker maker() {
  return [fabric = weir::make_inproc_fabric()](weir::transport_handlers handlers) {
    return weir::make_inproc_transport(fabric, std::move(handlers));
  };
}

std::size_t open_descriptors() {
  namespace fs = std::filesystem;
  return static_cast<std::size_t>(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("inproc transfers any size") { transfers(maker()); }
TEST_CASE("inproc refuses what is wrong") { refusals(maker()); }
TEST_CASE("inproc keeps frames whole and in order") { frames(maker()); }
TEST_CASE("inproc completes what a close cuts off") { closing(maker()); }
TEST_CASE("inproc maps, and a view outlives its region") { mapping(maker()); }
TEST_CASE("inproc leaks no descriptor over thousands of connections") { many_connections(maker(), open_descriptors); }

TEST_CASE("fabrics don't see one another") {
  auto one = maker(), other = maker();
  auto a = one({}), b = other({});
  REQUIRE(a->listen("here"));
  CHECK(b->connect("here", std::chrono::steady_clock::now()).error().code == weir::errc::not_found);
}

TEST_CASE("a region taken back while a peer reads it gives whole data or an error") {
  pair_of_transports p(maker());
  for (int round = 0; round < 50; ++round) {
    auto memory = p.server->allocate(1 << 16);
    std::fill((*memory)->bytes().begin(), (*memory)->bytes().end(), std::byte{7});
    const auto descriptor = (*memory)->descriptor();
    std::thread taker([&] { memory->reset(); });
    std::vector<std::byte> got(1 << 16);
    const auto outcome = p.get(descriptor, 0, got);
    taker.join();
    if (outcome) CHECK(std::all_of(got.begin(), got.end(), [](std::byte b) { return b == std::byte{7}; }));
    else CHECK(outcome.error().code == weir::errc::unavailable);
  }
}

#include "weir/transport/inproc.hpp"

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

TEST_CASE("a region taken back while a peer reads it gives whole data or an error") { taking_back(inproc(), 1 << 16); }

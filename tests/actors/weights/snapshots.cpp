// Snapshots: regions in turn, on a shelf from where they are read in place.
#include "weir/weights/snapshots.hpp"

#include <cstring>

#include "catch.hpp"
#include "weir/transport/inproc.hpp"

TEST_CASE("a published version is read in place, and its region is reused only once it is released") {
  auto shelf = std::make_shared<weir::weight_shelf>();
  auto writer = std::move(*weir::snapshot_writer::make(shelf, 1000, 2));
  REQUIRE(writer.next().size() == 1000);
  std::memset(writer.next().data(), 7, 1000);
  CHECK(writer.publish(5).version == 5);
  auto view = shelf->find(5);
  REQUIRE(view);
  CHECK(view->bytes.size() == 1000);
  CHECK(view->bytes[999] == std::byte{7});

  std::memset(writer.next().data(), 8, 1000);
  writer.publish(6);
  CHECK(shelf->find(6)->bytes.data() != view->bytes.data());
  CHECK(writer.next().empty());
  writer.released({4});  // not ours
  CHECK(writer.next().empty());
  CHECK_THROWS_AS(writer.publish(7), std::logic_error);
  CHECK(view->bytes[0] == std::byte{7});
  writer.released({5});
  CHECK(writer.next().data() == view->bytes.data());
  CHECK(shelf->find(6)->bytes[0] == std::byte{8});
  auto gone = shelf->find(5);
  REQUIRE_FALSE(gone);
  CHECK(gone.error().code == weir::errc::unavailable);
  CHECK(gone.error().message.find("version 5") != std::string::npos);
}

TEST_CASE("memory that is spoiled is not written again") {
  auto shelf = std::make_shared<weir::weight_shelf>();
  auto data = weir::make_inproc_transport(weir::make_inproc_fabric());
  bool memory_left = true;
  auto allocate = [&]() -> weir::result<std::shared_ptr<weir::region>> {
    return memory_left ? data->allocate(64) : weir::fail(weir::errc::unavailable, "no memory");
  };
  auto writer = std::move(*weir::snapshot_writer::make(shelf, allocate, 2));
  const auto* first = writer.next().data();
  writer.publish(1);
  const auto held = *shelf->find(1);
  const auto* second = writer.next().data();
  writer.released({1, true});
  CHECK(writer.next().size() == 64);
  CHECK(writer.next().data() != first);
  // Where there is none to replace it, the others go on.
  writer.publish(2);
  memory_left = false;
  writer.released({2, true});
  CHECK(writer.next().data() == second);
  CHECK_FALSE(weir::snapshot_writer::make(shelf, allocate, 1));
}

// Snapshots: regions in turn, checked when they are read.
#include "weir/weights/snapshots.hpp"

#include <cstring>

#include "catch.hpp"
#include "weir/transport/inproc.hpp"

namespace {

struct both_sides {
  std::shared_ptr<weir::inproc_fabric> fabric = weir::make_inproc_fabric();
  weir::snapshot_writer writer;
  weir::snapshot_reader reader;
  explicit both_sides(std::size_t bytes, std::size_t count)
      : writer(std::move(*weir::snapshot_writer::make(weir::inproc_maker(fabric), "weights", bytes, count))),
        reader(std::move(*weir::snapshot_reader::connect(weir::make_inproc_transport(fabric), "weights", bytes))) {}
};

weir::adopt_weights message(const weir::publish_weights& p) { return {p.version, p.region, p.checksum}; }

}  // namespace

TEST_CASE("a published version is read in place, and its region is reused only once it is released") {
  both_sides s(1000, 2);
  REQUIRE(s.writer.next().size() == 1000);
  std::memset(s.writer.next().data(), 7, 1000);
  const auto first = s.writer.publish(5);
  auto view = s.reader.read(message(first));
  REQUIRE(view);
  CHECK(view->bytes.size() == 1000);
  CHECK(view->bytes[999] == std::byte{7});

  s.writer.progress();  // accepts the reader: its connection must last
  std::memset(s.writer.next().data(), 8, 1000);
  const auto second = s.writer.publish(6);
  CHECK(second.region != first.region);
  CHECK(s.writer.next().empty());
  s.writer.released(4);  // not ours
  CHECK(s.writer.next().empty());
  CHECK_THROWS_AS(s.writer.publish(7), std::logic_error);
  CHECK(view->bytes[0] == std::byte{7});
  s.writer.released(5);
  CHECK(s.writer.next().data() == view->bytes.data());
  CHECK(s.reader.read(message(second))->bytes[0] == std::byte{8});
}

TEST_CASE("the checksum is XXH3's, and content that changed after the publication is refused") {
  CHECK(weir::snapshot_checksum({}) == 0x2d06800538d394c2ULL);  // xxHash's own test vector for an empty input
  both_sides s(64, 1);
  const auto p = s.writer.publish(1);
  auto view = s.reader.read(message(p));
  REQUIRE(view);
  const_cast<std::byte&>(view->bytes[63]) = std::byte{1};
  auto changed = s.reader.read(message(p));
  REQUIRE_FALSE(changed);
  CHECK(changed.error().code == weir::errc::invalid_data);
  CHECK(changed.error().message.find("version 1") != std::string::npos);
}

TEST_CASE("what cannot be read is a clear error") {
  both_sides s(64, 1);
  auto gone = s.reader.read({3, "inproc:0123456789abcdef", 0});
  REQUIRE_FALSE(gone);
  CHECK(gone.error().code == weir::errc::unavailable);
  CHECK(gone.error().message.find("version 3") != std::string::npos);

  auto larger = weir::snapshot_reader::connect(weir::make_inproc_transport(s.fabric), "weights", 65);
  REQUIRE(larger);
  CHECK(larger->read(message(s.writer.publish(1))).error().code == weir::errc::invalid_data);
  CHECK(weir::snapshot_reader::connect(weir::make_inproc_transport(s.fabric), "elsewhere", 64).error().code == weir::errc::not_found);
  CHECK_FALSE(weir::snapshot_writer::make(weir::inproc_maker(s.fabric), "weights", 64, 1));
}

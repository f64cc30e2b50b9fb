// How much memory there is: the machine's, and what control groups leave of it.
#include "weir/runtime/memory.hpp"

#include "catch.hpp"
#include "temporary.hpp"

namespace fs = std::filesystem;

namespace {

void place(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  put(path, text);
}

/// A machine of 1,000 kB and 200 kB of swap, 700 kB available.
struct machine : temporary_folder {
  explicit machine(const std::string& groups) {
    place(*this / "proc/meminfo",
          "MemTotal:        1000 kB\nMemFree:  1 kB\nMemAvailable:     700 kB\nSwapTotal: 200 kB\n");
    place(*this / "proc/self/cgroup", groups);
  }
  weir::memory_limits limits() const {
    auto read = weir::read_memory_limits(path());
    REQUIRE(read);
    return *read;
  }
};

}  // namespace

TEST_CASE("without control groups the limits are the machine's") {
  machine m("");
  CHECK(m.limits().most == 1200 * 1024);
  CHECK(m.limits().available == 700 * 1024);
  CHECK(m.limits().set_by == "this machine");
  fs::remove(m / "proc/self/cgroup");
  CHECK(m.limits().most == 1200 * 1024);
  fs::remove(m / "proc/meminfo");
  CHECK_FALSE(weir::read_memory_limits(m.path()));
  const auto here = weir::read_memory_limits();
  REQUIRE(here);
  CHECK(here->most > 0);
  CHECK(here->available <= here->most);
}

TEST_CASE("a control group of version 2 lowers them, whichever is above it") {
  machine m("0::/a/b\n");
  const auto groups = m / "sys/fs/cgroup";
  place(groups / "a/b/memory.max", "max\n");
  place(groups / "a/memory.max", "600000\n");
  place(groups / "a/memory.current", "450000\n");
  place(groups / "a/memory.stat", "anon 1\nactive_inactive_file 7\ninactive_file 50000\n");
  CHECK(m.limits().most == 600000);
  CHECK(m.limits().available == 200000);
  CHECK(m.limits().set_by == (groups / "a/memory.max").string());
  place(groups / "a/b/memory.max", "500000\n");
  CHECK(m.limits().most == 500000);
  CHECK(m.limits().available == 200000);
  place(groups / "a/memory.current", "900000\n");
  CHECK(m.limits().available == 0);
}

TEST_CASE("a control group of version 1, and one that a container sees as the root, lower them too") {
  machine m("5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/1234\n0::/\n");
  const auto groups = m / "sys/fs/cgroup/memory";
  place(groups / "memory.limit_in_bytes", "300000\n");
  place(groups / "memory.usage_in_bytes", "100000\n");
  place(groups / "memory.stat", "inactive_file 1\ntotal_inactive_file 20000\n");
  CHECK(m.limits().most == 300000);
  CHECK(m.limits().available == 220000);
  place(groups / "memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(m.limits().most == 1200 * 1024);
  CHECK(m.limits().available == 700 * 1024);
  CHECK(m.limits().set_by == "this machine");
}

TEST_CASE("bytes are written in powers of 1,000") {
  CHECK(weir::format_bytes(0) == "0 B");
  CHECK(weir::format_bytes(999) == "999 B");
  CHECK(weir::format_bytes(1000) == "1.0 kB");
  CHECK(weir::format_bytes(14155776) == "14.2 MB");
  CHECK(weir::format_bytes(99.96e6) == "100 MB");
  CHECK(weir::format_bytes(123e6) == "123 MB");
  CHECK(weir::format_bytes(999.6e6) == "1.0 GB");
  CHECK(weir::format_bytes(1.879e12) == "1.9 TB");
  CHECK(weir::format_bytes(5e21) == "5000 EB");
}

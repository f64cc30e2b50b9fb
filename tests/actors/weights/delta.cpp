// Lossless deltas: every bit pattern comes back, close to the entropy, and nothing damaged is taken for whole.
#include "weir/weights/delta.hpp"

#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "catch.hpp"
#include "weir/runtime/random.hpp"

namespace {

using bytes = std::vector<std::byte>;

bytes random_bytes(weir::random_stream& random, std::size_t count) {
  bytes b(count);
  for (auto& x : b) x = static_cast<std::byte>(random.below(256));
  return b;
}

bytes encoded(const bytes& base, const bytes& next, const std::vector<weir::delta_range>& ranges) {
  weir::delta_encoder encoder;
  bytes records;
  for (const auto& r : ranges) encoder.encode(base, next, r, records);
  return records;
}

bytes encoded(const bytes& base, const bytes& next, std::uint8_t word, std::uint32_t chunk = 1U << 20) {
  std::vector<weir::delta_range> ranges;
  weir::divide_for_delta(0, base.size(), word, chunk, ranges);
  return encoded(base, next, ranges);
}

/// Applies all records; false if one is refused.
bool applied(std::span<const std::byte> records, bytes& version) {
  while (!records.empty()) {
    const auto length = weir::apply_delta(records, version);
    if (!length) {
      CHECK(length.error().code == weir::errc::invalid_data);
      CHECK_FALSE(length.error().message.empty());
      return false;
    }
    records = records.subspan(*length);
  }
  return true;
}

void comes_back(const bytes& base, const bytes& next, std::uint8_t word, std::uint32_t chunk = 1U << 20) {
  const auto records = encoded(base, next, word, chunk);
  auto in_place = base;
  REQUIRE(applied(records, in_place));
  CHECK((in_place == next));
  bytes into(base.size(), std::byte{0x5a});
  for (std::span<const std::byte> left = records; !left.empty();) {
    const auto length = weir::apply_delta(left, base, into);
    REQUIRE(length);
    left = left.subspan(*length);
  }
  CHECK((into == next));
}

/// Adds `by` to the little-endian word.
void add(bytes& b, std::size_t index, std::uint8_t word, std::int64_t by) {
  std::uint64_t value = 0;
  std::memcpy(&value, b.data() + index * word, word);
  value += static_cast<std::uint64_t>(by);
  std::memcpy(b.data() + index * word, &value, word);
}

/// Steps of one unit in the last place in a fraction `p` of 2-byte words.
bytes stepped(weir::random_stream& random, const bytes& base, double p, std::size_t& changed) {
  auto next = base;
  for (std::size_t i = 0; i < base.size() / 2; ++i)
    if (random.uniform() < p) add(next, i, 2, random.below(2) == 0 ? 1 : -1), ++changed;
  return next;
}

}  // namespace

TEST_CASE("every word size and kind of change comes back bit for bit") {
  weir::random_stream random(1);
  for (std::uint8_t word : {1, 2, 4, 8})
    for (std::size_t words : {0, 1, 2, 7, 8, 9, 31, 64, 65, 1000, 40'001}) {
      INFO(int{word} << " bytes, " << words << " words");
      const auto base = random_bytes(random, words * word);
      comes_back(base, base, word);
      comes_back(base, random_bytes(random, words * word), word);
      comes_back(base, bytes(words * word), word);
      for (double p : {0.001, 0.01, 0.3, 1.0})
        for (std::int64_t largest : {1, 3, 1000}) {
          auto next = base;
          for (std::size_t i = 0; i < words; ++i)
            if (random.uniform() < p)
              add(next, i, word, static_cast<std::int64_t>(random.below(2 * largest + 1)) - largest);
          comes_back(base, next, word, 4096);
        }
      if (words == 0) continue;
      for (std::size_t at : {std::size_t{0}, words / 2, words - 1})
        for (int bit = 0; bit < word * 8; ++bit) {
          auto next = base;
          add(next, at, word, static_cast<std::int64_t>(1ULL << bit));
          comes_back(base, next, word);
        }
    }
}

TEST_CASE("bit patterns that are no ordinary numbers come back: NaN payloads, infinities, both zeros") {
  const std::vector<std::uint16_t> odd{0x0000, 0x8000, 0x7f80, 0xff80, 0x7f81, 0x7fc0, 0xffff, 0x7fff, 0x0001, 0x8001};
  bytes base, next;
  for (auto from : odd)
    for (auto to : odd) {
      const auto* f = reinterpret_cast<const std::byte*>(&from);
      const auto* t = reinterpret_cast<const std::byte*>(&to);
      base.insert(base.end(), f, f + 2);
      next.insert(next.end(), t, t + 2);
    }
  comes_back(base, next, 2);
}

TEST_CASE("a sparse change is coded within a twentieth of its entropy") {
  weir::random_stream random(2);
  const auto base = random_bytes(random, 4'000'000);
  for (double p : {0.0001, 0.005, 0.01, 0.05, 0.5}) {
    std::size_t changed = 0;
    const auto next = stepped(random, base, p, changed);
    const double f = static_cast<double>(changed) / 2e6,
                 bound = 2e6 * (-f * std::log2(f) - (1 - f) * std::log2(1 - f) + f) / 8;
    const auto size = encoded(base, next, 2, 2U << 20).size();
    INFO(p);
    CHECK(static_cast<double>(size) < 1.05 * bound + 2 * 100);  // two chunks' heads and tables
    CHECK(static_cast<double>(size) > bound);
  }
}

TEST_CASE("what does not compress takes no more than itself and a head; what did not change takes a head") {
  weir::random_stream random(3);
  const auto base = random_bytes(random, 80'000);
  for (std::uint8_t word : {1, 2, 4, 8}) {
    CHECK(encoded(base, random_bytes(random, base.size()), word).size() <= base.size() + sizeof(weir::delta_head));
    CHECK(encoded(base, base, word).size() == sizeof(weir::delta_head));
  }
}

TEST_CASE("records are independent: any order, several threads, tensors of several word sizes") {
  weir::random_stream random(4);
  const auto base = random_bytes(random, 100'000);
  auto next = base;
  std::vector<weir::delta_range> ranges;
  weir::divide_for_delta(0, 50'000, 2, 4096, ranges);
  weir::divide_for_delta(50'000, 1, 1, 4096, ranges);
  weir::divide_for_delta(50'004, 39'996, 4, 4096, ranges);  // the bytes between tensors belong to none
  weir::divide_for_delta(90'000, 10'000, 8, 4096, ranges);
  for (const auto& r : ranges)
    for (std::size_t i = 0; i < r.bytes / r.word; ++i)
      if (random.below(50) == 0 || r.word == 1) {
        std::span<std::byte> there(next.data() + r.offset + i * r.word, r.word);
        there[0] ^= std::byte{1};
      }
  std::vector<bytes> records;
  for (const auto& r : ranges) records.push_back(encoded(base, next, std::vector{r}));
  auto version = base;
  std::vector<std::thread> threads;
  std::atomic<int> refused{0};
  for (std::size_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (auto i = records.size(); i-- > 0;)
        if (i % 3 == t && !weir::apply_delta(records[i], version)) ++refused;
    });
  for (auto& t : threads) t.join();
  CHECK(refused == 0);
  CHECK((version == next));
}

TEST_CASE("a chain of deltas leads to the last version") {
  weir::random_stream random(5);
  auto at = random_bytes(random, 20'000), version = at;
  std::size_t changed = 0;
  for (int step = 0; step < 5; ++step) {
    const auto next = stepped(random, at, 0.02, changed);
    REQUIRE(applied(encoded(at, next, 2), version));
    at = next;
  }
  CHECK((version == at));
}

TEST_CASE("another base is noticed") {
  weir::random_stream random(6);
  std::size_t changed = 0;
  const auto base = random_bytes(random, 20'000), next = stepped(random, base, 0.01, changed);
  auto other = base;
  other[12'345] ^= std::byte{4};
  CHECK_FALSE(applied(encoded(base, next, 2), other));
  auto twice = base;
  const auto records = encoded(base, next, 2);
  CHECK(applied(records, twice));
  CHECK_FALSE(applied(records, twice));
  auto unchanged = other;
  CHECK_FALSE(applied(encoded(base, base, 2), unchanged));
}

TEST_CASE("a damaged or truncated record is refused, and nothing outside its range is written") {
  weir::random_stream random(7);
  constexpr std::size_t before = 640, range = 4000;
  for (double p : {0.01, 0.5, 2.0}) {
    const auto base = random_bytes(random, before + range + before);
    std::size_t changed = 0;
    auto next = base;
    const bytes inner(base.begin() + before, base.begin() + before + range);
    const auto moved = p > 1 ? random_bytes(random, range) : stepped(random, inner, p, changed);
    std::copy(moved.begin(), moved.end(), next.begin() + before);
    const auto record = encoded(base, next, std::vector<weir::delta_range>{{before, range, 2}});
    auto tried = [&](const bytes& damaged, std::size_t length) {
      // A copy of its own length, so that a sanitizer sees a read beyond the end.
      const bytes given(damaged.begin(), damaged.begin() + static_cast<std::ptrdiff_t>(length));
      auto version = base;
      const auto result = weir::apply_delta(given, version);
      if (result) {
        CHECK((version == next));
        return;
      }
      CHECK(result.error().code == weir::errc::invalid_data);
      const auto head = weir::read_delta_head(given);
      const auto from = head ? head->offset : before, to = head ? head->offset + head->bytes : before + range;
      for (std::size_t i = 0; i < base.size(); ++i)
        if ((i < from || i >= to) && version[i] != base[i]) FAIL("byte " << i << " was written");
    };
    for (std::size_t length = 0; length < record.size(); ++length) {
      tried(record, length);
      auto version = base;
      CHECK_FALSE(weir::apply_delta(std::span(record).first(length), version));
    }
    for (std::size_t at = 0; at < record.size(); ++at)
      for (int bit = 0; bit < 8; ++bit) {
        auto damaged = record;
        damaged[at] ^= static_cast<std::byte>(1 << bit);
        tried(damaged, damaged.size());
      }
    for (int round = 0; round < 2000; ++round) {
      auto damaged = record;
      for (auto i = random.below(8) + 1; i-- > 0;)
        damaged[sizeof(weir::delta_head) + random.below(record.size() - sizeof(weir::delta_head))] =
            static_cast<std::byte>(random.below(256));
      tried(damaged, damaged.size());
    }
  }
}

TEST_CASE("ranges that do not fit are the caller's fault") {
  weir::delta_encoder encoder;
  bytes a(16), b(16), c(15), out;
  CHECK_THROWS_AS(encoder.encode(a, c, {0, 8, 2}, out), std::invalid_argument);
  CHECK_THROWS_AS(encoder.encode(a, b, {0, 18, 2}, out), std::invalid_argument);
  CHECK_THROWS_AS(encoder.encode(a, b, {17, 0, 2}, out), std::invalid_argument);
  CHECK_THROWS_AS(encoder.encode(a, b, {0, 7, 2}, out), std::invalid_argument);
  CHECK_THROWS_AS(encoder.encode(a, b, {0, 9, 3}, out), std::invalid_argument);
  CHECK(out.empty());
  std::vector<weir::delta_range> ranges;
  CHECK_THROWS_AS(weir::divide_for_delta(0, 7, 2, 64, ranges), std::invalid_argument);
  CHECK_THROWS_AS(weir::divide_for_delta(0, 8, 2, 0, ranges), std::invalid_argument);
  CHECK_THROWS_AS(weir::divide_for_delta(0, 8, 2, 12, ranges), std::invalid_argument);
}

#include "weir/weights/delta.hpp"

#include <xxhash.h>

#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "symbols.hpp"

namespace weir {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

namespace {

using namespace delta;

/// What one pass over memory compares and hashes: little enough to be in the cache for the second.
constexpr std::size_t block_bytes = 32768;

std::uint64_t load(const std::byte* from) noexcept {
  std::uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

/// A difference that is not 0, as a small number: 1, -1, 2, -2, ... are 0, 1, 2, 3, ...
template <class Word>
std::uint64_t folded(Word difference) noexcept {
  using signed_word = std::make_signed_t<Word>;
  const auto d = static_cast<std::int64_t>(static_cast<signed_word>(difference));
  return d > 0 ? (static_cast<std::uint64_t>(d) - 1) << 1 : (static_cast<std::uint64_t>(~d) << 1) | 1U;
}
template <class Word>
Word unfolded(std::uint64_t number) noexcept {
  const auto half = number >> 1;
  return static_cast<Word>((number & 1U) != 0 ? ~half : half + 1);
}

/// Calls `found(index, difference)` for each word that differs, in order. `bytes` is a multiple of the word.
template <class Word, class Found>
void compare(const std::byte* base, const std::byte* next, std::size_t bytes, std::size_t first_index, Found found) {
  constexpr unsigned lane_bits = sizeof(Word) * 8;
  constexpr std::size_t lanes = 8 / sizeof(Word);
  std::size_t at = 0;
  for (; at + 64 <= bytes; at += 64) {
    std::uint64_t different[8], any = 0;
    for (int i = 0; i < 8; ++i) {
      different[i] = load(base + at + i * 8) ^ load(next + at + i * 8);
      any |= different[i];
    }
    if (any == 0) continue;
    for (int i = 0; i < 8; ++i) {
      auto left = different[i];
      if (left == 0) continue;
      const auto was = load(base + at + i * 8), is = load(next + at + i * 8);
      const auto index = first_index + at / sizeof(Word) + static_cast<std::size_t>(i) * lanes;
      while (left != 0) {
        const auto lane = static_cast<unsigned>(std::countr_zero(left)) / lane_bits;
        const auto shift = lane * lane_bits;
        found(index + lane, static_cast<Word>(static_cast<Word>(is >> shift) - static_cast<Word>(was >> shift)));
        left &= ~(static_cast<std::uint64_t>(std::numeric_limits<Word>::max()) << shift);
      }
    }
  }
  for (; at < bytes; at += sizeof(Word)) {
    Word was, is;
    std::memcpy(&was, base + at, sizeof(Word));
    std::memcpy(&is, next + at, sizeof(Word));
    if (was != is) found(first_index + at / sizeof(Word), static_cast<Word>(is - was));
  }
}

/// Puts symbols before one another: what is put last is read first.
class symbol_writer {
 public:
  symbol_writer(const frequencies& f, std::vector<std::uint16_t>& out) : f_(f), out_(out) {
    std::uint32_t sum = 0;
    for (unsigned s = 0; s < symbol_count; ++s) {
      start_[s] = static_cast<std::uint16_t>(sum);
      sum += f[s];
    }
  }
  void put(unsigned symbol) {
    const std::uint32_t f = f_[symbol];
    if (state_ >= std::uint64_t{state_low >> scale_bits << 16} * f) {
      out_.push_back(static_cast<std::uint16_t>(state_));
      state_ >>= 16;
    }
    state_ = ((state_ / f) << scale_bits) + state_ % f + start_[symbol];
  }
  void finish() {
    out_.push_back(static_cast<std::uint16_t>(state_));
    out_.push_back(static_cast<std::uint16_t>(state_ >> 16));
  }

 private:
  const frequencies& f_;
  std::vector<std::uint16_t>& out_;
  std::array<std::uint16_t, symbol_count> start_;
  std::uint32_t state_ = state_low;
};

/// The halves that a symbol_writer's state was filled up with, in the order of reading. Beyond the end it gives zeros.
class half_reader {
 public:
  explicit half_reader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
  std::uint32_t get() noexcept {
    std::uint16_t half = 0;
    if (at_ < bytes_.size()) std::memcpy(&half, bytes_.data() + at_, 2);
    at_ += 2;
    return half;
  }
  bool at_end() const noexcept { return at_ == bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

/// The other side of a symbol_writer; two of them share one stream.
class symbol_reader {
 public:
  symbol_reader(const frequencies& f, half_reader& from) {
    std::uint32_t slot = 0;
    for (unsigned s = 0; s < symbol_count; ++s)
      for (std::uint16_t i = 0; i < f[s]; ++i) slots_[slot++] = {f[s], i, static_cast<std::uint8_t>(s), extra_of(s)};
    state_ = from.get() << 16;
    state_ |= from.get();
  }
  std::uint64_t get(half_reader& from, bit_reader& bits) noexcept {
    const auto& e = slots_[state_ & (scale - 1)];
    state_ = e.frequency * (state_ >> scale_bits) + e.within;
    if (state_ < state_low) state_ = state_ << 16 | from.get();
    return first_numbers[e.symbol] + bits.get(e.extra);
  }
  bool at_end() const noexcept { return state_ == state_low; }

 private:
  struct entry {
    std::uint16_t frequency;
    std::uint16_t within;  ///< the slot's number among its symbol's
    std::uint8_t symbol;
    std::uint8_t extra;
  };
  static constexpr std::array<std::uint64_t, symbol_count> first_numbers = [] {
    std::array<std::uint64_t, symbol_count> firsts{};
    for (unsigned s = 0; s < symbol_count; ++s) firsts[s] = first_of(s);
    return firsts;
  }();
  std::array<entry, scale> slots_;
  std::uint32_t state_ = 0;
};

void append(std::vector<std::byte>& out, const void* from, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(from);
  out.insert(out.end(), begin, begin + bytes);
}

/// The payload of a sparse record: how many halves, the halves, both tables, the bits beside the symbols.
template <class Word>
bool apply_sparse(std::span<const std::byte> payload, std::uint32_t changed, std::span<std::byte> range) {
  std::uint32_t halves = 0;
  if (payload.size() < sizeof halves) return false;
  std::memcpy(&halves, payload.data(), sizeof halves);
  payload = payload.subspan(sizeof halves);
  if (halves > payload.size() / 2) return false;
  half_reader stream(payload.first(std::size_t{halves} * 2));
  bit_reader bits(payload.subspan(std::size_t{halves} * 2));
  frequencies gap_table, difference_table;
  if (!get_frequencies(bits, gap_table) || !get_frequencies(bits, difference_table)) return false;
  bits.next_writer();
  symbol_reader gaps(gap_table, stream), differences(difference_table, stream);
  const std::uint64_t count = range.size() / sizeof(Word);
  std::uint64_t at = 0;
  for (std::uint32_t i = 0; i < changed; ++i, ++at) {
    const auto gap = gaps.get(stream, bits);
    if (gap >= count - at) return false;
    at += gap;
    const auto difference = unfolded<Word>(differences.get(stream, bits));
    Word word;
    std::memcpy(&word, range.data() + at * sizeof(Word), sizeof(Word));
    word = static_cast<Word>(word + difference);
    std::memcpy(range.data() + at * sizeof(Word), &word, sizeof(Word));
  }
  return stream.at_end() && gaps.at_end() && differences.at_end() && bits.at_end();
}

std::string named(const delta_head& head) {
  return "the delta of bytes " + std::to_string(head.offset) + " to " + std::to_string(head.offset + head.bytes);
}

bool is_word(unsigned bytes) noexcept { return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8; }

}  // namespace

void divide_for_delta(std::uint64_t offset, std::uint64_t bytes, std::uint8_t word, std::uint32_t chunk,
                      std::vector<delta_range>& ranges) {
  if (!is_word(word) || bytes % word != 0 || chunk == 0 || chunk % 8 != 0)
    throw std::invalid_argument("a delta's words have 1, 2, 4 or 8 bytes, and its chunks a multiple of 8");
  for (std::uint64_t at = 0; at < bytes; at += chunk)
    ranges.push_back({offset + at, static_cast<std::uint32_t>(std::min<std::uint64_t>(chunk, bytes - at)), word});
}

struct delta_encoder::scratch {
  struct free_state {
    void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, free_state> hash{XXH3_createState()};
  std::vector<std::uint8_t> gaps, differences;  ///< symbols
  bit_writer beside, tables;
  std::vector<std::uint16_t> halves;
  std::array<std::uint32_t, symbol_count> gap_counts, difference_counts;

  /// Compares and counts; returns the checksum of `next`.
  template <class Word>
  std::uint64_t scan(std::span<const std::byte> base, std::span<const std::byte> next, std::uint64_t offset) {
    gaps.clear();
    differences.clear();
    beside.clear();
    gap_counts.fill(0);
    difference_counts.fill(0);
    std::size_t expected = 0;
    auto found = [&](std::size_t index, Word difference) {
      const std::uint64_t numbers[2] = {index - expected, folded(difference)};
      const coded gap = code(numbers[0]), by = code(numbers[1]);
      expected = index + 1;
      ++gap_counts[gap.symbol];
      ++difference_counts[by.symbol];
      gaps.push_back(gap.symbol);
      differences.push_back(by.symbol);
      if (gap.extra > 0) beside.put(numbers[0] & ((1ULL << gap.extra) - 1), gap.extra);
      if (by.extra > 0) beside.put(numbers[1] & ((1ULL << by.extra) - 1), by.extra);
    };
    XXH3_64bits_reset_withSeed(hash.get(), offset);
    for (std::size_t at = 0; at < next.size(); at += block_bytes) {
      const auto bytes = std::min(block_bytes, next.size() - at);
      compare<Word>(base.data() + at, next.data() + at, bytes, at / sizeof(Word), found);
      XXH3_64bits_update(hash.get(), next.data() + at, bytes);
    }
    return XXH3_64bits_digest(hash.get());
  }

  /// Appends a sparse record's payload.
  void write(std::vector<std::byte>& out) {
    const auto gap_table = normalized(gap_counts, gaps.size());
    const auto difference_table = normalized(difference_counts, differences.size());
    halves.clear();
    symbol_writer gap(gap_table, halves), difference(difference_table, halves);
    for (auto i = gaps.size(); i-- > 0;) {
      difference.put(differences[i]);
      gap.put(gaps[i]);
    }
    difference.finish();
    gap.finish();
    std::reverse(halves.begin(), halves.end());
    tables.clear();
    put_frequencies(tables, gap_table);
    put_frequencies(tables, difference_table);
    const auto count = static_cast<std::uint32_t>(halves.size());
    append(out, &count, sizeof count);
    append(out, halves.data(), halves.size() * sizeof halves[0]);
    for (auto words : {tables.finish(), beside.finish()}) append(out, words.data(), words.size_bytes());
  }
};

delta_encoder::delta_encoder() : scratch_(std::make_unique<scratch>()) {}
delta_encoder::~delta_encoder() = default;
delta_encoder::delta_encoder(delta_encoder&&) noexcept = default;
delta_encoder& delta_encoder::operator=(delta_encoder&&) noexcept = default;

void delta_encoder::encode(std::span<const std::byte> base, std::span<const std::byte> next, const delta_range& range,
                           std::vector<std::byte>& out) {
  if (base.size() != next.size() || range.offset > next.size() || range.bytes > next.size() - range.offset ||
      !is_word(range.word) || range.bytes % range.word != 0)
    throw std::invalid_argument("a delta's range lies in both versions and holds whole words");
  const auto was = base.subspan(range.offset, range.bytes), is = next.subspan(range.offset, range.bytes);
  delta_head head{range.offset, 0, range.bytes, 0, 0, range.word, delta_method::same, 0};
  switch (range.word) {
    case 1:
      head.checksum = scratch_->scan<std::uint8_t>(was, is, range.offset);
      break;
    case 2:
      head.checksum = scratch_->scan<std::uint16_t>(was, is, range.offset);
      break;
    case 4:
      head.checksum = scratch_->scan<std::uint32_t>(was, is, range.offset);
      break;
    default:
      head.checksum = scratch_->scan<std::uint64_t>(was, is, range.offset);
  }
  head.changed = static_cast<std::uint32_t>(scratch_->gaps.size());
  const auto begin = out.size();
  append(out, &head, sizeof head);
  if (head.changed == 0) return;
  head.method = delta_method::sparse;
  scratch_->write(out);
  if (out.size() - begin - sizeof head >= range.bytes) {
    head.method = delta_method::dense;
    out.resize(begin + sizeof head);
    append(out, is.data(), is.size());
  }
  head.payload = static_cast<std::uint32_t>(out.size() - begin - sizeof head);
  std::memcpy(out.data() + begin, &head, sizeof head);
}

result<delta_head> read_delta_head(std::span<const std::byte> records) {
  delta_head head;
  if (records.size() < sizeof head)
    return fail(errc::invalid_data, "a delta's record has at least 32 bytes, found " + std::to_string(records.size()));
  std::memcpy(&head, records.data(), sizeof head);
  const bool sizes =
      is_word(head.word) && head.bytes % head.word == 0 && head.reserved == 0 && head.changed <= head.bytes / head.word;
  bool method = false;
  switch (head.method) {
    case delta_method::same:
      method = head.changed == 0 && head.payload == 0;
      break;
    case delta_method::sparse:
      method = head.changed > 0 && head.payload < head.bytes;
      break;
    case delta_method::dense:
      method = head.changed > 0 && head.payload == head.bytes;
      break;
  }
  if (!sizes || !method || head.offset > std::numeric_limits<std::uint64_t>::max() - head.bytes)
    return fail(errc::invalid_data, "this is no head of a delta's record");
  if (head.payload > records.size() - sizeof head)
    return fail(errc::invalid_data, named(head) + " is cut short: " + std::to_string(head.payload) +
                                        " bytes should follow its head, found " +
                                        std::to_string(records.size() - sizeof head));
  return head;
}

result<std::size_t> apply_delta(std::span<const std::byte> records, std::span<std::byte> version) {
  const auto head = read_delta_head(records);
  if (!head) return fail(head.error());
  if (head->offset > version.size() || head->bytes > version.size() - head->offset)
    return fail(errc::invalid_data,
                named(*head) + " lies outside the version's " + std::to_string(version.size()) + " bytes");
  const auto range = version.subspan(head->offset, head->bytes);
  const auto payload = records.subspan(sizeof *head, head->payload);
  bool whole = true;
  if (head->method == delta_method::dense) std::memcpy(range.data(), payload.data(), payload.size());
  if (head->method == delta_method::sparse) switch (head->word) {
      case 1:
        whole = apply_sparse<std::uint8_t>(payload, head->changed, range);
        break;
      case 2:
        whole = apply_sparse<std::uint16_t>(payload, head->changed, range);
        break;
      case 4:
        whole = apply_sparse<std::uint32_t>(payload, head->changed, range);
        break;
      default:
        whole = apply_sparse<std::uint64_t>(payload, head->changed, range);
    }
  if (!whole) return fail(errc::invalid_data, named(*head) + " is damaged");
  if (XXH3_64bits_withSeed(range.data(), range.size(), head->offset) != head->checksum)
    return fail(errc::invalid_data,
                named(*head) + " gave another checksum than it should: it is damaged, or is one of another base");
  return sizeof *head + head->payload;
}

result<std::size_t> apply_delta(std::span<const std::byte> records, std::span<const std::byte> base,
                                std::span<std::byte> into) {
  if (base.size() != into.size()) throw std::invalid_argument("both versions of a delta have the same size");
  const auto head = read_delta_head(records);
  if (!head) return fail(head.error());
  if (head->method != delta_method::dense && head->offset <= base.size() && head->bytes <= base.size() - head->offset)
    std::memcpy(into.data() + head->offset, base.data() + head->offset, head->bytes);
  return apply_delta(records, into);
}

}  // namespace weir

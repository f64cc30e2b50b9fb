// Texts that are meant to cost more than they should: each is encoded, soon, and comes back.
#include "support.hpp"

using namespace weir::testing;

namespace {

std::string repeated(const std::string& what, std::size_t bytes) {
  std::string out;
  out.reserve(bytes + what.size());
  while (out.size() < bytes) out += what;
  return out;
}

constexpr std::size_t mega = 1 << 20;

}  // namespace

TEST_CASE("a megabyte of one kind is encoded") {
  const auto t = small();
  for (const auto& text :
       {std::string(mega, 'a'), std::string(mega, ' '), std::string(mega, '\n'), repeated(" \n", mega),
        std::string(mega, ' ') + "x", repeated("\r\n\t ", mega) + "x", std::string(mega, '0'), std::string(mega, '\''),
        std::string(mega, '<'), repeated("<|im_", mega), repeated("<|im_end|>", mega), repeated("'s'S", mega),
        repeated("\u4e2d", mega), repeated("\U0001f468\u200d", mega), repeated("\u2003", mega),
        repeated("\ufdfa", mega), repeated("\uac00", mega)}) {
    INFO(nlohmann::json(text.substr(0, 12)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
    CHECK(t.decode(t.encode(text)) == text);
  }
  const auto long_line = repeated("return (x[i] != 0) ? \"ja\" : u8\"\u00df\"; ", 4 * mega);
  CHECK(t.decode(t.encode(long_line)) == long_line);
}

// Twelve million characters are more than PCRE2's match limit, where each counts.
TEST_CASE("a run longer than ten million characters is encoded") {
  const auto t = of_merges({});
  const auto text = std::string(12 * mega, ' ') + "x";
  CHECK(t.encode(text).size() == text.size());
}

TEST_CASE("runs of combining marks are ordered without quadratic cost") {
  const auto t = small();
  const auto same = repeated("\u0301", mega);
  CHECK(t.decode(t.encode(same)) == same);
  // Above and below in turn: every pair is in the wrong order.
  const auto mixed = "a" + repeated("\u0315\u0323", mega);
  const auto sorted = t.decode(t.encode(mixed));
  CHECK(sorted.size() == mixed.size());  // U+1EA1 is two bytes longer than a, and takes the first U+0323 in
  CHECK(sorted.starts_with("\u1ea1\u0323\u0323"));
  CHECK(sorted.ends_with("\u0315\u0315\u0315"));
}

TEST_CASE("what is no UTF-8 costs no more than what is") {
  const auto t = small();
  for (const char* bytes : {"\xFF", "\xE4\xB8", "\xF0\x9F\x98", "\x80", "\xED\xA0\x80"}) {
    const auto tokens = t.encode(repeated(bytes, mega));
    CHECK(tokens.size() >= mega);
    CHECK(t.decode(tokens).starts_with("\xEF\xBF\xBD\xEF\xBF\xBD"));
  }
}

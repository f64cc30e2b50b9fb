// Encoding and decoding. Where ids are given they are what Hugging Face's tokenizers library gives.
#include <atomic>
#include <thread>

#include "support.hpp"
#include "weir/runtime/random.hpp"

using namespace weir::testing;
using ids = std::vector<weir::token>;

namespace {

const std::string replacement = "\xEF\xBF\xBD";

std::string random_bytes(weir::random_stream& random, std::size_t size) {
  std::string out(size, '\0');
  for (char& c : out) c = static_cast<char>(random.below(256));
  return out;
}

/// Characters of every length that NFC leaves alone, with white space and added tokens between them.
std::string random_text(weir::random_stream& random, std::size_t pieces) {
  static const std::vector<std::string> of{
      "a",      "the ",       " ",  "\n",         "\t\r\n",  "0",  "\u00e9", "\u0416", "\u4e2d",
      "\uac00", "\U0001f600", "'s", "<|im_end|>", "<think>", "<|", "\u2003", "++",     std::string(1, '\0')};
  std::string out;
  for (std::size_t i = 0; i < pieces; ++i) out += of[random.below(of.size())];
  return out;
}

/// The small tokenizer with added tokens of every kind.
weir::tokenizer with_added() {
  auto made = changed([](nlohmann::json& t) {
    auto& list = t["added_tokens"];
    for (auto& a : list) {
      if (a["content"] == "<|im_end|>") a["lstrip"] = true;
      if (a["content"] == "<think>") a["rstrip"] = true;
    }
    auto add = [&](const char* content, const char* flag) {
      list.push_back({{"id", 430 + list.size()}, {"content", content}, {"normalized", false}});
      if (flag != nullptr) list.back()[flag] = true;
    };
    add("qzk", "single_word");
    add("e\u0301", "normalized");
    add("Hzllo", "normalized");
    add("Hzll", nullptr);
  });
  if (!made) FAIL(made.error().message);
  return *made;
}

}  // namespace

TEST_CASE("valid text comes back as it was, with added tokens and without") {
  const auto t = small();
  weir::random_stream random(1);
  for (int i = 0; i < 300; ++i) {
    const auto text = random_text(random, random.below(40));
    INFO(nlohmann::json(text).dump());
    CHECK(t.decode(t.encode(text)) == text);
    CHECK(t.decode(t.encode(text, false)) == text);
  }
}

TEST_CASE("any bytes can be encoded; what is no UTF-8 becomes U+FFFD once") {
  const auto t = small();
  weir::random_stream random(2);
  for (int i = 0; i < 300; ++i) {
    const auto bytes = random_bytes(random, random.below(60));
    const auto once = t.decode(t.encode(bytes));
    CHECK_NOTHROW(nlohmann::json(once).dump());  // throws if it is no UTF-8
    CHECK(t.decode(t.encode(once)) == once);
  }
  // One for each maximal part that could have begun a character.
  CHECK(t.decode(t.encode("a\xFF z")) == "a" + replacement + " z");
  CHECK(t.decode(t.encode("\xE4\xB8")) == replacement);
  CHECK(t.decode(t.encode("\xE4\xB8\xE4\xB8\xAD")) == replacement + "\u4e2d");
  CHECK(t.decode(t.encode("\xC0\x80")) == replacement + replacement);
  CHECK(t.decode(t.encode("\xED\xA0\x80")) == replacement + replacement + replacement);
  CHECK(t.decode(t.encode("\xF4\x90\x80\x80")) == replacement + replacement + replacement + replacement);
}

TEST_CASE("added tokens are recognised unless the text is not to be trusted") {
  const auto t = small();
  const std::string text = "a<|im_end|>b</think>";
  CHECK(t.encode(text) == ids{64, 432, 65, 434});
  const auto plain = t.encode(text, false);
  CHECK(std::none_of(plain.begin(), plain.end(), [](auto id) { return id >= 430; }));
  CHECK(t.decode(plain) == text);
  CHECK(t.decode(t.encode(text)) == text);
  CHECK(t.decode(t.encode(text), true) == "ab</think>");  // that one is added, but not special
  CHECK(t.is_special(432));
  CHECK_FALSE(t.is_special(434));
  CHECK_FALSE(t.is_special(-1));
  CHECK_FALSE(t.is_special(99999));
  CHECK(t.id_of("<|im_end|>") == 432);
  CHECK(t.id_of(" r") == 257);
  CHECK_FALSE(t.id_of("no such token"));
  CHECK(t.size() == 437);
  CHECK_FALSE(t.eos());
}

TEST_CASE("an added token's options are obeyed") {
  const auto t = with_added();
  CHECK(t.encode("a \u3000<|im_end|>  b") == ids{64, 432, 220, 220, 65});  // lstrip
  CHECK(t.encode("x<think> \n\u2003y") == ids{87, 433, 88});               // rstrip
  CHECK(t.encode("qzk") == ids{437});
  CHECK(t.encode("qzkly qzk") == ids{80, 89, 74, 75, 88, 220, 437});  // single_word
  CHECK(t.encode("\u4e2dqzk") == ids{160, 116, 255, 80, 89, 74});
  CHECK(t.encode("qzk\u24b6") == ids{80, 89, 74, 158, 240, 114});
  CHECK(t.encode("\u2014qzk\u2014") == ids{158, 222, 242, 437, 158, 222, 242});
  CHECK(t.encode("caf\u00e9") == ids{66, 64, 69, 438});  // normalized: found in the text's NFC, whatever the content's
  CHECK(t.encode("cafe\u0301") == ids{66, 64, 69, 438});
  CHECK(t.encode("Hzllo Hzll") == ids{440, 78, 220, 440});  // those that are not normalized come first
}

TEST_CASE("text is brought to NFC, and only if the file says so") {
  const auto t = small();
  auto raw = changed([](auto& j) { j["normalizer"] = nullptr; });
  REQUIRE(raw);
  for (auto [given, composed] : std::vector<std::pair<std::string, std::string>>{
           {"e\u0301", "\u00e9"},
           {"\u212b", "\u00c5"},
           {"\u1100\u1161\u11a8", "\uac01"},
           {"\uac00\u11a7\u11a8", "\uac00\u11a7\u11a8"},  // U+11A7 is no trailing consonant
           {"a\u0315\u0300\u05ae\u0062", "\u00e0\u05ae\u0315b"},
           {"\u0958", "\u0915\u093c"},
           {"\u03b1\u0345\u0313", "\u1f80"},
           {"\u4e2d\u0416", "\u4e2d\u0416"}}) {
    INFO(nlohmann::json(given).dump());
    CHECK(t.decode(t.encode(given)) == composed);
    CHECK(raw->decode(raw->encode(given)) == given);
  }
}

TEST_CASE("white space is Unicode's") {
  // Merges show where the pieces end: nothing merges across pieces.
  const auto t = of_merges({{"'", "\u00e1"}, {"\u0120", "\u00e1"}});
  CHECK(t.encode("'\u180e").front() == 256);                   // U+180E is none: one piece with the apostrophe
  CHECK(t.encode(" \u1680x") == ids{220, 157, 248, 222, 87});  // U+1680 is
  CHECK(t.encode("'\u1680").front() == 6);
}

TEST_CASE("merges are made by rank, leftmost first, in short words and long") {
  const auto t = of_merges({{"a", "a"}, {"aa", "aa"}, {"b", "a"}, {"aaaa", "aaaa"}});
  CHECK(t.encode("aaa") == ids{256, 64});
  CHECK(t.encode("baaa") == ids{65, 256, 64});
  CHECK(t.encode("aba") == ids{64, 258});
  for (std::size_t n :
       {1UL, 2UL, 7UL, 47UL, 48UL, 49UL, 50UL, 96UL, 1000UL, 1003UL}) {  // 48 is where the method changes
    ids expected(n / 8, 259);
    for (std::size_t size = 4, id = 257; size > 0; size /= 2, id = size == 2 ? 256 : 64)
      if ((n & size) != 0) expected.push_back(static_cast<weir::token>(id));
    INFO(n);
    CHECK(t.encode(std::string(n, 'a')) == expected);
  }
}

TEST_CASE("ignore_merges takes a whole word that the vocabulary has") {
  auto with = [](bool ignore) {
    return *changed([ignore](auto& j) {
      j["model"]["merges"] = nlohmann::json::array();
      j["model"]["ignore_merges"] = ignore;
    });
  };
  CHECK(with(true).encode(" re") == ids{*small().id_of(" re")});
  CHECK(with(false).encode(" re").size() == 3);
}

TEST_CASE("a byte that the vocabulary lacks becomes the unknown token, or nothing") {
  auto without_z = [](const nlohmann::json& unknown) {
    auto made = changed([&](nlohmann::json& j) {
      auto& model = j["model"];
      model["merges"] = nlohmann::json::array();
      auto vocab = nlohmann::json::object();
      for (const auto& [text, id] : small_json()["model"]["vocab"].items())
        if (id < 256 && text != "z") vocab[text] = id;
      model["vocab"] = vocab;
      model["unk_token"] = unknown;
      j["added_tokens"] = nlohmann::json::array();
    });
    REQUIRE(made);
    return *made;
  };
  CHECK(without_z("!").encode("azzb") == ids{64, 0, 0, 65});
  CHECK(without_z(nullptr).encode("azzb") == ids{64, 65});
  CHECK(without_z(nullptr).bytes(89).empty());  // the gap
}

TEST_CASE("ByteLevel alone splits as GPT-2 does, with a space before the text") {
  auto t = changed([](auto& j) {
    j["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  });
  REQUIRE(t);
  CHECK(t->decode(t->encode("re")) == " re");
  CHECK(t->encode("re") == ids{*t->id_of(" re")});
  CHECK(t->encode(" re") == t->encode("re"));
  CHECK(t->encode("").empty());
}

TEST_CASE("a pattern whose matches are removed") {
  auto t = changed([](auto& j) {
    j["pre_tokenizer"]["pretokenizers"][0] = {
        {"type", "Split"}, {"pattern", {{"Regex", "[-]+"}}}, {"behavior", "Removed"}};
  });
  REQUIRE(t);
  CHECK(t->decode(t->encode("--ab--c-")) == "abc");
}

TEST_CASE("ids outside the vocabulary are passed over") {
  const auto t = small();
  CHECK(t.decode(ids{-1, 64, 437, 1 << 30, 65, -2147483647 - 1}) == "ab");
  CHECK(t.bytes(-1).empty());
  CHECK(t.bytes(437).empty());
}

TEST_CASE("a stream gives each character once it is whole, and all of it is what decode gives") {
  const auto t = small();
  weir::stream_decoder whole(t);
  const auto bytes = t.encode("\u4e2d\U0001f600");
  REQUIRE(bytes.size() == 7);  // a token a byte
  const std::vector<std::string> expected{"", "", "\u4e2d", "", "", "", "\U0001f600"};
  for (std::size_t i = 0; i < 7; ++i) CHECK(whole.next(bytes[i]) == expected[i]);
  CHECK(whole.finish().empty());

  weir::stream_decoder cut(t);
  CHECK(cut.next(bytes[0]).empty());
  CHECK(cut.next(64) == replacement + "a");  // the character that will never be whole
  CHECK(cut.next(bytes[3]).empty());
  CHECK(cut.finish() == replacement);
  CHECK(cut.finish().empty());

  weir::stream_decoder skipping(t), showing(t, false);
  CHECK(skipping.next(432).empty());
  CHECK(showing.next(432) == "<|im_end|>");

  weir::random_stream random(3);
  for (int i = 0; i < 300; ++i) {
    ids tokens(random.below(50));
    for (auto& id : tokens) id = static_cast<weir::token>(random.below(440));
    weir::stream_decoder stream(t);
    std::string out;
    for (auto id : tokens) out += stream.next(id);
    out += stream.finish();
    CHECK(out == t.decode(tokens, true));
  }
}

TEST_CASE("four threads encode alike") {
  const auto t = small();
  std::vector<std::string> texts;
  std::vector<ids> expected;
  weir::random_stream random(4);
  for (int i = 0; i < 40; ++i) {
    texts.push_back(random_text(random, 100) + random_bytes(random, 100) + (i % 8 == 0 ? std::string(5000, 'a') : ""));
    expected.push_back(t.encode(texts.back()));
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k)
    threads.emplace_back([&, copy = t] {
      for (int round = 0; round < 5; ++round)
        for (std::size_t i = 0; i < texts.size(); ++i)
          if (copy.encode(texts[i]) != expected[i] || copy.decode(expected[i]).empty()) ++wrong;
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("bytes that have no token are told, whether an unknown token stands for them or nothing") {
  for (const bool unknown : {false, true}) {
    auto t = changed([&](nlohmann::json& j) {
      j["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"ab", 2}, {"?", 3}};
      j["model"]["merges"] = {"a b"};
      j["added_tokens"] = nlohmann::json::array();
      if (unknown) j["model"]["unk_token"] = "?";
    });
    REQUIRE(t);
    std::string lost = "so far ";
    CHECK(t->encode("abxa\u00e9", true, &lost) == (unknown ? ids{2, 3, 0, 3, 3} : ids{2, 0}));
    CHECK(lost == "so far x\u00e9");
    lost.clear();
    t->encode("aba?b", false, &lost);
    CHECK(lost.empty());
    t->encode("\xFF", true, &lost);
    CHECK(lost == replacement);
  }
}

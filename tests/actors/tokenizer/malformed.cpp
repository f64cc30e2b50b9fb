// Files that are damaged, or ask for what is not supported: an error that names the file and the field.
#include "support.hpp"

using namespace weir::testing;
using nlohmann::json;

namespace {

struct mutation {
  const char* name;
  const char* field;  ///< what the error must say
  std::function<void(json&)> change;
};

json sequences(const char* list, int deep) {
  json inner;
  for (int i = 0; i < deep; ++i) inner = json{{"type", "Sequence"}, {list, json::array({std::move(inner)})}};
  return inner;
}

const json split_on_space{{"type", "Split"}, {"pattern", {{"Regex", " "}}}, {"behavior", "Isolated"}};

const std::vector<mutation> mutations{
    {"an array", "is no JSON object", [](json& t) { t = json::array(); }},
    {"no model", "model is missing", [](json& t) { t.erase("model"); }},
    {"a model that is a string", "model is missing", [](json& t) { t["model"] = "BPE"; }},
    {"another model", "model.type is \"WordPiece\"", [](json& t) { t["model"]["type"] = "WordPiece"; }},
    {"a Unigram model without type", "model.type is \"\"",
     [](json& t) {
       t["model"] = {{"vocab", json::array()}};
     }},
    {"byte fallback", "model.byte_fallback", [](json& t) { t["model"]["byte_fallback"] = true; }},
    {"fused unknowns", "model.fuse_unk", [](json& t) { t["model"]["fuse_unk"] = true; }},
    {"dropout", "model.dropout", [](json& t) { t["model"]["dropout"] = 0.1; }},
    {"dropout of another type", "model.dropout", [](json& t) { t["model"]["dropout"] = "much"; }},
    {"a word prefix", "model.continuing_subword_prefix",
     [](json& t) { t["model"]["continuing_subword_prefix"] = "##"; }},
    {"a word suffix", "model.end_of_word_suffix", [](json& t) { t["model"]["end_of_word_suffix"] = "</w>"; }},
    {"a flag that is none", "model.ignore_merges is \"yes\"", [](json& t) { t["model"]["ignore_merges"] = "yes"; }},
    {"no vocabulary", "model.vocab", [](json& t) { t["model"].erase("vocab"); }},
    {"an empty vocabulary", "model.vocab", [](json& t) { t["model"]["vocab"] = json::object(); }},
    {"a vocabulary that is a list", "model.vocab", [](json& t) { t["model"]["vocab"] = json::array({"a"}); }},
    {"an id that is text", "model.vocab: the id of \"a\"", [](json& t) { t["model"]["vocab"]["a"] = "64"; }},
    {"an id that is a fraction", "model.vocab: the id of \"a\"", [](json& t) { t["model"]["vocab"]["a"] = 64.5; }},
    {"a negative id", "model.vocab: the id -1 of \"a\"", [](json& t) { t["model"]["vocab"]["a"] = -1; }},
    {"an id far out", "model.vocab: the id 1000000 of \"a\"", [](json& t) { t["model"]["vocab"]["a"] = 1000000; }},
    {"an id beyond 64 bits' sign", "18446744073709551615",
     [](json& t) { t["model"]["vocab"]["a"] = ~std::uint64_t{0}; }},
    {"an id twice", "two entries have the id 65", [](json& t) { t["model"]["vocab"]["a"] = 65; }},
    {"an unknown token that is unknown", "model.unk_token \"<unk>\"",
     [](json& t) { t["model"]["unk_token"] = "<unk>"; }},
    {"an unknown token by number", "model.unk_token", [](json& t) { t["model"]["unk_token"] = 0; }},
    {"no merges", "model.merges", [](json& t) { t["model"].erase("merges"); }},
    {"merges that are an object", "model.merges", [](json& t) { t["model"]["merges"] = json::object(); }},
    {"a merge of an unknown token", "model.merges[3]",
     [](json& t) {
       t["model"]["merges"][3] = {"e", "xyzzy"};
     }},
    {"a merge whose result is unknown", "model.merges[3]",
     [](json& t) {
       t["model"]["merges"][3] = {"Q", "Z"};
     }},
    {"a merge of three", "model.merges[3]",
     [](json& t) {
       t["model"]["merges"][3] = {"e", "r", "e"};
     }},
    {"a merge by number", "model.merges[3]", [](json& t) { t["model"]["merges"][3] = 7; }},
    {"a merge without a space", "model.merges[3]", [](json& t) { t["model"]["merges"][3] = "er"; }},
    {"a merge twice", "model.merges[174] [\"e\",\"r\"]",
     [](json& t) {
       t["model"]["merges"].push_back({"e", "r"});
     }},
    {"added tokens that are an object", "added_tokens", [](json& t) { t["added_tokens"] = json::object(); }},
    {"an added token without id", "added_tokens[1] lacks", [](json& t) { t["added_tokens"][1].erase("id"); }},
    {"an added token without content", "added_tokens[1] lacks", [](json& t) { t["added_tokens"][1].erase("content"); }},
    {"an empty added token", "added_tokens[1].content", [](json& t) { t["added_tokens"][1]["content"] = ""; }},
    {"an added token twice", "added_tokens[1].content",
     [](json& t) { t["added_tokens"][1]["content"] = "<|endoftext|>"; }},
    {"an added token's id that is a byte's", "added_tokens[1].id is 64",
     [](json& t) { t["added_tokens"][1]["id"] = 64; }},
    {"an added token's id twice", "added_tokens[1].id is 430", [](json& t) { t["added_tokens"][1]["id"] = 430; }},
    {"a gap before an added token", "added_tokens[6].id is 437", [](json& t) { t["added_tokens"][6]["id"] = 437; }},
    {"an added token far out", "added_tokens[6].id",
     [](json& t) { t["added_tokens"][6]["id"] = std::int64_t{1} << 40; }},
    {"another id than the vocabulary's", "the id 64 in model.vocab",
     [](json& t) { t["added_tokens"][6]["content"] = "a"; }},
    {"an added token's flag that is none", "added_tokens[2].special is 1",
     [](json& t) { t["added_tokens"][2]["special"] = 1; }},
    {"another normalizer", "normalizer.type is \"NFKC\"", [](json& t) { t["normalizer"]["type"] = "NFKC"; }},
    {"a normalizer without type", "normalizer.type", [](json& t) { t["normalizer"] = "NFC"; }},
    {"another one in a sequence", "normalizer.normalizers[1].type is \"Lowercase\"",
     [](json& t) {
       t["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Lowercase"}}}}};
     }},
    {"normalizers nested deep", "nested too deep", [](json& t) { t["normalizer"] = sequences("normalizers", 1000); }},
    {"another pre-tokenizer", "pre_tokenizer.type is \"Whitespace\"",
     [](json& t) {
       t["pre_tokenizer"] = {{"type", "Whitespace"}};
     }},
    {"another one in the sequence", "pre_tokenizer.pretokenizers[0].type is \"Digits\"",
     [](json& t) { t["pre_tokenizer"]["pretokenizers"][0]["type"] = "Digits"; }},
    {"no pre-tokenizer", "pre_tokenizer has no ByteLevel", [](json& t) { t["pre_tokenizer"] = nullptr; }},
    {"no ByteLevel", "pre_tokenizer has no ByteLevel", [](json& t) { t["pre_tokenizer"]["pretokenizers"].erase(1); }},
    {"a Split after ByteLevel", "pretokenizers[2].type is \"Split\", after",
     [](json& t) { t["pre_tokenizer"]["pretokenizers"].push_back(split_on_space); }},
    {"a space before every piece", "pretokenizers[1].add_prefix_space",
     [](json& t) { t["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }},
    {"a regex that does not compile", "pretokenizers[0].pattern.Regex",
     [](json& t) { t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; }},
    {"a regex that ends in an escape", "pretokenizers[0].pattern.Regex",
     [](json& t) { t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "a\\"; }},
    {"a pattern that is no regex", "pretokenizers[0].pattern.Regex",
     [](json& t) {
       t["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", " "}};
     }},
    {"a pattern that is text", "pretokenizers[0].pattern.Regex",
     [](json& t) { t["pre_tokenizer"]["pretokenizers"][0]["pattern"] = " "; }},
    {"an inverted pattern", "pretokenizers[0].invert",
     [](json& t) { t["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; }},
    {"another behavior", "pretokenizers[0].behavior is \"MergedWithNext\"",
     [](json& t) { t["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithNext"; }},
    {"a behavior nested deep", "pretokenizers[0].behavior",
     [](json& t) { t["pre_tokenizer"]["pretokenizers"][0]["behavior"] = sequences("x", 1000); }},
    {"pre-tokenizers nested deep", "nested too deep",
     [](json& t) { t["pre_tokenizer"] = sequences("pretokenizers", 1000); }},
    {"another decoder", "decoder.type is \"Metaspace\"", [](json& t) { t["decoder"]["type"] = "Metaspace"; }},
    {"another post-processor", "post_processor.type is \"TemplateProcessing\"",
     [](json& t) {
       t["post_processor"] = {{"type", "TemplateProcessing"}};
     }},
    {"another one in its sequence", "post_processor.processors[0].type",
     [](json& t) {
       t["post_processor"] = {{"type", "Sequence"}, {"processors", {{{"type", "Bert"}}}}};
     }},
    {"post-processors nested deep", "nested too deep",
     [](json& t) { t["post_processor"] = sequences("processors", 1000); }},
    {"truncation", "truncation",
     [](json& t) {
       t["truncation"] = {{"max_length", 8}};
     }},
    {"padding", "padding", [](json& t) { t["padding"] = true; }},
};

/// The error of a load, with the file's name in it.
weir::error refused(const std::filesystem::path& path) {
  auto made = weir::tokenizer::load(path);
  REQUIRE_FALSE(made);
  INFO(made.error().message);
  CHECK(made.error().message.find(path.filename().string()) != std::string::npos);
  return made.error();
}

}  // namespace

TEST_CASE("every mutation of a good file is refused by name") {
  for (const auto& m : mutations) {
    INFO(m.name);
    auto made = changed(m.change);
    REQUIRE_FALSE(made);
    INFO(made.error().message);
    CHECK(made.error().code == weir::errc::invalid_data);
    CHECK(made.error().message.starts_with("t.json"));
    CHECK(made.error().message.find(m.field) != std::string::npos);
  }
}

TEST_CASE("a file that is no JSON, cut off or empty is refused with its place") {
  const temporary_folder folder;
  const auto whole = small_json().dump(1);
  CHECK(refused(folder.write("empty.json", "")).code == weir::errc::invalid_data);
  CHECK(refused(folder.write("text.json", "not JSON")).message.find("text.json:1:") != std::string::npos);
  CHECK(refused(folder.write("binary.json", std::string("\0\xFF\x89PNG", 6))).code == weir::errc::invalid_data);
  for (std::size_t part = 1; part < 20; ++part)
    CHECK(refused(folder.write("cut.json", whole.substr(0, whole.size() * part / 20))).code ==
          weir::errc::invalid_data);
  CHECK(refused(folder.write("twice.json", "{\"model\": {}, \"model\": {}}")).message.find("model") !=
        std::string::npos);
  std::string deep = "{\"model\":";
  deep.append(1'000'000, '[').append(1'000'000, ']').append("}");
  CHECK(refused(folder.write("deep.json", deep)).message.find("model is missing") != std::string::npos);
}

TEST_CASE("a path without a tokenizer is an error that names it") {
  const temporary_folder folder;
  auto none = weir::tokenizer::load(folder.path());
  REQUIRE_FALSE(none);
  CHECK(none.error().code == weir::errc::not_found);
  CHECK(none.error().message.find((folder.path() / "tokenizer.json").string()) != std::string::npos);
  CHECK(refused(folder.path() / "nothing.json").code == weir::errc::not_found);
  CHECK(refused(folder.path() / std::string(5000, 'n')).code == weir::errc::io);  // and does not throw
  std::filesystem::create_directory(folder.path() / "tokenizer.json");
  CHECK_FALSE(weir::tokenizer::load(folder.path()));
}

TEST_CASE("a folder's tokenizer_config.json names the end token") {
  const temporary_folder folder;
  folder.write("tokenizer.json", small_json().dump());
  auto eos = [&](const std::string& config) {
    folder.write("tokenizer_config.json", config);
    return weir::tokenizer::load(folder.path());
  };
  CHECK(eos(R"({"eos_token": "<|im_end|>"})")->eos() == 432);
  CHECK(eos(R"({"eos_token": {"content": "<|endoftext|>", "lstrip": false}})")->eos() == 430);
  CHECK_FALSE(eos("{}")->eos());
  CHECK_FALSE(eos(R"({"eos_token": null})")->eos());
  for (const char* bad : {R"({"eos_token": "</s>"})", R"({"eos_token": 432})", R"({"eos_token": {"id": 432}})",
                          R"({"eos_token": ["<|im_end|>"]})", "", "{"}) {
    auto made = eos(bad);
    INFO(bad);
    REQUIRE_FALSE(made);
    CHECK(made.error().message.find("tokenizer_config.json") != std::string::npos);
  }
}

TEST_CASE("what differs only in form is accepted") {
  CHECK(changed([](json& t) {
    for (auto& m : t["model"]["merges"]) m = m[0].get<std::string>() + " " + m[1].get<std::string>();
  }));
  CHECK(changed([](json& t) { t["model"].erase("type"); }));
  CHECK(changed([](json& t) { t.erase("added_tokens"); }));
  CHECK(changed([](json& t) { t.erase("decoder"); }));
  CHECK(changed([](json& t) { t["model"]["dropout"] = 0.0; }));
  CHECK(changed([](json& t) { t["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}}; }));
  CHECK(changed([](json& t) { t["post_processor"] = {{"type", "ByteLevel"}}; }));
}

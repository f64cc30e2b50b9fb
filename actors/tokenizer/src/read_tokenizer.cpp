// From tokenizer.json to the tables that encoding uses. Every field is checked; what is not supported is refused.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "tokenizer_impl.hpp"
#include "utf8.hpp"

namespace weir {

using json = nlohmann::json;

namespace {

constexpr token largest_id = 1 << 26;

/// GPT-2's alphabet: which character stands for which byte. Printable Latin-1 stands for itself, the rest follows U+0100.
struct byte_alphabet {
  std::map<char32_t, unsigned char> bytes;
  byte_alphabet() {
    char32_t next = 256;
    for (unsigned b = 0; b < 256; ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      bytes[itself ? static_cast<char32_t>(b) : next++] = static_cast<unsigned char>(b);
    }
  }
  /// The bytes that a vocabulary entry stands for; nothing if it is not written in the alphabet.
  std::optional<std::string> decode(std::string_view text) const {
    std::string out;
    while (!text.empty()) {
      const auto s = utf8::next(text);
      if (!s.valid) return std::nullopt;
      auto code = static_cast<char32_t>(static_cast<unsigned char>(text[0]));
      if (s.length == 2) code = (code & 0x1FU) << 6U | (static_cast<unsigned char>(text[1]) & 0x3FU);
      if (s.length > 2) return std::nullopt;
      const auto found = bytes.find(code);
      if (found == bytes.end()) return std::nullopt;
      out.push_back(static_cast<char>(found->second));
      text.remove_prefix(s.length);
    }
    return out;
  }
};

class reader {
 public:
  reader(const json& root, std::string origin) : root_(root), origin_(std::move(origin)) {}

  result<std::shared_ptr<tokenizer::impl>> read() {
    if (!root_.is_object()) return fail(errc::invalid_data, origin_ + ": is no JSON object");
    const bool good = read_model() && read_added() && read_normalizer(field(root_, "normalizer"), "normalizer") &&
                      read_pre_tokenizer(field(root_, "pre_tokenizer"), "pre_tokenizer") && check_rest();
    if (!good) return fail(errc::invalid_data, origin_ + ": " + complaint_);
    return made_;
  }

 private:
  static const json& field(const json& object, const char* name) {
    static const json nothing;
    const auto found = object.find(name);
    return found == object.end() ? nothing : *found;
  }
  bool bad(const std::string& what) {
    complaint_ = what;
    return false;
  }
  /// A component's "type"; empty if it has none.
  static std::string type_of(const json& component) {
    if (!component.is_object()) return {};
    const auto& type = field(component, "type");
    return type.is_string() ? type.get<std::string>() : std::string{};
  }
  static bool flag(const json& object, const char* name, bool fallback) {
    const auto& value = field(object, name);
    return value.is_boolean() ? value.get<bool>() : fallback;
  }

  bool place(token id, std::string bytes) {
    if (id < 0 || id > largest_id) return bad("token id " + std::to_string(id) + " is not from 0 to " + std::to_string(largest_id));
    const auto at = static_cast<std::size_t>(id);
    if (made_->pieces.size() <= at) {
      made_->pieces.resize(at + 1);
      made_->special.resize(at + 1);
      taken_.resize(at + 1);
    }
    made_->pieces[at] = std::move(bytes);
    return true;
  }

  bool read_model() {
    const auto& model = field(root_, "model");
    if (!model.is_object()) return bad("model is missing");
    if (const auto type = type_of(model); type != "BPE" && !(type.empty() && model.contains("merges")))
      return bad("model.type is \"" + type + "\": only \"BPE\" is supported");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const auto& value = field(model, name); value.is_string() && !value.get<std::string>().empty())
        return bad(std::string("model.") + name + " is " + value.dump() + ": only null is supported");
    if (flag(model, "byte_fallback", false)) return bad("model.byte_fallback is true: only false is supported");
    if (field(model, "dropout").is_number() && field(model, "dropout") != 0) return bad("model.dropout: only null is supported");
    made_->ignore_merges = flag(model, "ignore_merges", false);
    return read_vocabulary(field(model, "vocab")) && read_unknown(field(model, "unk_token")) && read_merges(field(model, "merges"));
  }

  bool read_vocabulary(const json& vocab) {
    if (!vocab.is_object() || vocab.empty()) return bad("model.vocab is no object with entries");
    made_->byte_ids.fill(-1);
    made_->ids.reserve(vocab.size());
    std::size_t count = vocab.size();
    for (const auto& [text, id] : vocab.items()) {
      if (!id.is_number_integer()) return bad("model.vocab: the id of " + json(text).dump() + " is no integer");
      const auto number = id.get<std::int64_t>();
      // Ids may have gaps, but not so many that the table is mostly empty: that is a damaged file.
      if (number < 0 || static_cast<std::uint64_t>(number) > count * 4 + 65536)
        return bad("model.vocab: the id " + std::to_string(number) + " of " + json(text).dump() + " is out of range for " +
                   std::to_string(count) + " entries");
      auto bytes = alphabet_.decode(text);
      const auto n = static_cast<token>(number);
      if (!place(n, bytes ? *bytes : text)) return false;
      if (taken_[static_cast<std::size_t>(n)])
        return bad("model.vocab: two entries have the id " + std::to_string(n));
      taken_[static_cast<std::size_t>(n)] = true;
      by_text_.emplace(text, n);
      if (!bytes) continue;
      if (bytes->size() == 1) made_->byte_ids[static_cast<unsigned char>((*bytes)[0])] = n;
      made_->ids.emplace(std::move(*bytes), n);
    }
    return true;
  }

  bool read_unknown(const json& unknown) {
    if (unknown.is_null()) return true;
    if (!unknown.is_string()) return bad("model.unk_token is no string");
    const auto found = by_text_.find(unknown.get<std::string>());
    if (found == by_text_.end()) return bad("model.unk_token " + unknown.dump() + " is not in model.vocab");
    made_->unknown = found->second;
    return true;
  }

  bool read_merges(const json& merges) {
    if (!merges.is_array()) return bad("model.merges is no array");
    made_->merges.reserve(merges.size());
    std::int32_t rank = 0;
    for (const auto& merge : merges) {
      std::string left, right;
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else if (merge.is_string()) {
        const auto text = merge.get<std::string>();
        const auto space = text.find(' ');
        if (space == std::string::npos) return bad("model.merges[" + std::to_string(rank) + "] has no space");
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else {
        return bad("model.merges[" + std::to_string(rank) + "] is neither \"a b\" nor [\"a\", \"b\"]");
      }
      const auto a = by_text_.find(left), b = by_text_.find(right), both = by_text_.find(left + right);
      if (a == by_text_.end() || b == by_text_.end() || both == by_text_.end())
        return bad("model.merges[" + std::to_string(rank) + "] " + merge.dump() + " names a token that is not in model.vocab");
      made_->merges.add(a->second, b->second, {rank++, both->second});
    }
    return true;
  }

  bool read_added() {
    const auto& list = field(root_, "added_tokens");
    if (list.is_null()) return true;
    if (!list.is_array()) return bad("added_tokens is no array");
    for (const auto& entry : list) {
      const auto at = "added_tokens[" + std::to_string(made_->added_tokens.size()) + "]";
      if (!entry.is_object() || !field(entry, "content").is_string() || !field(entry, "id").is_number_integer())
        return bad(at + " lacks content or id");
      added_token t;
      t.content = entry["content"].get<std::string>();
      const auto id = entry["id"].get<std::int64_t>();
      if (t.content.empty()) return bad(at + ".content is empty");
      if (id < 0 || id > static_cast<std::int64_t>(made_->pieces.size() + list.size() + 65536))
        return bad(at + ".id " + std::to_string(id) + " is out of range");
      t.id = static_cast<token>(id);
      const auto known = by_text_.find(t.content);
      const bool taken = static_cast<std::size_t>(id) < taken_.size() && taken_[static_cast<std::size_t>(id)];
      if (taken && (known == by_text_.end() || known->second != t.id))
        return bad(at + ": the id " + std::to_string(id) + " belongs to another token");
      t.single_word = flag(entry, "single_word", false);
      t.lstrip = flag(entry, "lstrip", false);
      t.rstrip = flag(entry, "rstrip", false);
      t.special = flag(entry, "special", false);
      t.normalized = flag(entry, "normalized", !t.special);
      if (!place(t.id, t.content)) return false;
      taken_[static_cast<std::size_t>(id)] = true;
      by_text_.emplace(t.content, t.id);
      made_->special[static_cast<std::size_t>(id)] = t.special;
      made_->added_begins[static_cast<unsigned char>(t.content[0])] = true;
      made_->added_tokens.push_back(std::move(t));
    }
    std::stable_sort(made_->added_tokens.begin(), made_->added_tokens.end(),
                     [](const added_token& a, const added_token& b) { return a.content.size() > b.content.size(); });
    return true;
  }

  bool read_normalizer(const json& normalizer, const std::string& at) {
    if (normalizer.is_null()) return true;
    const auto type = type_of(normalizer);
    if (type == "NFC") return made_->nfc = true;
    if (type != "Sequence" || !field(normalizer, "normalizers").is_array())
      return bad(at + ".type is \"" + type + "\": NFC and Sequence are supported");
    for (const auto& inner : normalizer["normalizers"])
      if (!read_normalizer(inner, at + ".normalizers")) return false;
    return true;
  }

  bool read_pre_tokenizer(const json& pre, const std::string& at) {
    if (pre.is_null()) return true;
    const auto type = type_of(pre);
    if (type == "Sequence" && field(pre, "pretokenizers").is_array()) {
      for (const auto& inner : pre["pretokenizers"])
        if (!read_pre_tokenizer(inner, at + ".pretokenizers")) return false;
      return true;
    }
    if (type == "ByteLevel") {
      made_->add_prefix_space = flag(pre, "add_prefix_space", true);
      byte_level_ = true;
      return !flag(pre, "use_regex", true) || add_splitter(gpt2_pattern, false, at);
    }
    if (type != "Split") return bad(at + ".type is \"" + type + "\": Split, ByteLevel and Sequence are supported");
    const auto& pattern = field(field(pre, "pattern"), "Regex");
    if (!pattern.is_string()) return bad(at + ".pattern.Regex is missing");
    if (flag(pre, "invert", false)) return bad(at + ".invert is true: only false is supported");
    const auto& behavior = field(pre, "behavior");
    if (behavior != "Isolated" && behavior != "Removed")
      return bad(at + ".behavior is " + behavior.dump() + ": Isolated and Removed are supported");
    return add_splitter(pattern.get<std::string>(), behavior == "Removed", at);
  }

  bool add_splitter(const std::string& pattern, bool removed, const std::string& at) {
    auto compiled = splitter::compile(pattern, removed, at);
    if (!compiled) return bad(compiled.error().message);
    made_->splitters.push_back(std::move(*compiled));
    return true;
  }

  bool check_rest() {
    if (!byte_level_) return bad("pre_tokenizer has no ByteLevel: only byte-level BPE is supported");
    if (const auto& decoder = field(root_, "decoder"); !decoder.is_null() && type_of(decoder) != "ByteLevel")
      return bad("decoder.type is \"" + type_of(decoder) + "\": only ByteLevel is supported");
    return check_post(field(root_, "post_processor"));
  }

  bool check_post(const json& post) {
    if (post.is_null() || type_of(post) == "ByteLevel") return true;
    if (type_of(post) == "Sequence" && field(post, "processors").is_array())
      return std::all_of(post["processors"].begin(), post["processors"].end(), [this](const json& p) { return check_post(p); });
    return bad("post_processor.type is \"" + type_of(post) + "\": only ByteLevel is supported");
  }

  const json& root_;
  std::string origin_;
  std::string complaint_;
  byte_alphabet alphabet_;
  std::shared_ptr<tokenizer::impl> made_ = std::make_shared<tokenizer::impl>();
  std::unordered_map<std::string, token> by_text_;
  std::vector<bool> taken_;
  bool byte_level_ = false;
};

}  // namespace

result<std::shared_ptr<tokenizer::impl>> read_tokenizer(const json& root, const std::string& origin) {
  return reader(root, origin).read();
}

}  // namespace weir

// From tokenizer.json to the tables that encoding uses. Every field is checked; what is not supported is refused.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "nfc.hpp"
#include "tokenizer_impl.hpp"
#include "utf8.hpp"

namespace weir {

using json = nlohmann::json;

namespace {

constexpr token largest_id = 1 << 26;
constexpr int deepest = 8;  ///< sequences within sequences: a file that nests more is damaged

/// GPT-2's alphabet: which character stands for which byte. Printable Latin-1 stands for itself, the rest follows
/// U+0100.
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
      const auto found = bytes.find(utf8::code_of(text, s.length));
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
                      index_added() && read_pre_tokenizer(field(root_, "pre_tokenizer"), "pre_tokenizer") &&
                      check_rest();
    if (!good || !complaint_.empty()) return fail(errc::invalid_data, origin_ + ": " + complaint_);
    return made_;
  }

 private:
  static const json& field(const json& object, const char* name) {
    static const json nothing;
    const auto found = object.find(name);
    return found == object.end() ? nothing : *found;
  }
  /// Keeps the first complaint.
  bool bad(const std::string& what) {
    if (complaint_.empty()) complaint_ = what;
    return false;
  }
  /// A value for a message: what is nested is only named, as it may be deep.
  static std::string shown(const json& value) {
    return value.is_structured() ? "an " + std::string(value.type_name()) : value.dump();
  }
  /// A component's "type"; empty if it has none.
  static std::string type_of(const json& component) {
    if (!component.is_object()) return {};
    const auto& type = field(component, "type");
    return type.is_string() ? type.get<std::string>() : std::string{};
  }
  /// An optional true or false of the object that stands at `at`.
  bool flag(const json& object, const std::string& at, const char* name, bool fallback) {
    const auto& value = field(object, name);
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) return bad(at + "." + name + " is " + shown(value) + ", neither true nor false");
    return value.get<bool>();
  }

  bool place(token id, std::string bytes) {
    if (id < 0 || id > largest_id)
      return bad("token id " + std::to_string(id) + " is not from 0 to " + std::to_string(largest_id));
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
    for (const char* name : {"byte_fallback", "fuse_unk"})
      if (flag(model, "model", name, false))
        return bad(std::string("model.") + name + " is true: only false is supported");
    if (const auto& dropout = field(model, "dropout"); !dropout.is_null() && dropout != 0)
      return bad("model.dropout is " + shown(dropout) + ": only null is supported");
    made_->ignore_merges = flag(model, "model", "ignore_merges", false);
    return read_vocabulary(field(model, "vocab")) && read_unknown(field(model, "unk_token")) &&
           read_merges(field(model, "merges"));
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
        return bad("model.vocab: the id " + id.dump() + " of " + json(text).dump() + " is out of range for " +
                   std::to_string(count) + " entries");
      auto bytes = alphabet_.decode(text);
      const auto n = static_cast<token>(number);
      if (!place(n, bytes ? *bytes : text)) return false;
      if (taken_[static_cast<std::size_t>(n)]) return bad("model.vocab: two entries have the id " + std::to_string(n));
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
        return bad("model.merges[" + std::to_string(rank) + "] " + merge.dump() +
                   " names a token that is not in model.vocab");
      if (!made_->merges.add(a->second, b->second, {rank, both->second}))
        return bad("model.merges[" + std::to_string(rank) + "] " + merge.dump() + " stands there twice");
      ++rank;
    }
    return true;
  }

  bool read_added() {
    const auto& list = field(root_, "added_tokens");
    if (list.is_null()) return true;
    if (!list.is_array()) return bad("added_tokens is no array");
    std::set<std::string> contents;
    // HF does not read these ids but counts on from the vocabulary; where the file says otherwise the two would differ.
    auto next = static_cast<std::int64_t>(field(field(root_, "model"), "vocab").size());
    for (const auto& entry : list) {
      const auto at = "added_tokens[" + std::to_string(made_->added_tokens.size()) + "]";
      if (!entry.is_object() || !field(entry, "content").is_string() || !field(entry, "id").is_number_integer())
        return bad(at + " lacks content or id");
      added_token t;
      t.content = entry["content"].get<std::string>();
      const auto id = entry["id"].get<std::int64_t>();
      if (t.content.empty()) return bad(at + ".content is empty");
      if (!contents.insert(t.content).second)
        return bad(at + ".content " + entry["content"].dump() + " stands in added_tokens twice");
      const auto known = by_text_.find(t.content);
      const auto expected = known == by_text_.end() ? next : known->second;
      if (id != expected)
        return bad(at + ".id is " + entry["id"].dump() + ", but " + entry["content"].dump() + " has the id " +
                   std::to_string(expected) + (known == by_text_.end() ? ", the next one" : " in model.vocab"));
      next = std::max(next, id + 1);
      t.id = static_cast<token>(id);
      if (known == by_text_.end() && static_cast<std::size_t>(id) < taken_.size() &&
          taken_[static_cast<std::size_t>(id)])
        return bad(at + ".id " + std::to_string(id) + " belongs to another token");
      t.single_word = flag(entry, at, "single_word", false);
      t.lstrip = flag(entry, at, "lstrip", false);
      t.rstrip = flag(entry, at, "rstrip", false);
      t.special = flag(entry, at, "special", false);
      t.normalized = flag(entry, at, "normalized", !t.special);
      if (!place(t.id, t.content)) return false;
      taken_[static_cast<std::size_t>(id)] = true;
      by_text_.emplace(t.content, t.id);
      made_->special[static_cast<std::size_t>(id)] = t.special;
      made_->added_tokens.push_back(std::move(t));
    }
    return true;
  }

  // After the normalizer is known.
  bool index_added() {
    for (auto& t : made_->added_tokens) {
      t.matched = made_->nfc && t.normalized ? to_nfc(t.content) : t.content;
      made_->added_begins[static_cast<unsigned char>(t.matched[0])] = true;
    }
    std::stable_sort(made_->added_tokens.begin(), made_->added_tokens.end(),
                     [](const added_token& a, const added_token& b) { return a.matched.size() > b.matched.size(); });
    return true;
  }

  /// Calls `read(element, at, depth + 1)` for each of `list`.
  template <class Read>
  bool read_each(const json& list, const std::string& at, int depth, Read read) {
    if (depth >= deepest) return bad(at + " is nested too deep");
    for (std::size_t i = 0; i < list.size(); ++i)
      if (!read(list[i], at + "[" + std::to_string(i) + "]", depth + 1)) return false;
    return true;
  }

  bool read_normalizer(const json& normalizer, const std::string& at, int depth = 0) {
    if (normalizer.is_null()) return true;
    const auto type = type_of(normalizer);
    if (type == "NFC") return made_->nfc = true;
    const auto& list = field(normalizer, "normalizers");
    if (type != "Sequence" || !list.is_array())
      return bad(at + ".type is \"" + type + "\": NFC and Sequence are supported");
    return read_each(list, at + ".normalizers", depth, [this](auto&&... inner) { return read_normalizer(inner...); });
  }

  bool read_pre_tokenizer(const json& pre, const std::string& at, int depth = 0) {
    if (pre.is_null()) return true;
    const auto type = type_of(pre);
    if (const auto& list = field(pre, "pretokenizers"); type == "Sequence" && list.is_array())
      return read_each(list, at + ".pretokenizers", depth,
                       [this](auto&&... inner) { return read_pre_tokenizer(inner...); });
    if (type != "ByteLevel" && type != "Split")
      return bad(at + ".type is \"" + type + "\": Split, ByteLevel and Sequence are supported");
    // What comes after ByteLevel would see its alphabet in place of the text.
    if (byte_level_) return bad(at + ".type is \"" + type + "\", after a ByteLevel: nothing is supported there");
    return type == "Split" ? read_split(pre, at) : read_byte_level(pre, at);
  }

  bool read_byte_level(const json& pre, const std::string& at) {
    made_->add_prefix_space = flag(pre, at, "add_prefix_space", true);
    // There it would be one space for each piece.
    if (made_->add_prefix_space && !made_->splitters.empty())
      return bad(at + ".add_prefix_space is not false: after a Split, only false is supported");
    byte_level_ = true;
    return !flag(pre, at, "use_regex", true) || add_splitter(gpt2_pattern, false, at);
  }

  bool read_split(const json& pre, const std::string& at) {
    const auto& pattern = field(field(pre, "pattern"), "Regex");
    if (!pattern.is_string()) return bad(at + ".pattern.Regex is missing");
    if (flag(pre, at, "invert", false)) return bad(at + ".invert is true: only false is supported");
    const auto& behavior = field(pre, "behavior");
    if (behavior != "Isolated" && behavior != "Removed")
      return bad(at + ".behavior is " + shown(behavior) + ": Isolated and Removed are supported");
    return add_splitter(pattern.get<std::string>(), behavior == "Removed", at + ".pattern.Regex");
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
    for (const char* name : {"truncation", "padding"})
      if (const auto& value = field(root_, name); !value.is_null())
        return bad(std::string(name) + " is " + shown(value) + ": only null is supported");
    return check_post(field(root_, "post_processor"), "post_processor");
  }

  bool check_post(const json& post, const std::string& at, int depth = 0) {
    if (post.is_null() || type_of(post) == "ByteLevel") return true;
    if (const auto& list = field(post, "processors"); type_of(post) == "Sequence" && list.is_array())
      return read_each(list, at + ".processors", depth, [this](auto&&... inner) { return check_post(inner...); });
    return bad(at + ".type is \"" + type_of(post) + "\": only ByteLevel is supported");
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

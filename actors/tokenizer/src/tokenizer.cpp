#include "weir/tokenizer/tokenizer.hpp"

#include <utf8proc.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "nfc.hpp"
#include "tokenizer_impl.hpp"
#include "utf8.hpp"
#include "weir/runtime/files.hpp"

namespace weir {

namespace {

/// Where the white space that ends at `to` begins, not before `from`. `text` is valid UTF-8.
std::size_t space_before(std::string_view text, std::size_t from, std::size_t to) {
  for (;;) {
    auto start = to;
    while (start > from && (static_cast<unsigned char>(text[--start]) & 0xC0U) == 0x80U) {
    }
    if (start == to || utf8::space_length(text.substr(start, to - start)) == 0) return to;
    to = start;
  }
}

/// What regexes mean by \w: Alphabetic, marks, digits, connectors and joiners.
bool is_word(char32_t c) noexcept {
  auto in = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
  // Joiners, and the letters in circles and squares, which are Alphabetic though their category is "symbol".
  if (in(0x200C, 0x200D) || in(0x24B6, 0x24E9) || in(0x1F130, 0x1F149) || in(0x1F150, 0x1F169) || in(0x1F170, 0x1F189))
    return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

/// True if a character of a word ends before `from` or begins at `to`. `text` is valid UTF-8.
bool touches_word(std::string_view text, std::size_t from, std::size_t to) noexcept {
  if (to < text.size() && is_word(utf8::code_of(text.substr(to), utf8::next(text.substr(to)).length))) return true;
  if (from == 0) return false;
  auto start = from - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0U) == 0x80U) --start;
  return is_word(utf8::code_of(text.substr(start), from - start));
}

}  // namespace

template <class Plain, class Found>
void tokenizer::impl::split_added(std::string_view text, bool normalized, Plain plain, Found found) const {
  std::size_t start = 0, at = 0;
  while (at < text.size()) {
    const auto* match = added_at(text.substr(at), normalized);
    if (match == nullptr) {
      ++at;
      continue;
    }
    auto from = at, to = at + match->matched.size();
    at = to;
    if (match->single_word && touches_word(text, from, to)) continue;
    if (match->lstrip) from = space_before(text, start, from);
    if (match->rstrip)
      while (const auto n = utf8::space_length(text.substr(to))) to += n;
    if (from > start) plain(text.substr(start, from - start));
    found(match->id);
    start = at = to;
  }
  if (start < text.size()) plain(text.substr(start));
}

const added_token* tokenizer::impl::added_at(std::string_view text, bool normalized) const noexcept {
  if (!added_begins[static_cast<unsigned char>(text[0])]) return nullptr;
  for (const auto& t : added_tokens)
    if (t.normalized == normalized && text.starts_with(t.matched)) return &t;
  return nullptr;
}

void tokenizer::impl::encode(std::string_view text, bool added, std::vector<token>& out, std::string* lost) const {
  auto normalize_and_encode = [&](std::string_view part) {
    std::string composed;
    if (nfc && !utf8::is_ascii(part) && !is_plainly_nfc(part)) part = composed = to_nfc(part);
    auto plain = [&](std::string_view p) { encode_plain(p, out, lost); };
    if (added)
      split_added(part, true, plain, [&](token id) { out.push_back(id); });
    else
      plain(part);
  };
  if (added)
    split_added(text, false, normalize_and_encode, [&](token id) { out.push_back(id); });
  else if (!text.empty())
    normalize_and_encode(text);
}

void tokenizer::impl::encode_plain(std::string_view text, std::vector<token>& out, std::string* lost) const {
  std::string prefixed;
  if (add_prefix_space && !text.starts_with(' ')) text = prefixed = " " + std::string(text);
  std::vector<std::string_view> words{text}, next;
  for (const auto& s : splitters) {
    next.clear();
    if (words.size() == 1) next.reserve(words[0].size() / 4 + 4);
    for (auto w : words) s.split(w, next);
    words.swap(next);
  }
  std::vector<token> scratch;
  for (auto w : words) encode_word(w, scratch, out, lost);
}

void tokenizer::impl::encode_word(std::string_view word, std::vector<token>& scratch, std::vector<token>& out,
                                  std::string* lost) const {
  if (ignore_merges)
    if (auto whole = ids.find(std::string(word)); whole != ids.end()) {
      out.push_back(whole->second);
      return;
    }
  scratch.clear();
  for (char c : word) {
    const auto id = byte_ids[static_cast<unsigned char>(c)];
    if (id >= 0) {
      scratch.push_back(id);
      continue;
    }
    if (unknown) scratch.push_back(*unknown);
    if (lost != nullptr) lost->push_back(c);
  }
  merges.apply(scratch);
  out.insert(out.end(), scratch.begin(), scratch.end());
}

result<tokenizer> tokenizer::parse(std::string_view json, const std::string& origin) {
  auto parsed = parse_json(json, origin);
  if (!parsed) return fail(parsed.error());
  auto read = read_tokenizer(*parsed, origin);
  if (!read) return fail(read.error());
  return tokenizer(std::move(*read));
}

result<tokenizer> tokenizer::load(const std::filesystem::path& path) {
  std::error_code ignored;  // what cannot be looked at cannot be read either, which says why
  const bool folder = std::filesystem::is_directory(path, ignored);
  const auto file = folder ? path / "tokenizer.json" : path;
  auto text = read_file(file, std::uint64_t{1} << 28);
  if (!text) return fail(text.error());
  auto made = parse(*text, file.string());
  const auto config = path / "tokenizer_config.json";
  if (!made || !folder || !std::filesystem::exists(config, ignored)) return made;
  auto about = read_json_file(config);
  if (!about) return fail(about.error());
  auto eos = about->find("eos_token");
  if (eos == about->end() || eos->is_null()) return made;
  if (eos->is_object() && eos->contains("content")) eos = eos->find("content");
  if (!eos->is_string())
    return fail(errc::invalid_data, config.string() + ": eos_token is neither a string nor an object with content");
  made->eos_ = made->id_of(eos->get<std::string>());
  if (!made->eos_)
    return fail(errc::invalid_data, config.string() + ": eos_token " + eos->dump() + " is not in the vocabulary");
  return made;
}

std::vector<token> tokenizer::encode(std::string_view text, bool added, std::string* lost) const {
  std::vector<token> out;
  out.reserve(text.size() / 3 + 8);
  if (utf8::is_ascii(text))
    impl_->encode(text, added, out, lost);
  else
    impl_->encode(utf8::repaired(text), added, out, lost);
  return out;
}

std::string tokenizer::decode(std::span<const token> tokens, bool skip_special) const {
  std::string raw;
  for (auto id : tokens)
    if (!skip_special || !is_special(id)) raw.append(bytes(id));
  return utf8::is_ascii(raw) ? raw : utf8::repaired(raw);
}

std::string_view tokenizer::bytes(token id) const noexcept {
  return id >= 0 && static_cast<std::size_t>(id) < impl_->pieces.size() ? impl_->pieces[static_cast<std::size_t>(id)]
                                                                        : std::string_view{};
}

std::optional<token> tokenizer::id_of(std::string_view content) const {
  for (const auto& t : impl_->added_tokens)
    if (t.content == content) return t.id;
  auto found = impl_->ids.find(std::string(content));
  return found == impl_->ids.end() ? std::nullopt : std::optional(found->second);
}

bool tokenizer::is_special(token id) const noexcept {
  return id >= 0 && static_cast<std::size_t>(id) < impl_->special.size() &&
         impl_->special[static_cast<std::size_t>(id)];
}

std::size_t tokenizer::size() const noexcept { return impl_->pieces.size(); }
std::optional<token> tokenizer::eos() const noexcept { return eos_; }

std::string stream_decoder::next(token id) {
  if (!skip_special_ || !text_.is_special(id)) pending_.append(text_.bytes(id));
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const auto s = utf8::next(rest);
    if (s.cut) break;
    if (s.valid)
      out.append(rest.substr(0, s.length));
    else
      out.append("\xEF\xBF\xBD");
    rest.remove_prefix(s.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

std::string stream_decoder::finish() { return utf8::repaired(std::exchange(pending_, {})); }

}  // namespace weir

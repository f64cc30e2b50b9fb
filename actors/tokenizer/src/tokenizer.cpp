#include "weir/tokenizer/tokenizer.hpp"

#include <utf8proc.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tokenizer_impl.hpp"
#include "utf8.hpp"
#include "weir/runtime/files.hpp"

namespace weir {

namespace {

std::string to_nfc(std::string_view text) {
  utf8proc_uint8_t* composed = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &composed,
                                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) throw std::runtime_error(std::string("NFC: ") + utf8proc_errmsg(length));
  std::string out(reinterpret_cast<char*>(composed), static_cast<std::size_t>(length));
  std::free(composed);  // NOLINT(cppcoreguidelines-no-malloc): utf8proc's contract
  return out;
}

bool is_space(std::string_view text, std::size_t at) {
  return at < text.size() && (text[at] == ' ' || (text[at] >= '\t' && text[at] <= '\r'));
}

bool is_word(std::string_view text, std::size_t at) {
  if (at >= text.size()) return false;
  const auto c = static_cast<unsigned char>(text[at]);
  return c >= 0x80 || c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

}  // namespace

template <class Plain, class Found>
void tokenizer::impl::split_added(std::string_view text, bool normalized, Plain plain, Found found) const {
  std::size_t start = 0, at = 0;
  while (at < text.size()) {
    const added_token* match = nullptr;
    if (added_begins[static_cast<unsigned char>(text[at])])
      for (const auto& t : added_tokens)
        if (t.normalized == normalized && text.substr(at).starts_with(t.content)) {
          const auto end = at + t.content.size();
          if (t.single_word && ((at > 0 && is_word(text, at - 1)) || is_word(text, end))) continue;
          match = &t;
          break;
        }
    if (match == nullptr) {
      ++at;
      continue;
    }
    auto from = at, to = at + match->content.size();
    if (match->lstrip)
      while (from > start && is_space(text, from - 1)) --from;
    if (match->rstrip)
      while (is_space(text, to)) ++to;
    if (from > start) plain(text.substr(start, from - start));
    found(match->id);
    start = at = to;
  }
  if (start < text.size()) plain(text.substr(start));
}

void tokenizer::impl::encode(std::string_view text, bool added, std::vector<token>& out) const {
  auto normalize_and_encode = [&](std::string_view part) {
    std::string composed;
    if (nfc && !utf8::is_ascii(part)) part = composed = to_nfc(part);
    auto plain = [&](std::string_view p) { encode_plain(p, out); };
    if (added) split_added(part, true, plain, [&](token id) { out.push_back(id); });
    else plain(part);
  };
  if (added) split_added(text, false, normalize_and_encode, [&](token id) { out.push_back(id); });
  else if (!text.empty()) normalize_and_encode(text);
}

void tokenizer::impl::encode_plain(std::string_view text, std::vector<token>& out) const {
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
  for (auto w : words) encode_word(w, scratch, out);
}

void tokenizer::impl::encode_word(std::string_view word, std::vector<token>& scratch, std::vector<token>& out) const {
  if (ignore_merges)
    if (auto whole = ids.find(std::string(word)); whole != ids.end()) {
      out.push_back(whole->second);
      return;
    }
  scratch.clear();
  for (char c : word) {
    const auto id = byte_ids[static_cast<unsigned char>(c)];
    if (id >= 0) scratch.push_back(id);
    else if (unknown) scratch.push_back(*unknown);
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
  const bool folder = std::filesystem::is_directory(path);
  const auto file = folder ? path / "tokenizer.json" : path;
  auto text = read_file(file, std::uint64_t{1} << 28);
  if (!text) return fail(text.error());
  auto made = parse(*text, file.string());
  const auto config = path / "tokenizer_config.json";
  if (!made || !folder || !std::filesystem::exists(config)) return made;
  auto about = read_json_file(config);
  if (!about) return fail(about.error());
  if (auto eos = about->find("eos_token"); eos != about->end()) {
    if (eos->is_object() && eos->contains("content")) eos = eos->find("content");
    if (eos->is_string()) {
      made->eos_ = made->id_of(eos->get<std::string>());
      if (!made->eos_)
        return fail(errc::invalid_data, config.string() + ": eos_token " + eos->dump() + " is not in the vocabulary");
    }
  }
  return made;
}

std::vector<token> tokenizer::encode(std::string_view text, bool added) const {
  std::vector<token> out;
  out.reserve(text.size() / 3 + 8);
  if (utf8::is_ascii(text)) impl_->encode(text, added, out);
  else impl_->encode(utf8::repaired(text), added, out);
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
  return id >= 0 && static_cast<std::size_t>(id) < impl_->special.size() && impl_->special[static_cast<std::size_t>(id)];
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
    if (s.valid) out.append(rest.substr(0, s.length));
    else out.append("\xEF\xBF\xBD");
    rest.remove_prefix(s.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

std::string stream_decoder::finish() { return utf8::repaired(std::exchange(pending_, {})); }

}  // namespace weir

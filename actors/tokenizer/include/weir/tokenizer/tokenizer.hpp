#pragma once
// Byte-level BPE as Hugging Face's tokenizers library does it, from tokenizer.json. What a file may ask for and is not
// supported is refused when it is loaded, never ignored. Tokens can differ from HF's only at characters that are newer
// than one side's Unicode tables (here PCRE2's and utf8proc's).

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weir/actors/types.hpp"
#include "weir/transport/result.hpp"

namespace weir {

/// Immutable once made: const member functions may run in several threads at once. Cheap to copy.
class tokenizer {
 public:
  /// Reads `path`, or tokenizer.json in it if it is a folder; there, tokenizer_config.json names the end token.
  static result<tokenizer> load(const std::filesystem::path& path);

  /// From the text of a tokenizer.json; `origin` is what errors call it.
  static result<tokenizer> parse(std::string_view json, const std::string& origin);

  /// Added tokens, special ones included, are recognised in the text, as HF does by default; with `added` false they
  /// are text like any other: for text that is not to be trusted. Invalid UTF-8 becomes U+FFFD first. A byte that the
  /// vocabulary does not have becomes the unknown token, or nothing if there is none; it is appended to `lost`, if that
  /// is given.
  std::vector<token> encode(std::string_view text, bool added = true, std::string* lost = nullptr) const;

  /// Ids outside the vocabulary are passed over. Bytes that are no UTF-8 become U+FFFD.
  std::string decode(std::span<const token> tokens, bool skip_special = false) const;

  /// The bytes that a token stands for, which may be a part of a character; empty if there is no such token.
  std::string_view bytes(token id) const noexcept;

  /// An added token's id by its content, or a vocabulary entry's by its bytes.
  std::optional<token> id_of(std::string_view content) const;

  bool is_special(token id) const noexcept;

  /// One more than the largest id.
  std::size_t size() const noexcept;

  /// tokenizer_config.json's eos_token, if it was read.
  std::optional<token> eos() const noexcept;

  class impl;

 private:
  explicit tokenizer(std::shared_ptr<const impl> i) : impl_(std::move(i)) {}
  std::shared_ptr<const impl> impl_;
  std::optional<token> eos_;
};

/// Decodes token by token: text comes out as soon as its characters are whole.
class stream_decoder {
 public:
  explicit stream_decoder(tokenizer text, bool skip_special = true)
      : text_(std::move(text)), skip_special_(skip_special) {}
  /// The characters that this token completes; may be empty.
  std::string next(token id);
  /// What is left at the end, with U+FFFD for an unfinished character.
  std::string finish();

 private:
  tokenizer text_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace weir

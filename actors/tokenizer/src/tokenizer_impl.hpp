#pragma once
#include <array>
#include <nlohmann/json_fwd.hpp>
#include <unordered_map>

#include "bpe.hpp"
#include "splitter.hpp"
#include "weir/tokenizer/tokenizer.hpp"

namespace weir {

struct added_token {
  token id = 0;
  std::string content;
  std::string matched;  ///< what is looked for: the content, normalized if the text is
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

class tokenizer::impl {
 public:
  /// Bytes that have no token are appended to `lost`, if it is not null; so below.
  void encode(std::string_view text, bool added, std::vector<token>& out, std::string* lost) const;

  // Filled by the reader (read_tokenizer.cpp), constant after that.
  bool nfc = false;
  bool add_prefix_space = false;
  bool ignore_merges = false;
  std::vector<splitter> splitters;
  std::vector<std::string> pieces;             ///< by id: the bytes it stands for
  std::unordered_map<std::string, token> ids;  ///< the vocabulary by bytes
  std::array<token, 256> byte_ids{};           ///< -1: the vocabulary lacks this byte
  std::optional<token> unknown;
  bpe merges;
  std::vector<added_token> added_tokens;  ///< longest first
  std::vector<bool> special;              ///< by id
  std::array<bool, 256> added_begins{};   ///< bytes that begin an added token

 private:
  void encode_plain(std::string_view text, std::vector<token>& out, std::string* lost) const;
  void encode_word(std::string_view word, std::vector<token>& scratch, std::vector<token>& out,
                   std::string* lost) const;
  /// The longest added token of one kind that `text`, not empty, begins with; null if none.
  const added_token* added_at(std::string_view text, bool normalized) const noexcept;
  /// Calls plain(part) and found(token) in order for the added tokens of one kind.
  template <class Plain, class Found>
  void split_added(std::string_view text, bool normalized, Plain plain, Found found) const;
};

/// Reads a tokenizer.json.
result<std::shared_ptr<tokenizer::impl>> read_tokenizer(const nlohmann::json& json, const std::string& origin);

}  // namespace weir

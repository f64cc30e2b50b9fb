#pragma once
// One pre-tokenizer regex, compiled by PCRE2: divides text into pieces that are merged separately.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weir/transport/result.hpp"

namespace weir {

class splitter {
 public:
  /// `removed`: what the pattern matches is dropped (HF's behavior "Removed"); else it is a piece of its own
  /// ("Isolated").
  static result<splitter> compile(const std::string& pattern, bool removed, const std::string& origin);

  /// Appends the pieces of `text`, valid UTF-8, to `to`, in order. Thread-safe.
  void split(std::string_view text, std::vector<std::string_view>& to) const;

 private:
  std::shared_ptr<void> code_;
  bool removed_ = false;
};

/// The pattern that ByteLevel uses by itself (GPT-2's).
extern const char* const gpt2_pattern;

}  // namespace weir

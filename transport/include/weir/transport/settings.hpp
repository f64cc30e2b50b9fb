#pragma once
// A transport's settings as text, as a config file or a command line has them, and how a transport reads them.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "weir/transport/result.hpp"

namespace weir {

/// Key to value. What keys there are is the transport's to say.
using transport_settings = std::map<std::string, std::string>;

/// Reads settings into variables, which keep what they hold where a key is missing:
///
///   settings_reader r("mine", settings);
///   r.number("streams", s.streams, 1, 64).flag("shared_memory", s.shared_memory);
///   if (auto read = r.end(); !read) return fail(read.error());
class settings_reader {
 public:
  static constexpr std::uint64_t any = std::numeric_limits<std::uint64_t>::max();

  /// `of` is the transport's name, for errors.
  settings_reader(std::string of, const transport_settings& settings) : of_(std::move(of)), settings_(settings) {}

  settings_reader& text(const std::string& key, std::string& into, std::size_t longest);
  settings_reader& number(const std::string& key, std::size_t& into, std::uint64_t least, std::uint64_t most = any);
  /// A number with "k", "m" or "g" after it, or without: bytes.
  settings_reader& bytes(const std::string& key, std::size_t& into, std::uint64_t least, std::uint64_t most = any);
  settings_reader& milliseconds(const std::string& key, std::chrono::milliseconds& into, std::uint64_t least);
  /// on, off, true, false.
  settings_reader& flag(const std::string& key, bool& into);

  /// invalid_config if a value is wrong or a key is none of those that were asked for: all of them, with the nearest
  /// right name.
  result<void> end() const;

 private:
  const std::string* value_of(const std::string& key);
  void wrong(const std::string& key, const std::string& what);
  settings_reader& integer(const std::string& key, bool with_unit, std::uint64_t least, std::uint64_t most,
                           const std::function<void(std::uint64_t)>& take);

  std::string of_;
  const transport_settings& settings_;
  std::vector<std::string> keys_;
  std::vector<std::string> wrongs_;
};

/// The one of `names` that differs least from `name`, if it is near; else empty.
std::string nearest_name(const std::string& name, const std::vector<std::string>& names);

}  // namespace weir

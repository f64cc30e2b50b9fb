#include "weir/transport/settings.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>

namespace weir {

namespace {

/// Levenshtein's distance.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    auto corner = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j)
      corner = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, corner + (a[i - 1] == b[j - 1] ? 0 : 1)}));
  }
  return row.back();
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const auto& w : words) text += (text.empty() ? "" : between) + w;
  return text;
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<std::string>& names) {
  std::string nearest;
  std::size_t least = std::max<std::size_t>(2, name.size() / 2);
  for (const auto& n : names)
    if (const auto d = distance(name, n); d <= least && (nearest.empty() || d < least)) {
      nearest = n;
      least = d;
    }
  return nearest;
}

const std::string* settings_reader::value_of(const std::string& key) {
  keys_.push_back(key);
  const auto found = settings_.find(key);
  return found == settings_.end() ? nullptr : &found->second;
}

void settings_reader::wrong(const std::string& key, const std::string& what) {
  wrongs_.push_back(key + " " + what + ", found \"" + settings_.at(key) + "\"");
}

settings_reader& settings_reader::text(const std::string& key, std::string& into, std::size_t longest) {
  if (const auto* value = value_of(key)) {
    if (value->size() > longest)
      wrong(key, "has at most " + std::to_string(longest) + " bytes");
    else
      into = *value;
  }
  return *this;
}

settings_reader& settings_reader::integer(const std::string& key, bool with_unit, std::uint64_t least,
                                          std::uint64_t most, const std::function<void(std::uint64_t)>& take) {
  const auto* value = value_of(key);
  if (value == nullptr) return *this;
  std::uint64_t number = 0;
  const auto* end = value->data() + value->size();
  auto [rest, failed] = std::from_chars(value->data(), end, number);
  unsigned shift = 0;
  if (with_unit && failed == std::errc{} && end - rest == 1) {
    shift = *rest == 'k' ? 10 : *rest == 'm' ? 20 : *rest == 'g' ? 30 : 0;
    rest += shift > 0 ? 1 : 0;
  }
  const bool fits = number <= (any >> shift) && (number << shift) >= least && (number << shift) <= most;
  if (failed != std::errc{} || rest != end || !fits)
    wrong(key, std::string("is a number") + (with_unit ? " of bytes, such as 65536, 64k or 1m," : "") +
                   " of at least " + std::to_string(least) +
                   (most == any ? "" : " and at most " + std::to_string(most)));
  else
    take(number << shift);
  return *this;
}

settings_reader& settings_reader::number(const std::string& key, std::size_t& into, std::uint64_t least,
                                         std::uint64_t most) {
  return integer(key, false, least, most, [&](std::uint64_t n) { into = n; });
}

settings_reader& settings_reader::bytes(const std::string& key, std::size_t& into, std::uint64_t least,
                                        std::uint64_t most) {
  return integer(key, true, least, most, [&](std::uint64_t n) { into = n; });
}

settings_reader& settings_reader::milliseconds(const std::string& key, std::chrono::milliseconds& into,
                                               std::uint64_t least) {
  return integer(key, false, least, 1U << 30U, [&](std::uint64_t n) { into = std::chrono::milliseconds(n); });
}

settings_reader& settings_reader::flag(const std::string& key, bool& into) {
  if (const auto* value = value_of(key)) {
    if (*value == "on" || *value == "true")
      into = true;
    else if (*value == "off" || *value == "false")
      into = false;
    else
      wrong(key, "is on or off");
  }
  return *this;
}

result<void> settings_reader::end() const {
  auto wrongs = wrongs_;
  for (const auto& [key, value] : settings_) {
    if (std::find(keys_.begin(), keys_.end(), key) != keys_.end()) continue;
    const auto meant = nearest_name(key, keys_);
    wrongs.push_back("there is no setting \"" + key + "\"" +
                     (meant.empty() ? "." : "; did you mean \"" + meant + "\"?") +
                     (keys_.empty() ? " It has none." : " It has: " + joined(keys_, ", ")));
  }
  if (wrongs.empty()) return {};
  return fail(errc::invalid_config, "transport " + of_ + ": " + joined(wrongs, "; "));
}

}  // namespace weir

#include "config_names.hpp"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <optional>

#include "weir/runtime/names.hpp"

namespace weir::detail {

namespace {

/// Lower case, with '_' between words (also those of camelCase): how names are compared.
std::string plain(const std::string& name) {
  std::string out;
  bool after_lower = false;
  for (unsigned char c : name) {
    if (after_lower && std::isupper(c) != 0) out += '_';
    after_lower = std::islower(c) != 0;
    out += c == '-' || c == ' ' ? '_' : static_cast<char>(std::tolower(c));
  }
  return out;
}

/// A name from a file, fit for one line of text.
std::string printable(const std::string& name) {
  const bool plain_text = std::none_of(name.begin(), name.end(), [](unsigned char c) { return std::iscntrl(c) != 0; });
  return plain_text ? name : nlohmann::json(name).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string initials(const std::string& name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i)
    if (name[i] != '_' && (i == 0 || name[i - 1] == '_')) out += name[i];
  return out;
}

/// Insertions, deletions, substitutions and swaps of neighbours that lead from `a` to `b`.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before_last, last(b.size() + 1), now(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = std::min(now[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last = now;
  }
  return last[b.size()];
}

bool whole_words_of(const std::string& part, const std::string& name) {
  return !part.empty() && ("_" + name + "_").find("_" + part + "_") != std::string::npos;
}

/// How far `right` is from what was written; nothing if it is too far to be meant.
std::optional<std::size_t> distance(const std::string& written, const std::string& right) {
  if (written.size() > 64) return std::nullopt;  // no name is that long
  if (written == right) return 0;
  const auto edits = edit_distance(written, right);
  if (edits <= std::max<std::size_t>(1, std::max(written.size(), right.size()) / 3)) return edits;
  if (right.size() > 1 && initials(written) == right) return 4;
  if (written.size() > 1 && initials(right) == written) return 4;
  if (whole_words_of(written, right) || whole_words_of(right, written)) return 5;
  return std::nullopt;
}

struct candidate {
  std::string path;
  std::size_t score;
};

/// Candidates at the level itself win over equally near ones elsewhere.
void gather(const std::vector<config_field>& fields, const std::string& prefix, const std::string& here,
            const std::string& written, std::optional<candidate>& best) {
  for (const auto& field : fields) {
    const auto path = prefix.empty() ? field.name : prefix + "." + field.name;
    if (auto far = distance(written, plain(field.name))) {
      const auto score = *far * 2 + (prefix == here ? 0 : 1);
      if (!best || score < best->score) best = candidate{path, score};
    }
    gather(field.fields, path, here, written, best);
  }
}

}  // namespace

std::string names_of(const std::vector<config_field>& fields) {
  std::string text;
  for (const auto& field : fields) text += (text.empty() ? "" : ", ") + field.name;
  return text;
}

std::string unknown_field(const std::vector<config_field>& all, const std::vector<config_field>& level,
                          const std::string& prefix, const std::string& name) {
  const auto problem = "unknown field " + (prefix.empty() ? "" : prefix + ".") + printable(name);
  if (name.find('.') != std::string::npos) return problem + "; a dot names no inner field in a file: nest the objects";
  std::optional<candidate> best;
  gather(all, "", prefix, plain(name), best);
  if (best) return problem + "; did you mean " + best->path + "?";
  return problem + "; " + (prefix.empty() ? "the config" : prefix) + " has " + names_of(level);
}

}  // namespace weir::detail

std::optional<std::string> weir::nearest_name(const std::string& written, std::span<const std::string> names) {
  std::optional<std::string> best;
  std::size_t least = 0;
  for (const auto& name : names)
    if (const auto far = detail::distance(detail::plain(written), detail::plain(name));
        far && (!best || *far < least)) {
      best = name;
      least = *far;
    }
  return best;
}

#include "weir/runtime/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "weir/runtime/descriptor.hpp"

namespace weir {

namespace fs = std::filesystem;

namespace {

/// Line and column, from 1, of a byte offset in a text that begins in line `first_line`.
std::string place_in(std::string_view text, std::size_t offset, std::size_t first_line) {
  const auto before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const auto start = before.rfind('\n');
  const auto column = start == std::string_view::npos ? before.size() + 1 : before.size() - start;
  return std::to_string(line + static_cast<std::ptrdiff_t>(first_line) - 1) + ":" + std::to_string(column);
}

/// Reads a text again, of which the JSON library says that it holds a number beyond a double, to learn which one: it
/// tells that only to the one who hears of each value.
class overflow_finder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::size_t offset() const noexcept { return offset_; }
  const std::string& literal() const noexcept { return literal_; }
  /// Such as "trainer.lr" or "layers[3]"; empty for a number that stands alone.
  std::string field() const {
    std::string text;
    for (const auto& at : open_)
      text += at.array ? "[" + std::to_string(at.index) + "]" : (text.empty() ? "" : ".") + at.key;
    return text;
  }

  bool null() override { return passed(); }
  bool boolean(bool) override { return passed(); }
  bool number_integer(number_integer_t) override { return passed(); }
  bool number_unsigned(number_unsigned_t) override { return passed(); }
  bool number_float(number_float_t, const string_t&) override { return passed(); }
  bool string(string_t&) override { return passed(); }
  bool binary(binary_t&) override { return passed(); }
  bool start_object(std::size_t) override { return open(false); }
  bool start_array(std::size_t) override { return open(true); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    open_.back().key = name;
    return true;
  }
  bool parse_error(std::size_t end, const std::string& literal, const nlohmann::json::exception&) override {
    literal_ = literal;
    offset_ = end - std::min(end, literal.size());
    return false;
  }

 private:
  struct level {
    bool array = false;
    std::size_t index = 0;
    std::string key;
  };
  bool passed() {
    if (!open_.empty()) ++open_.back().index;
    return true;
  }
  bool open(bool array) {
    open_.push_back({array, 0, {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return passed();
  }

  std::vector<level> open_;
  std::size_t offset_ = 0;
  std::string literal_;
};

/// The library's text without its own numbering of errors.
std::string reason_of(const nlohmann::json::exception& e) {
  const std::string text = first_line(e.what());
  const auto end = text.find("] ");
  return text.starts_with('[') && end != std::string::npos ? text.substr(end + 2) : text;
}

/// A whole text, or line `line` of it alone.
result<nlohmann::json> parse_from(std::string_view text, const std::string& origin, std::optional<std::size_t> line) {
  using json = nlohmann::json;
  auto bad = [&](std::size_t offset, const std::string& why) {
    return fail(errc::invalid_data, origin + ":" + place_in(text, offset, line.value_or(1)) + ": " + why);
  };
  const auto somewhere = origin + (line ? ":" + std::to_string(*line) : "") + ": ";
  // The library takes a NUL for the end of the text, and would pass over what follows.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos)
    return bad(nul, "a NUL byte: the file is damaged, or no text");
  std::vector<std::set<std::string>> open;
  std::string twice;
  auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end && !open.empty()) open.pop_back();
    if (event == json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second && twice.empty())
      twice = value.get<std::string>();
    return true;
  };
  try {
    auto value = json::parse(text.begin(), text.end(), watch);
    if (!twice.empty())
      return fail(errc::invalid_data, somewhere + "the key \"" + twice + "\" stands twice in one object");
    return value;
  } catch (const json::parse_error& e) {
    auto reason = reason_of(e);
    if (auto at = reason.find(": "); at != std::string::npos) reason = reason.substr(at + 2);
    return bad(e.byte == 0 ? 0 : e.byte - 1, reason);
  } catch (const json::out_of_range&) {
    overflow_finder finder;
    json::sax_parse(text.begin(), text.end(), &finder);
    const auto field = finder.field();
    return bad(finder.offset(), (field.empty() ? "" : field + ": ") + "the number " + finder.literal() +
                                    " is beyond what a double holds");
  } catch (const json::exception& e) {
    return fail(errc::invalid_data, somewhere + reason_of(e));
  }
}

}  // namespace

int write_all(int fd, std::string_view bytes) noexcept {
  while (!bytes.empty()) {
    const auto written = ::write(fd, bytes.data(), std::min<std::size_t>(bytes.size(), std::size_t{1} << 30));
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

error os_error(const std::string& what, int number) {
  const auto code = number == ENOENT ? errc::not_found : errc::io;
  return {code, what + ": " + std::generic_category().message(number)};
}

result<void> sync_folder(const fs::path& folder) {
  descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0) return fail(os_error(folder.string(), errno));
  return {};
}

result<void> write_file_atomically(const fs::path& path, std::span<const std::string_view> parts) {
  auto beside = path;
  beside += ".partial-" + std::to_string(::getpid());
  auto written = [&]() -> int {
    descriptor fd(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (fd.get() < 0) return errno;
    for (auto part : parts)
      if (int e = write_all(fd.get(), part); e != 0) return e;
    return ::fsync(fd.get()) == 0 ? 0 : errno;
  }();
  if (written == 0 && ::rename(beside.c_str(), path.c_str()) != 0) written = errno;
  if (written != 0) {
    ::unlink(beside.c_str());
    return fail(os_error("cannot write " + path.string(), written));
  }
  return sync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

result<void> write_file_atomically(const fs::path& path, std::string_view content) {
  return write_file_atomically(path, std::span<const std::string_view>(&content, 1));
}

result<std::string> read_file(const fs::path& path, std::uint64_t most) {
  descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return fail(os_error("cannot read " + path.string(), errno));
  struct stat about {};
  if (::fstat(fd.get(), &about) != 0) return fail(os_error("cannot read " + path.string(), errno));
  if (S_ISDIR(about.st_mode)) return fail(os_error("cannot read " + path.string(), EISDIR));
  if (static_cast<std::uint64_t>(about.st_size) > most)
    return fail(errc::invalid_data,
                path.string() + " has " + std::to_string(about.st_size) + " bytes, more than " + std::to_string(most));
  std::string content;
  content.reserve(static_cast<std::size_t>(about.st_size));
  char block[1 << 16];
  for (;;) {
    const auto got = ::read(fd.get(), block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(os_error("cannot read " + path.string(), errno));
    if (got == 0) return content;
    content.append(block, static_cast<std::size_t>(got));
    if (content.size() > most)
      return fail(errc::invalid_data, path.string() + " has more than " + std::to_string(most) + " bytes");
  }
}

result<nlohmann::json> parse_json(std::string_view text, const std::string& origin) {
  return parse_from(text, origin, std::nullopt);
}

result<nlohmann::json> read_json_file(const fs::path& path) {
  auto text = read_file(path);
  if (!text) return fail(text.error());
  return parse_json(*text, path.string());
}

result<std::vector<std::string>> read_jsonl_file(const fs::path& path) {
  auto text = read_file(path, std::uint64_t{1} << 36);
  if (!text) return fail(text.error());
  std::string_view rest = *text;
  if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);
  std::vector<std::string> lines;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const auto end = rest.find('\n');
    auto line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    auto value = parse_from(line, path.string(), number);
    if (!value) return fail(value.error());
    lines.push_back(value->dump());
  }
  return lines;
}

}  // namespace weir

#include "weir/runtime/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <system_error>
#include <utility>

#include "weir/runtime/descriptor.hpp"

namespace weir {

namespace fs = std::filesystem;

namespace {

/// Line and column, from 1, of a byte offset.
std::string place_in(std::string_view text, std::size_t offset) {
  const auto before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const auto start = before.rfind('\n');
  const auto column = start == std::string_view::npos ? before.size() + 1 : before.size() - start;
  return std::to_string(line) + ":" + std::to_string(column);
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
  struct stat about{};
  if (::fstat(fd.get(), &about) != 0) return fail(os_error("cannot read " + path.string(), errno));
  if (S_ISDIR(about.st_mode)) return fail(os_error("cannot read " + path.string(), EISDIR));
  if (static_cast<std::uint64_t>(about.st_size) > most)
    return fail(errc::invalid_data, path.string() + " has " + std::to_string(about.st_size) + " bytes, more than " +
                                        std::to_string(most));
  std::string content;
  content.reserve(static_cast<std::size_t>(about.st_size));
  char block[1 << 16];
  for (;;) {
    const auto got = ::read(fd.get(), block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(os_error("cannot read " + path.string(), errno));
    if (got == 0) return content;
    content.append(block, static_cast<std::size_t>(got));
    if (content.size() > most) return fail(errc::invalid_data, path.string() + " has more than " + std::to_string(most) + " bytes");
  }
}

result<nlohmann::json> parse_json(std::string_view text, const std::string& origin) {
  using json = nlohmann::json;
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
    if (!twice.empty()) return fail(errc::invalid_data, origin + ": the key \"" + twice + "\" stands twice in one object");
    return value;
  } catch (const json::parse_error& e) {
    std::string reason = e.what();
    if (auto at = reason.find("parse error"); at != std::string::npos) reason = reason.substr(at);
    if (auto at = reason.find(": "); at != std::string::npos) reason = reason.substr(at + 2);
    return fail(errc::invalid_data, origin + ":" + place_in(text, e.byte == 0 ? 0 : e.byte - 1) + ": " + reason);
  } catch (const json::exception& e) {
    return fail(errc::invalid_data, origin + ": " + e.what());
  }
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
    auto value = parse_json(line, path.string() + " line " + std::to_string(number));
    if (!value) return fail(value.error());
    lines.push_back(value->dump());
  }
  return lines;
}

}  // namespace weir

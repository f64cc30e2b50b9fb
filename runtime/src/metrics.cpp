#include "weir/runtime/metrics.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <string_view>

#include "weir/runtime/files.hpp"

namespace weir {

namespace {

using nlohmann::json;

/// Whether a line is beyond no mark; nothing if it has none of their fields.
std::optional<bool> is_within(const json& line, std::span<const metrics_mark> marks) {
  std::optional<bool> within;
  for (const auto& mark : marks)
    if (const auto at = line.find(mark.field); at != line.end() && at->is_number())
      within = within.value_or(true) && at->get<double>() <= static_cast<double>(mark.through);
  return within;
}

/// The part of a metrics file that a run goes on from.
result<std::string> kept_lines(std::string_view text, const std::string& path, std::span<const metrics_mark> marks) {
  std::string kept;
  bool keeping = true;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) break;  // torn: a whole line ends
    const auto line = text.substr(0, end + 1);
    text.remove_prefix(line.size());
    const auto value = json::parse(line, nullptr, false);
    if (!value.is_object()) {
      if (text.empty()) break;  // a crash of the machine can also leave a line of zeros
      return fail(errc::invalid_data, path + " line " + std::to_string(number) + " is no JSON object");
    }
    keeping = is_within(value, marks).value_or(keeping);
    if (keeping) kept += line;
  }
  return kept;
}

}  // namespace

result<metrics_log> metrics_log::open(const std::filesystem::path& path, std::span<const metrics_mark> marks) {
  struct stat about {};
  if (::stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode)) {
    auto text = read_file(path, std::uint64_t{1} << 36);
    if (!text) return fail(text.error());
    auto kept = kept_lines(*text, path.string(), marks);
    if (!kept) return fail(kept.error());
    if (*kept != *text)
      if (auto written = write_file_atomically(path, *kept); !written) return fail(written.error());
  }
  descriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (file.get() < 0) return fail(os_error("cannot write " + path.string(), errno));
  return metrics_log(path, std::move(file));
}

result<void> metrics_log::append(const nlohmann::ordered_json& line) {
  if (torn_at_) {
    if (::ftruncate(file_.get(), static_cast<off_t>(*torn_at_)) != 0)
      return fail(os_error("cannot take half a line back from " + path_.string(), errno));
    torn_at_.reset();
  }
  struct stat about {};
  if (::fstat(file_.get(), &about) != 0) return fail(os_error("cannot write " + path_.string(), errno));
  const auto text = line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const int failed = write_all(file_.get(), text);
  if (failed == 0) return {};
  if (S_ISREG(about.st_mode) && ::ftruncate(file_.get(), about.st_size) != 0)
    torn_at_ = static_cast<std::uint64_t>(about.st_size);
  return fail(os_error("cannot write " + path_.string(), failed));
}

}  // namespace weir

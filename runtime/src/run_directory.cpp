#include "weir/runtime/run_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string>
#include <system_error>

#include "weir/runtime/files.hpp"

namespace weir {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view step_prefix = "step-";
constexpr std::string_view partial_prefix = ".partial-";    // being written, or being deleted
constexpr std::string_view replaced_prefix = ".replaced-";  // moved aside for a newer one of the same step

std::string name_of(std::uint64_t step) {
  auto digits = std::to_string(step);
  return std::string(step_prefix) + std::string(8 - std::min<std::size_t>(8, digits.size()), '0') + digits;
}

std::optional<std::uint64_t> step_of(const std::string& name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  std::uint64_t step = 0;
  const auto* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + step_prefix.size(), end, step);
  return parsed.ec == std::errc{} && parsed.ptr == end ? std::optional(step) : std::nullopt;
}

error fs_error(const std::string& what, const std::error_code& why) { return os_error(what, why.value()); }

result<void> rename_folder(const fs::path& from, const fs::path& to) {
  std::error_code why;
  fs::rename(from, to, why);
  if (why) return fail(fs_error("cannot rename " + from.string() + " to " + to.string(), why));
  return {};
}

/// The entries of a folder; none if it is not there.
result<std::vector<fs::directory_entry>> entries_of(const fs::path& folder) {
  std::error_code why;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator at(folder, why), end; !why && at != end; at.increment(why)) entries.push_back(*at);
  if (why && why != std::errc::no_such_file_or_directory) return fail(fs_error("cannot list " + folder.string(), why));
  return entries;
}

result<std::vector<checkpoint>> checkpoints_in(const fs::path& folder) {
  auto entries = entries_of(folder);
  if (!entries) return fail(entries.error());
  std::vector<checkpoint> found;
  std::error_code ignored;
  for (const auto& entry : *entries)
    if (const auto step = step_of(entry.path().filename().string()); step && entry.is_directory(ignored))
      found.push_back({*step, entry.path()});
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

/// Deletes a checkpoint so that no half of it ever looks like one.
void remove_checkpoint(const fs::path& path) {
  const auto aside = path.parent_path() / (std::string(partial_prefix) + path.filename().string());
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  fs::rename(path, aside, ignored);
  fs::remove_all(aside, ignored);
}

/// Removes what a process left that died in a commit; puts back what it had moved aside and not replaced.
result<void> clean_up(const fs::path& folder) {
  auto entries = entries_of(folder);
  if (!entries) return fail(entries.error());
  std::error_code why;
  for (const auto& entry : *entries) {
    const auto name = entry.path().filename().string();
    if (name.starts_with(replaced_prefix)) {
      const auto place = folder / name.substr(replaced_prefix.size());
      if (!fs::exists(place, why)) {
        if (auto back = rename_folder(entry.path(), place); !back) return back;
        continue;
      }
    } else if (!name.starts_with(partial_prefix)) {
      continue;
    }
    fs::remove_all(entry.path(), why);
    if (why) return fail(fs_error("cannot remove " + entry.path().string(), why));
  }
  return {};
}

/// Syncs every file and folder below `folder`, and itself.
result<void> sync_all(const fs::path& folder) {
  std::error_code why;
  for (fs::recursive_directory_iterator at(folder, why), end; !why && at != end; at.increment(why)) {
    if (at->is_directory(why)) {
      if (auto synced = sync_folder(at->path()); !synced) return synced;
    } else if (at->is_regular_file(why)) {
      descriptor file(::open(at->path().c_str(), O_RDONLY | O_CLOEXEC));
      if (file.get() < 0 || ::fsync(file.get()) != 0)
        return fail(os_error("cannot sync " + at->path().string(), errno));
    }
  }
  if (why) return fail(fs_error("cannot sync " + folder.string(), why));
  return sync_folder(folder);
}

/// Refuses what no run directory is, without a trace: a folder with a config.json can be many things, such as a model.
/// A run's has what `create` and the first checkpoint leave beside it.
result<void> expect_run(const fs::path& folder) {
  std::error_code why;
  if (!fs::is_directory(folder, why)) return fail(errc::not_found, "there is no run directory " + folder.string());
  const auto none = folder.string() + " is no run directory: it holds ";
  if (!fs::exists(folder / "config.json", why)) return fail(errc::not_found, none + "no config.json");
  for (const char* name : {"lock", "metrics.jsonl", "checkpoints"})
    if (fs::exists(folder / name, why)) return {};
  return fail(errc::not_found,
              none + "a config.json, but neither lock, metrics.jsonl nor checkpoints, as a run leaves them");
}

result<descriptor> take_lock(const fs::path& folder) {
  const auto path = folder / "lock";
  descriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (lock.get() < 0) return fail(os_error("cannot open " + path.string(), errno));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return fail(os_error("cannot lock " + path.string(), errno));
    const auto holder = read_file(path, 64);
    const auto who =
        holder && !holder->empty() ? "process " + holder->substr(0, holder->find('\n')) : "another process";
    return fail(errc::unavailable, who + " uses run directory " + folder.string() + ": wait for it or stop it");
  }
  if (::ftruncate(lock.get(), 0) != 0) return fail(os_error("cannot write " + path.string(), errno));
  if (const int failed = write_all(lock.get(), std::to_string(::getpid()) + "\n"); failed != 0)
    return fail(os_error("cannot write " + path.string(), failed));
  return lock;
}

result<void> refuse_used(const fs::path& folder) {
  auto entries = entries_of(folder);
  if (!entries) return fail(entries.error());
  for (const auto& entry : *entries)
    if (entry.path().filename() != "lock")
      return fail(errc::invalid_argument, "run directory " + folder.string() + " is not empty (" +
                                              entry.path().filename().string() + "): go on with it by `weir resume " +
                                              folder.string() + "`, or choose another --run-dir");
  return {};
}

}  // namespace

pending_checkpoint::pending_checkpoint(pending_checkpoint&& other) noexcept
    : path_(std::exchange(other.path_, {})), target_(std::move(other.target_)) {}

pending_checkpoint::~pending_checkpoint() {
  if (path_.empty()) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

result<checkpoint> pending_checkpoint::commit(std::size_t keep) {
  const auto folder = path_.parent_path();
  const auto aside = folder / (std::string(replaced_prefix) + target_.path.filename().string());
  if (auto synced = sync_all(path_); !synced) return fail(synced.error());
  std::error_code ignored;
  const bool replaces = fs::exists(target_.path, ignored);
  if (replaces) {
    fs::remove_all(aside, ignored);  // of an earlier commit that could not delete it
    if (auto moved = rename_folder(target_.path, aside); !moved) return fail(moved.error());
  }
  if (auto named = rename_folder(path_, target_.path); !named) {
    if (replaces) fs::rename(aside, target_.path, ignored);
    return fail(named.error());
  }
  path_.clear();
  if (auto synced = sync_folder(folder); !synced) return fail(synced.error());
  fs::remove_all(aside, ignored);
  if (auto all = checkpoints_in(folder); all)
    for (std::size_t i = 0; i + keep < all->size(); ++i)
      if ((*all)[i].step != target_.step) remove_checkpoint((*all)[i].path);
  return target_;
}

result<run_directory> run_directory::create(const fs::path& path, const nlohmann::ordered_json& resolved_config) {
  std::error_code why;
  fs::create_directories(path, why);
  if (why) return fail(fs_error("cannot make run directory " + path.string(), why));
  if (auto unused = refuse_used(path); !unused) return fail(unused.error());
  auto lock = take_lock(path);
  if (!lock) return fail(lock.error());
  // Again, now that nobody else can be making it.
  if (auto unused = refuse_used(path); !unused) return fail(unused.error());
  run_directory made(path, *std::move(lock));
  if (auto written = made.write_config(resolved_config); !written) return fail(written.error());
  return made;
}

result<run_directory> run_directory::open(const fs::path& path) {
  if (auto is_one = expect_run(path); !is_one) return fail(is_one.error());
  auto lock = take_lock(path);
  if (!lock) return fail(lock.error());
  if (auto clean = clean_up(path / "checkpoints"); !clean) return fail(clean.error());
  return run_directory(path, *std::move(lock));
}

result<nlohmann::json> run_directory::config() const { return read_json_file(path_ / "config.json"); }

result<void> run_directory::write_config(const nlohmann::ordered_json& resolved_config) {
  using json = nlohmann::ordered_json;
  return write_file_atomically(path_ / "config.json",
                               resolved_config.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

result<pending_checkpoint> run_directory::begin_checkpoint(std::uint64_t step) {
  const auto folder = path_ / "checkpoints";
  const auto path = folder / (std::string(partial_prefix) + name_of(step));
  std::error_code why;
  fs::remove_all(path, why);
  if (!why) fs::create_directories(path, why);
  if (why) return fail(fs_error("cannot make " + path.string(), why));
  // The folder's own name must be on the disk before a checkpoint in it counts as saved.
  if (auto synced = sync_folder(path_); !synced) return fail(synced.error());
  return pending_checkpoint(path, {step, folder / name_of(step)});
}

result<std::vector<checkpoint>> run_directory::checkpoints() const { return checkpoints_in(path_ / "checkpoints"); }

result<std::optional<checkpoint>> run_directory::latest_checkpoint() const {
  auto all = checkpoints();
  if (!all) return fail(all.error());
  return all->empty() ? std::nullopt : std::optional(std::move(all->back()));
}

}  // namespace weir

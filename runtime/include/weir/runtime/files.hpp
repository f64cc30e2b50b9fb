#pragma once
// Files that are whole or not there.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weir/transport/result.hpp"

namespace weir {

/// Writes `parts`, one after the other, beside `path`, syncs, and renames over it: a reader sees the old file or the
/// new one, also after a crash. On an error (a full disk, no permission) the old file is untouched and nothing is left
/// behind.
result<void> write_file_atomically(const std::filesystem::path& path, std::span<const std::string_view> parts);
result<void> write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// The whole file; an error if it is longer than `most` bytes.
result<std::string> read_file(const std::filesystem::path& path, std::uint64_t most = std::uint64_t{1} << 30);

/// A JSON file. Errors name file, line and column; of a number beyond a double, the field as well. Duplicate keys are
/// errors: one of the two was meant.
result<nlohmann::json> read_json_file(const std::filesystem::path& path);
result<nlohmann::json> parse_json(std::string_view text, const std::string& origin);

/// One JSON value a line. Blank lines are passed over; a byte-order mark and CRLF are accepted. Errors name file, line
/// and column. Returns the lines' text, checked.
result<std::vector<std::string>> read_jsonl_file(const std::filesystem::path& path);

/// Syncs a folder, so that what was renamed into it survives a crash.
result<void> sync_folder(const std::filesystem::path& folder);

/// "what: why", with the operating system's reason.
error os_error(const std::string& what, int number);

}  // namespace weir

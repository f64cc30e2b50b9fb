#include "weir/policy/safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "weir/runtime/files.hpp"

namespace weir {

static_assert(std::endian::native == std::endian::little, "safetensors files are little endian");

namespace {
constexpr std::uint64_t longest_header = 100'000'000;  // the reference implementation's bound
}

struct safetensors_file::mapping {
  void* address = nullptr;
  std::size_t size = 0;
  ~mapping() {
    if (address != nullptr) ::munmap(address, size);
  }
};

std::int64_t safetensors_entry::count() const noexcept {
  std::int64_t n = 1;
  for (auto d : shape) n *= d;
  return n;
}

std::size_t safetensors_size_of(const std::string& type) noexcept {
  if (type == "F64" || type == "I64" || type == "U64") return 8;
  if (type == "F32" || type == "I32" || type == "U32") return 4;
  if (type == "F16" || type == "BF16" || type == "I16" || type == "U16") return 2;
  if (type == "I8" || type == "U8" || type == "BOOL" || type == "F8_E4M3" || type == "F8_E5M2") return 1;
  return 0;
}

namespace {

result<safetensors_entry> read_entry(const nlohmann::json& about, std::span<const std::byte> data) {
  auto bad = [](const std::string& why) { return fail(errc::invalid_data, why); };
  if (!about.is_object() || !about.contains("dtype") || !about["dtype"].is_string() || !about.contains("shape") ||
      !about["shape"].is_array() || !about.contains("data_offsets") || !about["data_offsets"].is_array() ||
      about["data_offsets"].size() != 2)
    return bad("its header entry lacks dtype, shape or data_offsets");
  safetensors_entry entry;
  entry.type = about["dtype"].get<std::string>();
  const auto size = safetensors_size_of(entry.type);
  if (size == 0) return bad("unknown dtype " + entry.type);
  std::uint64_t bytes = size;
  for (const auto& d : about["shape"]) {
    if (!d.is_number_unsigned()) return bad("a dimension is no natural number: " + d.dump());
    const auto n = d.get<std::uint64_t>();
    if (n > 0 && bytes > data.size() / n) return bad("its shape asks for more bytes than the file has");
    bytes *= n;
    entry.shape.push_back(static_cast<std::int64_t>(n));
  }
  const auto &from = about["data_offsets"][0], &to = about["data_offsets"][1];
  if (!from.is_number_unsigned() || !to.is_number_unsigned()) return bad("its data_offsets are no natural numbers");
  const auto begin = from.get<std::uint64_t>(), end = to.get<std::uint64_t>();
  if (begin > end || end > data.size())
    return bad("its data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + ") lie outside the file's " +
               std::to_string(data.size()) + " data bytes: is the file truncated?");
  if (end - begin != bytes)
    return bad("its shape needs " + std::to_string(bytes) + " bytes, its data_offsets hold " +
               std::to_string(end - begin));
  entry.bytes = data.subspan(begin, bytes);
  return entry;
}

/// The tensors' bytes must follow one another and fill `data`, as the format asks for. Empty if they do.
std::string complaint_about_places(const std::map<std::string, safetensors_entry>& entries,
                                   std::span<const std::byte> data) {
  std::vector<std::pair<std::span<const std::byte>, const std::string*>> places;
  for (const auto& [name, entry] : entries) places.emplace_back(entry.bytes, &name);
  std::sort(places.begin(), places.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.data(), a.first.size()) < std::pair(b.first.data(), b.first.size());
  });
  const auto* end = data.data();
  for (const auto& [bytes, name] : places) {
    if (bytes.data() < end) return "tensor " + *name + ": its bytes overlap another tensor's";
    if (bytes.data() > end) return "tensor " + *name + ": the bytes before it belong to no tensor";
    end = bytes.data() + bytes.size();
  }
  return end == data.data() + data.size() ? "" : "the last bytes belong to no tensor";
}

}  // namespace

result<safetensors_file> safetensors_file::open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail(os_error("cannot read " + path.string(), errno));
  struct stat about {};
  auto mapped = std::make_shared<mapping>();
  if (::fstat(fd, &about) == 0 && about.st_size > 0) {
    mapped->size = static_cast<std::size_t>(about.st_size);
    mapped->address = ::mmap(nullptr, mapped->size, PROT_READ, MAP_PRIVATE, fd, 0);
  }
  const int reason = errno;
  ::close(fd);
  if (mapped->address == MAP_FAILED) {
    mapped->address = nullptr;
    return fail(os_error("cannot map " + path.string(), reason));
  }
  auto bad = [&](const std::string& why) { return fail(errc::invalid_data, path.string() + ": " + why); };
  const auto* bytes = static_cast<const char*>(mapped->address);
  if (mapped->size < 8) return bad("too short for a safetensors file");
  std::uint64_t header = 0;
  std::memcpy(&header, bytes, 8);
  if (header > longest_header || header > mapped->size - 8)
    return bad("the header claims " + std::to_string(header) + " bytes, the file has " + std::to_string(mapped->size));
  auto json = parse_json(std::string_view(bytes + 8, header), path.string() + " header");
  if (!json) return fail(json.error());
  if (!json->is_object()) return bad("the header is no JSON object");
  const std::span<const std::byte> data(reinterpret_cast<const std::byte*>(bytes) + 8 + header,
                                        mapped->size - 8 - header);

  safetensors_file file;
  file.mapping_ = std::move(mapped);
  for (const auto& [name, value] : json->items()) {
    if (name == "__metadata__") {
      for (const auto& [key, text] : value.items())
        if (text.is_string()) file.metadata_.emplace(key, text.get<std::string>());
      continue;
    }
    auto entry = read_entry(value, data);
    if (!entry) return bad("tensor " + name + ": " + entry.error().message);
    file.entries_.emplace(name, std::move(*entry));
  }
  if (auto why = complaint_about_places(file.entries_, data); !why.empty()) return bad(why);
  return file;
}

const safetensors_entry* safetensors_file::find(const std::string& name) const {
  auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

result<void> write_safetensors(const std::filesystem::path& path, const std::vector<safetensors_tensor>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const auto& t : tensors) {
    std::uint64_t bytes = safetensors_size_of(t.type);
    for (auto d : t.shape) bytes *= static_cast<std::uint64_t>(d);
    if (bytes != t.bytes.size()) throw std::invalid_argument("tensor " + t.name + ": its bytes don't fit its shape");
    header[t.name] = {{"dtype", t.type}, {"shape", t.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  auto text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begins aligned, as the reference implementation writes it
  const std::uint64_t length = text.size();
  std::vector<std::string_view> parts{{reinterpret_cast<const char*>(&length), 8}, text};
  for (const auto& t : tensors) parts.emplace_back(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
  return write_file_atomically(path, parts);
}

}  // namespace weir

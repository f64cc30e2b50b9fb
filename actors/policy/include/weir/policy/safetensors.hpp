#pragma once
// The safetensors format (huggingface/safetensors, README "Format"): 8 bytes of header length, little endian; a JSON
// header {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}; the tensors' bytes.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weir/transport/result.hpp"

namespace weir {

struct safetensors_entry {
  std::string type;  ///< such as "F32", "BF16", "I64"
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  ///< into the mapped file, row-major; not necessarily aligned
  std::int64_t count() const noexcept;
};

/// A file mapped read-only; entries stay valid while the object lives. Const use from several threads is safe.
class safetensors_file {
 public:
  /// Everything that the header claims is checked against the file before it is believed.
  static result<safetensors_file> open(const std::filesystem::path& path);

  /// Null if there is none of this name.
  const safetensors_entry* find(const std::string& name) const;
  const std::map<std::string, safetensors_entry>& entries() const noexcept { return entries_; }
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }

 private:
  struct mapping;
  std::shared_ptr<const mapping> mapping_;
  std::map<std::string, safetensors_entry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// What to write: bytes are read when `write_safetensors` runs.
struct safetensors_tensor {
  std::string name;
  std::string type;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

/// Written beside, synced, renamed. Throws std::invalid_argument if a tensor's bytes don't fit its shape.
result<void> write_safetensors(const std::filesystem::path& path, const std::vector<safetensors_tensor>& tensors,
                               const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// Bytes of one element; 0 for an unknown type.
std::size_t safetensors_size_of(const std::string& type) noexcept;

}  // namespace weir

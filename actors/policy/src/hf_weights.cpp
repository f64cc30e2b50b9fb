// Loading from and saving to Hugging Face model directories.
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "causal_lm_state.hpp"
#include "weir/policy/safetensors.hpp"
#include "weir/policy/scalar_type.hpp"
#include "weir/runtime/files.hpp"

namespace weir {

namespace fs = std::filesystem;

namespace {

struct weight_file {
  std::string path;
  safetensors_file content;
};

/// The files that hold a directory's tensors: one, or those that the index names.
result<std::vector<weight_file>> open_weights(const fs::path& directory) {
  std::vector<weight_file> files;
  const auto single = directory / "model.safetensors";
  const auto index = directory / "model.safetensors.index.json";
  std::set<std::string> names;
  std::error_code none;
  if (!fs::exists(single, none) && fs::exists(index, none)) {
    auto json = read_json_file(index);
    if (!json) return fail(json.error());
    if (!json->is_object() || !json->contains("weight_map") || !(*json)["weight_map"].is_object())
      return fail(errc::invalid_data, index.string() + ": has no object weight_map");
    for (const auto& [tensor, file] : (*json)["weight_map"].items()) {
      if (!file.is_string() || file.get<std::string>().find_first_of(std::string_view("/\0", 2)) != std::string::npos)
        return fail(errc::invalid_data, index.string() + ": weight_map." + tensor + " is no file name");
      names.insert(file.get<std::string>());
    }
  } else {
    names.insert("model.safetensors");
  }
  for (const auto& name : names) {
    auto file = safetensors_file::open(directory / name);
    if (!file) return fail(file.error());
    files.push_back({(directory / name).string(), std::move(*file)});
  }
  return files;
}

const char* type_name(dtype type) { return type == dtype::f32 ? "F32" : type == dtype::f16 ? "F16" : "BF16"; }

/// Copies a tensor into fp32 at `to`; false if its type is none that a parameter has.
bool read_into(const safetensors_entry& entry, float* to) {
  const auto count = static_cast<std::size_t>(entry.count());
  if (entry.type == "F32") {
    std::memcpy(to, entry.bytes.data(), count * sizeof(float));
    return true;
  }
  if (entry.type != "F16" && entry.type != "BF16") return false;
  auto half = at::empty({entry.count()}, entry.type == "F16" ? at::kHalf : at::kBFloat16);
  std::memcpy(half.data_ptr(), entry.bytes.data(), entry.bytes.size());
  at::from_blob(to, {entry.count()}, at::kFloat).copy_(half);
  return true;
}

std::string text(const std::vector<std::int64_t>& shape) { return nlohmann::json(shape).dump(); }

}  // namespace

result<causal_lm> causal_lm::load(const fs::path& directory, const std::string& device) {
  auto config = read_causal_lm_config(directory);
  if (!config) return fail(config.error());
  auto files = open_weights(directory);
  if (!files) return fail(files.error());
  const auto about = layout(*config);
  struct source {
    const safetensors_entry* entry;
    std::string place;  ///< file and tensor, for errors
  };
  std::map<std::string, source> found;
  for (const auto& file : *files)
    for (const auto& [name, entry] : file.content.entries())
      found.emplace(name, source{&entry, file.path + ": tensor " + name});
  // Memory is taken only once the files are known to hold it.
  for (const auto& spec : about.tensors) {
    auto entry = found.find(spec.name);
    if (entry == found.end())
      return fail(errc::invalid_data, (files->size() == 1 ? files->front().path : directory.string()) + ": tensor " +
                                          spec.name + " is missing");
    if (const auto& s = entry->second; s.entry->shape != spec.shape)
      return fail(errc::invalid_data,
                  s.place + " has shape " + text(s.entry->shape) + ", config.json asks for " + text(spec.shape));
  }
  auto flat = at::zeros({static_cast<std::int64_t>(about.bytes / 4)}, at::kFloat);
  for (const auto& spec : about.tensors) {
    const auto& from = found.at(spec.name);
    if (!read_into(*from.entry, flat.data_ptr<float>() + spec.offset / 4))
      return fail(errc::unsupported, from.place + " is " + from.entry->type + ": F32, F16 and BF16 are read");
    found.erase(spec.name);
  }
  for (const auto& [name, from] : found) {
    const bool redundant = name == "lm_head.weight" || name.ends_with("rotary_emb.inv_freq");
    if (!redundant) return fail(errc::invalid_data, from.place + " belongs to no Qwen3 model of this config.json");
  }
  return own(*config, flat.to(at::Device(device)));
}

result<void> causal_lm::save(const fs::path& directory) const {
  at::NoGradGuard none;
  std::error_code failed;
  fs::create_directories(directory, failed);
  if (failed) return fail(errc::io, "cannot make " + directory.string() + ": " + failed.message());
  const auto values = state_->flat.detach().to(at::kCPU).to(scalar_type(state_->config.type)).contiguous();
  const auto size = size_of(state_->config.type);
  std::vector<safetensors_tensor> tensors;
  for (const auto& spec : state_->layout.tensors)
    tensors.push_back(
        {spec.name,
         type_name(state_->config.type),
         spec.shape,
         {static_cast<const std::byte*>(values.data_ptr()) + spec.offset / 4 * size, spec.bytes / 4 * size}});
  auto written = write_safetensors(directory / "model.safetensors", tensors);
  if (!written) return written;
  return write_causal_lm_config(state_->config, directory);
}

}  // namespace weir

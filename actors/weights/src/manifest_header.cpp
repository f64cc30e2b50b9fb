#include "weir/weights/manifest_header.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

namespace weir {

namespace {

constexpr std::array<std::pair<dtype, const char*>, 3> type_names{
    {{dtype::f32, "F32"}, {dtype::f16, "F16"}, {dtype::bf16, "BF16"}}};

result<tensor_spec> read_tensor(const std::string& name, const nlohmann::json& about, std::uint64_t bytes) {
  const auto bad = [&](const std::string& why) { return fail(errc::invalid_data, "tensor " + name + ": " + why); };
  if (!about.is_object() || !about.contains("dtype") || !about["dtype"].is_string() || !about.contains("shape") ||
      !about["shape"].is_array() || !about.contains("data_offsets") || !about["data_offsets"].is_array() ||
      about["data_offsets"].size() != 2)
    return bad("it lacks dtype, shape or data_offsets");
  tensor_spec t;
  t.name = name;
  const auto written = about["dtype"].get<std::string>();
  const auto* type =
      std::find_if(type_names.begin(), type_names.end(), [&](const auto& n) { return written == n.second; });
  if (type == type_names.end()) return bad("dtype " + written + " is none of F32, F16, BF16");
  t.type = type->first;
  t.bytes = size_of(t.type);
  for (const auto& d : about["shape"]) {
    const auto n = d.is_number_unsigned() ? d.get<std::uint64_t>() : 0;
    if (n == 0 || t.bytes > bytes / n)
      return bad("a dimension is not positive, or larger than the buffer: " + d.dump());
    t.bytes *= n;
    t.shape.push_back(static_cast<std::int64_t>(n));
  }
  const auto &begin = about["data_offsets"][0], &end = about["data_offsets"][1];
  if (!begin.is_number_unsigned() || !end.is_number_unsigned()) return bad("its data_offsets are no natural numbers");
  t.offset = begin.get<std::uint64_t>();
  const auto last = end.get<std::uint64_t>();
  if (t.offset > last || last > bytes || last - t.offset != t.bytes)
    return bad("its data_offsets do not fit its shape, or the buffer of " + std::to_string(bytes) + " bytes");
  return t;
}

std::optional<std::uint64_t> read_size(const nlohmann::json& header) {
  const auto metadata = header.find("__metadata__");
  if (metadata == header.end() || !metadata->is_object() || !metadata->contains("bytes")) return {};
  const auto& text = (*metadata)["bytes"];
  if (!text.is_string()) return {};
  const auto parsed = nlohmann::json::parse(text.get<std::string>(), nullptr, false);
  if (!parsed.is_number_unsigned()) return {};
  return parsed.get<std::uint64_t>();
}

}  // namespace

std::string to_header(const manifest& m) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"bytes", std::to_string(m.bytes)}};
  for (const auto& t : m.tensors)
    header[t.name] = {
        {"dtype",
         std::find_if(type_names.begin(), type_names.end(), [&](const auto& n) { return n.first == t.type; })->second},
        {"shape", t.shape},
        {"data_offsets", {t.offset, t.offset + t.bytes}}};
  return header.dump();
}

result<manifest> read_header(const std::string& text) {
  const auto header = nlohmann::json::parse(text, nullptr, false);
  if (!header.is_object()) return fail(errc::invalid_data, "a manifest is no JSON object");
  manifest m;
  const auto size = read_size(header);
  if (!size) return fail(errc::invalid_data, "a manifest does not say its size: __metadata__.bytes is missing");
  m.bytes = *size;
  for (const auto& [name, about] : header.items()) {
    if (name == "__metadata__") continue;
    auto tensor = read_tensor(name, about, m.bytes);
    if (!tensor) return fail(tensor.error());
    m.tensors.push_back(std::move(*tensor));
  }
  std::sort(m.tensors.begin(), m.tensors.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  std::uint64_t end = 0;
  for (const auto& t : m.tensors) {
    if (t.offset < end) return fail(errc::invalid_data, "tensor " + t.name + ": its bytes overlap another tensor's");
    end = t.offset + t.bytes;
  }
  return m;
}

}  // namespace weir

#include "weight_path.hpp"

#include <algorithm>

#include "graph_parts.hpp"
#include "weir/weights/manifest_header.hpp"

namespace weir::app {

namespace {

constexpr std::uint32_t delta_record = 1U << 20;  ///< bytes of a version that a delta's record covers

/// As text, which is how transports take settings.
result<transport_settings> settings_of(const nlohmann::json& options) {
  transport_settings settings;
  if (!options.is_object())
    return fail(errc::invalid_config,
                "weights.options: an object of the transport's settings is needed, found " + options.dump());
  for (const auto& [key, value] : options.items()) {
    if (value.is_structured() || value.is_null())
      return fail(errc::invalid_config, "weights.options." + key + ": a string, number or boolean is needed");
    settings[key] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return settings;
}

/// Without a gap: what lies between two tensors counts to the first.
std::vector<delta_range> ranges_of(const manifest& layout) {
  std::vector<delta_range> ranges;
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const auto begin = i == 0 ? 0 : layout.tensors[i].offset;
    const auto end = i + 1 == layout.tensors.size() ? layout.bytes : layout.tensors[i + 1].offset;
    divide_for_delta(begin, end - begin, static_cast<std::uint8_t>(size_of(layout.tensors[i].type)), delta_record,
                     ranges);
  }
  return ranges;
}

}  // namespace

result<std::optional<known_transport>> weight_transport(const app_config& config) {
  const auto& w = config.weights;
  auto settings = settings_of(w.options);
  if (!settings) return fail(settings.error());
  if (w.transport == "inproc" && !settings->empty())
    return fail(errc::invalid_config,
                "weights.options: weights.transport inproc has none, found " + settings->begin()->first);
  if (w.transport == "inproc") return std::optional<known_transport>{};
  auto found = load_transport(w.transport, *settings);
  if (!found)
    return fail(errc::invalid_config,
                (found.error().code == errc::invalid_config ? "weights.options: " : "weights.transport: ") +
                    found.error().message);
  if (!found->make) return fail(errc::invalid_config, "weights.transport: " + w.transport + " makes no transport");
  return std::optional(std::move(*found));
}

result<weight_path> make_weight_path(const app_config& config, const manifest& layout, logger& log) {
  const auto& w = config.weights;
  auto form = published_layout(config, layout);
  if (!form) return fail(form.error());
  const auto shared = std::make_shared<const manifest>(std::move(*form));
  const auto bytes = shared->bytes;
  auto shelf = std::make_shared<weight_shelf>(shared);
  // Each engine holds a version and may be taking another; one more is being written.
  const auto regions = config.rollout.engines + 2;
  auto found = weight_transport(config);
  if (!found) return fail(found.error());
  if (!*found) {
    auto writer = snapshot_writer::make(shelf, bytes, regions);
    if (!writer) return fail(writer.error());
    return weight_path{shelf, shelf, std::move(*writer), nullptr, {}, {}};
  }
  const auto& maker = (*found)->make;
  broadcast_settings b;
  b.bytes = bytes;
  b.description = to_header(*shared);
  b.ranges = ranges_of(*shared);
  b.shape = *read_shape(w.plan);
  b.delta = w.delta == "auto" ? delta_use::automatic : w.delta == "on" ? delta_use::on : delta_use::off;
  auto sender =
      broadcast_sender::make(maker, b, {{}, [&log](const std::string& text) { log.warn("weights: " + text); }});
  if (!sender) return fail(sender.error().code, "weights.transport " + w.transport + ": " + sender.error().message);
  auto writer = snapshot_writer::make(
      shelf, [s = *sender] { return s->allocate(); }, snapshots_at_trainer);
  if (!writer) return fail(writer.error());
  receiver_settings r;
  r.name = "engines";
  r.source = (*sender)->address();
  r.slots = regions;
  return weight_path{shelf, std::make_shared<weight_shelf>(), std::move(*writer), *sender, maker, r};
}

}  // namespace weir::app

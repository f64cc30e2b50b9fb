#include "weir/weights/snapshots.hpp"

#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace weir {

namespace {
constexpr std::chrono::seconds connect_deadline{10};
}

std::uint64_t snapshot_checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

result<snapshot_writer> snapshot_writer::make(const transport_maker& maker, const std::string& address, std::size_t bytes,
                                              std::size_t count) {
  if (count == 0) throw std::invalid_argument("a snapshot writer has at least one region");
  auto readers = std::make_shared<peers>();
  transport_handlers handlers;
  handlers.on_accepted = [readers](std::shared_ptr<connection> reader) { readers->push_back(std::move(reader)); };
  handlers.on_closed = [readers](connection& gone, const error&) {
    std::erase_if(*readers, [&gone](const auto& reader) { return reader.get() == &gone; });
  };
  snapshot_writer made(maker(std::move(handlers)), readers);
  for (std::size_t i = 0; i < count; ++i) {
    auto memory = made.data_->allocate(bytes);
    if (!memory) return fail(memory.error());
    made.slots_.push_back({std::move(*memory)});
  }
  auto listening = made.data_->listen(address);
  if (!listening) return fail(listening.error());
  return made;
}

snapshot_writer::slot* snapshot_writer::free_slot() noexcept {
  auto found = std::find_if(slots_.begin(), slots_.end(), [](const slot& s) { return !s.taken; });
  return found == slots_.end() ? nullptr : &*found;
}

std::span<std::byte> snapshot_writer::next() noexcept {
  auto* free = free_slot();
  return free == nullptr ? std::span<std::byte>{} : free->memory->bytes();
}

publish_weights snapshot_writer::publish(weight_version version) {
  auto* free = free_slot();
  if (free == nullptr) throw std::logic_error("a version was published without a free region");
  free->taken = true;
  free->version = version;
  return {version, free->memory->descriptor(), snapshot_checksum(free->memory->bytes())};
}

void snapshot_writer::released(weight_version version) noexcept {
  for (auto& s : slots_)
    if (s.taken && s.version == version) s.taken = false;
}

result<snapshot_reader> snapshot_reader::connect(std::unique_ptr<transport> data, const std::string& address, std::size_t bytes) {
  if (!data->capabilities().map)
    return fail(errc::unsupported, "snapshots are read in place, which the transport " + data->capabilities().name + " cannot do");
  auto writer = data->connect(address, std::chrono::steady_clock::now() + connect_deadline);
  if (!writer) return fail(writer.error());
  return snapshot_reader(std::move(data), std::move(*writer), bytes);
}

result<mapped_region> snapshot_reader::read(const adopt_weights& which) {
  const auto name = "weight version " + std::to_string(which.version);
  auto view = writer_->map(which.region);
  if (!view) return fail(view.error().code, name + ": " + view.error().message);
  if (view->bytes.size() < bytes_)
    return fail(errc::invalid_data, name + ": its region has " + std::to_string(view->bytes.size()) + " bytes, the model needs " +
                                        std::to_string(bytes_));
  view->bytes = view->bytes.first(bytes_);
  if (snapshot_checksum(view->bytes) != which.checksum)
    return fail(errc::invalid_data, name + ": the checksum does not match what was published");
  return view;
}

}  // namespace weir

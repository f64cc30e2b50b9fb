#include "weir/weights/snapshots.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "weir/transport/inproc.hpp"

namespace weir {

std::shared_ptr<const manifest> weight_shelf::layout() const {
  std::lock_guard lock(mutex_);
  return layout_;
}

void weight_shelf::set_layout(std::shared_ptr<const manifest> layout) {
  std::lock_guard lock(mutex_);
  layout_ = std::move(layout);
}

void weight_shelf::put(weight_version version, weight_content content) {
  std::lock_guard lock(mutex_);
  versions_[version] = std::move(content);
}

void weight_shelf::remove(weight_version version) {
  weight_content gone;  // let go of without the lock
  std::lock_guard lock(mutex_);
  auto found = versions_.find(version);
  if (found == versions_.end()) return;
  gone = std::move(found->second);
  versions_.erase(found);
}

result<weight_content> weight_shelf::find(weight_version version) const {
  std::lock_guard lock(mutex_);
  auto found = versions_.find(version);
  if (found == versions_.end())
    return fail(errc::unavailable, "weight version " + std::to_string(version) + " is not here, or not any more");
  return found->second;
}

result<snapshot_writer> snapshot_writer::make(std::shared_ptr<weight_shelf> shelf, allocator allocate,
                                              std::size_t count) {
  if (count == 0) throw std::invalid_argument("a snapshot writer has at least one region");
  snapshot_writer made(std::move(shelf), std::move(allocate));
  for (std::size_t i = 0; i < count; ++i) {
    auto memory = made.allocate_();
    if (!memory) return fail(memory.error());
    made.slots_.push_back({std::move(*memory)});
  }
  return made;
}

result<snapshot_writer> snapshot_writer::make(std::shared_ptr<weight_shelf> shelf, std::size_t bytes,
                                              std::size_t count) {
  auto memory = std::make_shared<std::unique_ptr<transport>>(make_inproc_transport(make_inproc_fabric()));
  return make(
      std::move(shelf), [memory, bytes] { return (*memory)->allocate(bytes); }, count);
}

snapshot_writer::slot* snapshot_writer::free_slot() noexcept {
  auto found = std::find_if(slots_.begin(), slots_.end(), [](const slot& s) { return !s.taken && s.memory; });
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
  shelf_->put(version, {std::as_const(*free->memory).bytes(), free->memory, free->memory});
  return {version};
}

void snapshot_writer::released(const weights_released& news) {
  for (auto& s : slots_) {
    if (!s.taken || s.version != news.version) continue;
    shelf_->remove(news.version);
    s.taken = false;
    if (!news.spoiled) continue;
    s.memory.reset();
    if (auto other = allocate_()) s.memory = std::move(*other);
  }
}

}  // namespace weir

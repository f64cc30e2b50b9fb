#pragma once
// A receiver's memory for versions: which of it is read, and by whom. One thread; views may be let go of by any.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "weir/actors/types.hpp"
#include "weir/transport/transport.hpp"

namespace weir::broadcast {

class version_slots {
 public:
  struct slot {
    std::shared_ptr<region> memory;
    std::optional<weight_version> version;  ///< what it holds, or will hold
    std::weak_ptr<const void> read;         ///< by those that hold a view
    bool spoiled = false;                   ///< a process that was lost may still read it
  };

  static result<version_slots> make(transport& data, std::size_t count, std::size_t bytes) {
    version_slots made;
    for (std::size_t i = 0; i < count; ++i) {
      auto memory = data.allocate(bytes);
      if (!memory) return fail(memory.error());
      made.slots_.push_back({std::move(*memory), {}, {}, false});
    }
    return made;
  }

  /// One that nobody reads, here or elsewhere; null if there is none now. `held_elsewhere` is asked of a slot's
  /// version.
  template <class Predicate>
  slot* free(transport& data, Predicate held_elsewhere) {
    for (auto& s : slots_) {
      if (s.version && (!s.read.expired() || held_elsewhere(*s.version))) continue;
      if (s.spoiled) {
        // The memory stays with who maps it; here other memory takes its place.
        auto memory = data.allocate(s.memory->bytes().size());
        if (!memory) continue;
        s.memory = std::move(*memory);
        s.spoiled = false;
      }
      return &s;
    }
    return nullptr;
  }

  slot* find(weight_version version) {
    auto found = std::find_if(slots_.begin(), slots_.end(), [&](const slot& s) { return s.version == version; });
    return found == slots_.end() ? nullptr : &*found;
  }

  /// Keeps the slot from being free for as long as it is held.
  static std::shared_ptr<const void> view(slot& s) {
    auto owner = s.read.lock();
    if (!owner) {
      owner = std::make_shared<std::shared_ptr<region>>(s.memory);
      s.read = owner;
    }
    return owner;
  }

 private:
  std::vector<slot> slots_;
};

}  // namespace weir::broadcast

#include "kernels.hpp"

#include <array>

namespace weir::kernels {

namespace baseline {
extern const table all;
}
#if defined(__x86_64__)
namespace avx2 {
extern const table all;
}
namespace avx512 {
extern const table all;
}
#endif

namespace {

struct chosen {
  std::array<const table*, 3> sets{};
  std::int64_t count = 0;
  chosen() {
    sets[static_cast<std::size_t>(count++)] = &baseline::all;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
      sets[static_cast<std::size_t>(count++)] = &avx2::all;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw"))
      sets[static_cast<std::size_t>(count++)] = &avx512::all;
#endif
  }
};

const chosen& sets() noexcept {
  static const chosen found;
  return found;
}

}  // namespace

const table& best() noexcept { return *sets().sets[static_cast<std::size_t>(sets().count - 1)]; }

const table* const* available(std::int64_t& count) noexcept {
  count = sets().count;
  return sets().sets.data();
}

}  // namespace weir::kernels

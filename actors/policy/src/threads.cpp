#include "weir/policy/threads.hpp"

#include <dlfcn.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "weir/policy/torch.hpp"

namespace weir {

void set_intra_op_threads(int threads) {
  at::set_num_threads(threads);
  // OpenBLAS built with its own threads is not told by libtorch. It may not be there: MKL, BLIS, or a static build.
  if (void* symbol = ::dlsym(RTLD_DEFAULT, "openblas_set_num_threads"); symbol != nullptr)
    reinterpret_cast<void (*)(int)>(symbol)(threads);
}

void keep_freed_memory() {
#if defined(__GLIBC__)
  // One arena: the others cannot hold what is larger than 64 MiB, and map it anew each time.
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  ::mallopt(M_TOP_PAD, 64 << 20);
#endif
}

}  // namespace weir

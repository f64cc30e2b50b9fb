#include "weir/policy/threads.hpp"

#include <dlfcn.h>

#include "weir/policy/torch.hpp"

namespace weir {

void set_intra_op_threads(int threads) {
  at::set_num_threads(threads);
  // OpenBLAS built with its own threads is not told by libtorch. It may not be there: MKL, BLIS, or a static build.
  if (void* symbol = ::dlsym(RTLD_DEFAULT, "openblas_set_num_threads"); symbol != nullptr)
    reinterpret_cast<void (*)(int)>(symbol)(threads);
}

}  // namespace weir

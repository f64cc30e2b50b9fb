#define WEIR_KERNEL_SET avx512
#define WEIR_KERNEL_NAME "avx512"
#include "kernels.inc"

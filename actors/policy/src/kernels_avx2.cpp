#define WEIR_KERNEL_SET avx2
#define WEIR_KERNEL_NAME "avx2"
#include "kernels.inc"

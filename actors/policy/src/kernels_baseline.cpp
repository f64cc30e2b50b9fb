#define WEIR_KERNEL_SET baseline
#define WEIR_KERNEL_NAME "baseline"
#include "kernels.inc"

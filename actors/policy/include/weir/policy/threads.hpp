#pragma once

namespace weir {

/// How many threads one operation of libtorch (and of the BLAS below it) may use when the calling thread runs it.
/// OpenMP keeps this per thread, so every thread that computes calls it once before it does. With several computing
/// threads on few cores 1 is best: two busy intra-op threads on two cores made a small model six times slower.
void set_intra_op_threads(int threads);

/// Makes this process keep the memory that it frees, for its next allocation: training and generation allocate the same
/// large tensors in every step, and a fresh mapping costs a page fault for every 4 KiB (measured here: up to 1.5 times
/// the speed of a small model's training). Process-wide and for glibc only: called by a `main`, before threads start.
void keep_freed_memory();

}  // namespace weir

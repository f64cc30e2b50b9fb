#pragma once

namespace weir {

/// How many threads one operation of libtorch (and of the BLAS below it) may use when the calling thread runs it.
/// OpenMP keeps this per thread, so every thread that computes calls it once before it does. With several computing
/// threads on few cores 1 is best: two busy intra-op threads on two cores made a small model six times slower.
void set_intra_op_threads(int threads);

}  // namespace weir

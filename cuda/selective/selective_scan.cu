// Kernels of the selective scan and its gradient.
#include "common/export.cuh"
#include "selective/backward.cuh"
#include "selective/forward.cuh"
#include "selective/sums.cuh"

// CTAS: of an SM, with accumulators of 4 bytes.
#define EXPORT_SELECTIVE(name, T, A, symbol, CTAS, Args, Scan, PACKED) \
    EXPORT_THREADS(symbol##_##name, 32 * kWarps, CTAS * 4 / sizeof(A), Args, { \
        extern __shared__ __align__(16) char memory[]; \
        Scan<T, A, PACKED>(args, memory).run(); \
    })

FOR_EACH_FLOAT(EXPORT_SELECTIVE, selective_scan, 4, SelectiveArgs, SelectiveForward, false)
FOR_EACH_FLOAT(EXPORT_SELECTIVE, selective_scan_packed, 3, SelectiveArgs, SelectiveForward, true)
FOR_EACH_FLOAT(EXPORT_SELECTIVE, selective_scan_backward, 2, SelectiveBackwardArgs, SelectiveBackward, false)
FOR_EACH_FLOAT(EXPORT_SELECTIVE, selective_scan_backward_packed, 2, SelectiveBackwardArgs, SelectiveBackward, true)

// Results of the dtype of elements, and of accumulators.
#define EXPORT_SUM(name, T, A, ...) \
    EXPORT(selective_sum_##name, 1, SumArgs, sum_arrays<T, A>(args)) \
    EXPORT(selective_sum_wide_##name, 1, SumArgs, sum_arrays<A, A>(args))
FOR_EACH_FLOAT(EXPORT_SUM)

// Kernels of gradients of linear recurrences whose results may be terms of sums.
#include "scan/export.cuh"
#include "scan/kinds/linear.cuh"

#define EXPORT_TERMS(name, T) \
    EXPORT_KIND(name, T, float, linear_recurrence_terms, LinearTerms) \
    EXPORT_PACKED_LINEAR(name, T, float, linear_recurrence_terms, PackedLinearTerms)
EXPORT_TERMS(f16, __half)
EXPORT_TERMS(bf16, __nv_bfloat16)

// Of float32 those that sum terms along rows: the others store terms as any result.
EXPORT_THREADS(linear_recurrence_terms_row_resident_f32, kRowResidentThreads, 1, LinearArgs,
    row_resident<LinearTerms<float>, float>(args))
EXPORT_THREADS(linear_recurrence_terms_row_tiled_f32, kRowResidentThreads, kTiledCTAsPerSM, LinearArgs,
    row_tiled<LinearTerms<float>, float>(args))
EXPORT_THREADS(linear_recurrence_terms_column_tiled_f32, kColumnThreads, kTiledCTAsPerSM, LinearArgs,
    column_tiled<LinearTerms<float>, float>(args))

// Kernels of gradients of linear recurrences of 16 bits, whose results may be terms of sums.
#include "scan/export.cuh"
#include "scan/kinds/linear.cuh"

EXPORT_KIND(f16, __half, float, linear_recurrence_terms, LinearTerms)
EXPORT_KIND(bf16, __nv_bfloat16, float, linear_recurrence_terms, LinearTerms)
EXPORT_PACKED_LINEAR(f16, __half, float, linear_recurrence_terms, PackedLinearTerms)
EXPORT_PACKED_LINEAR(bf16, __nv_bfloat16, float, linear_recurrence_terms, PackedLinearTerms)

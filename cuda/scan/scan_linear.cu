// Kernels of linear recurrences and their gradients.
#include "scan/export.cuh"
#include "scan/kinds/linear.cuh"

static_assert(has_listed_states<PackedLinear<float>, float>() && has_listed_states<PackedLinear<double>, double>());
static_assert(has_listed_states<PackedLinearBackward<float>, float>() &&
              has_listed_states<PackedLinearBackward<double>, double>());

FOR_EACH_FLOAT(EXPORT_KIND, linear_recurrence, LinearForward)
FOR_EACH_FLOAT(EXPORT_COLUMN_PIPELINED, linear_recurrence, LinearForward)
FOR_EACH_FLOAT(EXPORT_ROW_PIPELINED, linear_recurrence, LinearForward)
FOR_EACH_FLOAT(EXPORT_KIND, linear_recurrence_backward, LinearBackward)
FOR_EACH_FLOAT(EXPORT_COLUMN_PIPELINED, linear_recurrence_backward, LinearBackward)
FOR_EACH_FLOAT(EXPORT_ROW_PIPELINED, linear_recurrence_backward, LinearBackward)

FOR_EACH_FLOAT(EXPORT_PACKED_LINEAR, linear_recurrence, PackedLinear)
FOR_EACH_FLOAT(EXPORT_PACKED_LINEAR, linear_recurrence_backward, PackedLinearBackward)

#define EXPORT_PACKED_LINEAR_PIPELINED(name, T, A, kind, Kind) \
    EXPORT_THREADS(kind##_packed_column_pipelined_##name, kColumnPipelinedThreads, \
        1, LinearArgs, column_pipelined<Kind<A>, T>(args)) \
    EXPORT_THREADS(kind##_packed_row_pipelined_##name, kRowPipelinedThreads, \
        Kind<A>::Tuning::ROW_PIPELINED_CTAS_PER_SM[sizeof(T) / 4], LinearArgs, row_pipelined<Kind<A>, T>(args))
FOR_EACH_FLOAT(EXPORT_PACKED_LINEAR_PIPELINED, linear_recurrence, PackedLinear)
FOR_EACH_FLOAT(EXPORT_PACKED_LINEAR_PIPELINED, linear_recurrence_backward, PackedLinearBackward)

#define EXPORT_PASS(name, T, A, ...) \
    EXPORT_THREADS(linear_pass_##name, kBlockThreads, 1, LinearArgs, pass_states<A, T>(args))
FOR_EACH_FLOAT(EXPORT_PASS)

// Kernels of cumsum, of cummax and cummin (kind Cumextremum), and of cummax and cummin given the
// indices of the forward pass (kind Indices).
#include "scan/export.cuh"
#include "scan/kinds/cumextremum.cuh"
#include "scan/kinds/indices.cuh"
#include "scan/sequences.cuh"
#include "scan/sums.cuh"

FOR_EACH_FLOAT(EXPORT_KIND, scan_backward_cumsum, Cumsum)
FOR_EACH_FLOAT(EXPORT_KIND, scan_backward_cumextremum, Cumextremum)
FOR_EACH_FLOAT(EXPORT_KIND, scan_backward_indices, Indices)
FOR_EACH_FLOAT(EXPORT_COLUMN_PIPELINED, scan_backward_cumsum, Cumsum)
FOR_EACH_FLOAT(EXPORT_COLUMN_PIPELINED, scan_backward_cumextremum, FromRecordFlags)
FOR_EACH_FLOAT(EXPORT_ROW_PIPELINED, scan_backward_cumsum, Cumsum)
FOR_EACH_FLOAT(EXPORT_ROW_PIPELINED, scan_backward_cumextremum, FromRecordFlags)
FOR_EACH_FLOAT(EXPORT_ROW_CLUSTER, scan_backward_cumextremum, Cumextremum)
FOR_EACH_FLOAT(EXPORT_COLUMN_PIPELINED, scan_backward_cumextremum_records, RecordPass)
FOR_EACH_FLOAT(EXPORT_ROW_PIPELINED, scan_backward_cumextremum_records, RecordPass)

#define EXPORT_REPAIR(name, T, A, ...) \
    EXPORT_THREADS(scan_backward_indices_repair_##name, kRepairThreads, 1, ScanArgs, repair<T>(args))
FOR_EACH_FLOAT(EXPORT_REPAIR)

// Zeroes memory of the workspace.
EXPORT_THREADS(scan_clear, kBlockThreads, 1, ClearArgs, {
    const i64 i = static_cast<i64>(blockIdx.x) * kBlockThreads + threadIdx.x;
    if (i < args.words) args.data[i] = make_uint4(0, 0, 0, 0);
})

EXPORT_THREADS(scan_heads, kBlockThreads, 1, HeadsArgs, store_heads(args))

#define EXPORT_FILL(name, T, A, ...) \
    EXPORT_THREADS(scan_fill_##name, kBlockThreads, 1, FillArgs, fill_ends<T>(args))
FOR_EACH_FLOAT(EXPORT_FILL)

#define EXPORT_SUM(name, T, A, ...) \
    EXPORT(scan_sum_##name, 4, SumArgs, sum_terms<T, A>(args))
FOR_EACH_FLOAT(EXPORT_SUM)

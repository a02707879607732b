// cumsum, and cummax and cummin (cumextremum; indices is the same with the winners given).
#include "scan/export.cuh"
#include "scan/kinds/cumextremum.cuh"
#include "scan/kinds/indices.cuh"

FOR_EACH_FLOAT(EXPORT_KIND, cumsum, Cumsum, 2, 3, 5, 5, 2)
FOR_EACH_FLOAT(EXPORT_KIND, cumextremum, Cumextremum, 2, 2, 3, 3, 2)
FOR_EACH_FLOAT(EXPORT_KIND, indices, Indices, 2, 2, 3, 3, 2)
FOR_EACH_FLOAT(EXPORT_STRIPS, cumsum, Cumsum)
FOR_EACH_FLOAT(EXPORT_STRIPS, cumextremum, Recorded)
FOR_EACH_FLOAT(EXPORT_LONG, cumsum, Cumsum, 2)
FOR_EACH_FLOAT(EXPORT_LONG, cumextremum, Recorded, 3)
FOR_EACH_FLOAT(EXPORT_PIECES, cumextremum, Cumextremum)
FOR_EACH_FLOAT(EXPORT_STRIPS, cumextremum_records, Finder)
FOR_EACH_FLOAT(EXPORT_LONG, cumextremum_records, Finder, 3)

#define EXPORT_REPAIR(name, T, A, ...) \
    EXPORT_THREADS(scan_backward_indices_repair_##name, kRepairThreads, 1, ScanArgs, repair<T>(args))
FOR_EACH_FLOAT(EXPORT_REPAIR)

struct ClearArgs {
    uint4* data;
    i64 words;
};

EXPORT_THREADS(scan_clear, kBlock, 1, ClearArgs, {
    const i64 i = static_cast<i64>(blockIdx.x) * kBlock + threadIdx.x;
    if (i < args.words) args.data[i] = make_uint4(0, 0, 0, 0);
})

// Kernels of scans of packed sequences and of their gradients. They are those of the general kinds.
#include "scan/export.cuh"
#include "scan/kinds/packed.cuh"

#define EXPORT_PACKED(name, T, A, kind, Kind) \
    static_assert(has_listed_states<Packed<Kind<A>>, A>()); \
    EXPORT_THREADS(kind##_packed_row_tiled_##name, kRowResidentThreads, \
        kPackedTiledCTAsPerSM<Kind<A>>, ScanArgs, row_tiled<Packed<Kind<A>>, T>(args)) \
    EXPORT_THREADS(kind##_packed_row_resident_##name, kRowResidentThreads, \
        Packed<Kind<A>>::Tuning::ROW_RESIDENT_CTAS_PER_SM[sizeof(T) / 4], \
        ScanArgs, row_resident<Packed<Kind<A>>, T>(args)) \
    EXPORT_THREADS(kind##_packed_column_tiled_##name, kColumnThreads, \
        kPackedTiledCTAsPerSM<Kind<A>>, ScanArgs, column_tiled<Packed<Kind<A>>, T>(args))

FOR_EACH_FLOAT(EXPORT_PACKED, scan_backward_cumsum, Cumsum)
FOR_EACH_FLOAT(EXPORT_PACKED, scan_backward_cumprod, Cumprod)
FOR_EACH_FLOAT(EXPORT_PACKED, scan_backward_cumextremum, Cumextremum)
FOR_EACH_FLOAT(EXPORT_PACKED, scan_backward_logcumsumexp, Logcumsumexp)
FOR_EACH_FLOAT(EXPORT_PACKED, scan_cumprod, ForwardCumprod)
FOR_EACH_FLOAT(EXPORT_PACKED, scan_cumextremum, ForwardValues)
FOR_EACH_FLOAT(EXPORT_PACKED, scan_indices, ForwardIndices)
FOR_EACH_FLOAT(EXPORT_PACKED, scan_logcumsumexp, ForwardLogcumsumexp)

// Pipelined rows, for kinds without a prefix. Pipelined columns are no faster than tiled ones.
#define EXPORT_PACKED_PIPELINED(name, T, A, kind, Kind) \
    EXPORT_THREADS(kind##_packed_row_pipelined_##name, kRowPipelinedThreads, \
        Packed<Kind<A>>::Tuning::ROW_PIPELINED_CTAS_PER_SM[sizeof(T) / 4], \
        ScanArgs, row_pipelined<Packed<Kind<A>>, T>(args))

FOR_EACH_FLOAT(EXPORT_PACKED_PIPELINED, scan_backward_cumsum, Cumsum)
FOR_EACH_FLOAT(EXPORT_PACKED_PIPELINED, scan_cumprod, ForwardCumprod)
FOR_EACH_FLOAT(EXPORT_PACKED_PIPELINED, scan_cumextremum, ForwardValues)
FOR_EACH_FLOAT(EXPORT_PACKED_PIPELINED, scan_indices, ForwardIndices)
FOR_EACH_FLOAT(EXPORT_PACKED_PIPELINED, scan_logcumsumexp, ForwardLogcumsumexp)

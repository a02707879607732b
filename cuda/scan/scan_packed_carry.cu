// The kernels of scan_carry.cu for packed sequences, which chunks may cut.
#include "scan/export.cuh"
#include "scan/kinds/carry_forms.cuh"

#define EXPORT_CARRY(name, T, A, kind, Kind) \
    EXPORT_THREADS(kind##_packed_carry_row_tiled_##name, kRowResidentThreads, \
        kPackedTiledCTAsPerSM<Kind<A>>, CarryArgs, row_tiled<WithCarries<Packed<Kind<A>>>, T>(args)) \
    EXPORT_THREADS(kind##_packed_carry_column_tiled_##name, kColumnThreads, \
        kPackedTiledCTAsPerSM<Kind<A>>, CarryArgs, column_tiled<WithCarries<Packed<Kind<A>>>, T>(args))

FOR_EACH_FLOAT(EXPORT_CARRY, scan_backward_cumsum, Cumsum)
FOR_EACH_FLOAT(EXPORT_CARRY, scan_backward_cumprod, Cumprod)
FOR_EACH_FLOAT(EXPORT_CARRY, scan_backward_cumextremum, Cumextremum)
FOR_EACH_FLOAT(EXPORT_CARRY, scan_backward_logcumsumexp, Logcumsumexp)
FOR_EACH_FLOAT(EXPORT_CARRY, scan_cumprod, ForwardCumprod)
FOR_EACH_FLOAT(EXPORT_CARRY, scan_indices, CarriedIndices)
FOR_EACH_FLOAT(EXPORT_CARRY, scan_logcumsumexp, ForwardLogcumsumexp)

// Kernels of cumprod.
#include "scan/export.cuh"
#include "scan/kinds/cumprod_fast.cuh"

FOR_EACH_FLOAT(EXPORT_KIND, cumprod, Cumprod, 2, 2, 3, 2, 2)
FOR_EACH_FLOAT(EXPORT_COLUMN_PIPELINED, cumprod, Cumprod)
FOR_EACH_FLOAT(EXPORT_ROW_PIPELINED, cumprod, Cumprod)
FOR_EACH_FLOAT(EXPORT_ROW_CLUSTER, cumprod, Cumprod)
FOR_EACH_FLOAT(EXPORT_COLUMN_CLUSTER, cumprod, Cumprod)

// cumprod.
#include "scan/export.cuh"
#include "scan/kinds/cumprod_fast.cuh"

FOR_EACH_FLOAT(EXPORT_KIND, cumprod, Cumprod, 2, 2, 3, 2, 2)
FOR_EACH_FLOAT(EXPORT_STRIPS, cumprod, Cumprod)
FOR_EACH_FLOAT(EXPORT_LONG, cumprod, Cumprod, 2)
FOR_EACH_FLOAT(EXPORT_PIECES, cumprod, Cumprod)
FOR_EACH_FLOAT(EXPORT_SLABS, cumprod, Cumprod)

// logcumsumexp.
#include "scan/export.cuh"
#include "scan/kinds/logcumsumexp_fast.cuh"

FOR_EACH_FLOAT(EXPORT_KIND, logcumsumexp, Logcumsumexp, 2, 2, 4, 3, 2)
FOR_EACH_FLOAT(EXPORT_STRIPS, logcumsumexp, Logcumsumexp)
FOR_EACH_FLOAT(EXPORT_LONG, logcumsumexp, Logcumsumexp, 2)
FOR_EACH_FLOAT(EXPORT_PIECES, logcumsumexp, Logcumsumexp)
FOR_EACH_FLOAT(EXPORT_SLABS, logcumsumexp, Logcumsumexp)

// logcumsumexp.
#include "scan_export.cuh"
#include "scan_logcumsumexp_tame.cuh"

FOR_EACH_FLOAT(EXPORT_KIND, logcumsumexp, Logcumsumexp, 2, 2, 4, 3, 2)
FOR_EACH_FLOAT(EXPORT_STRIPS, logcumsumexp, Logcumsumexp)
FOR_EACH_FLOAT(EXPORT_LONG, logcumsumexp, Logcumsumexp, 2)
FOR_EACH_FLOAT(EXPORT_PIECES, logcumsumexp, Logcumsumexp)
FOR_EACH_FLOAT(EXPORT_SLABS, logcumsumexp, Logcumsumexp)

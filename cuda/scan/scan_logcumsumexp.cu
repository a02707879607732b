// Kernels of logcumsumexp.
#include "scan/export.cuh"
#include "scan/kinds/logcumsumexp_fast.cuh"

FOR_EACH_FLOAT(EXPORT_KIND, scan_backward_logcumsumexp, Logcumsumexp)
FOR_EACH_FLOAT(EXPORT_COLUMN_PIPELINED, scan_backward_logcumsumexp, Logcumsumexp)
FOR_EACH_FLOAT(EXPORT_ROW_PIPELINED, scan_backward_logcumsumexp, Logcumsumexp)
FOR_EACH_FLOAT(EXPORT_ROW_CLUSTER, scan_backward_logcumsumexp, Logcumsumexp)
FOR_EACH_FLOAT(EXPORT_COLUMN_CLUSTER, scan_backward_logcumsumexp, Logcumsumexp)

// Kernels of the forward scans: cumprod, logcumsumexp, cummax and cummin (ForwardValues) and these
// with indices (ForwardIndices). Forward cumsum uses the kernels of its gradient.
#include "scan/export.cuh"
#include "scan/kinds/forward_cumextremum.cuh"
#include "scan/kinds/forward_cumprod.cuh"
#include "scan/kinds/forward_logcumsumexp.cuh"

FOR_EACH_FLOAT(EXPORT_KIND, scan_cumprod, ForwardCumprod)
FOR_EACH_FLOAT(EXPORT_KIND, scan_cumextremum, ForwardValues)
FOR_EACH_FLOAT(EXPORT_KIND, scan_indices, ForwardIndices)
FOR_EACH_FLOAT(EXPORT_KIND, scan_logcumsumexp, ForwardLogcumsumexp)
FOR_EACH_FLOAT(EXPORT_COLUMN_PIPELINED, scan_cumprod, ForwardCumprod)
FOR_EACH_FLOAT(EXPORT_COLUMN_PIPELINED, scan_cumextremum, ForwardValues)
FOR_EACH_FLOAT(EXPORT_COLUMN_PIPELINED, scan_indices, ForwardIndices)
FOR_EACH_FLOAT(EXPORT_COLUMN_PIPELINED, scan_logcumsumexp, ForwardLogcumsumexp)
FOR_EACH_FLOAT(EXPORT_ROW_PIPELINED, scan_cumprod, ForwardCumprod)
FOR_EACH_FLOAT(EXPORT_ROW_PIPELINED, scan_cumextremum, ForwardValues)
FOR_EACH_FLOAT(EXPORT_ROW_PIPELINED, scan_indices, ForwardIndices)
FOR_EACH_FLOAT(EXPORT_ROW_PIPELINED, scan_logcumsumexp, ForwardLogcumsumexp)

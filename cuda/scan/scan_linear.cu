// Kernels of linear recurrences and their gradients.
#include "scan/export.cuh"
#include "scan/kinds/linear.cuh"

FOR_EACH_FLOAT(EXPORT_KIND, linear_recurrence, LinearForward)
FOR_EACH_FLOAT(EXPORT_COLUMN_PIPELINED, linear_recurrence, LinearForward)
FOR_EACH_FLOAT(EXPORT_ROW_PIPELINED, linear_recurrence, LinearForward)
FOR_EACH_FLOAT(EXPORT_KIND, linear_recurrence_backward, LinearBackward)

// Kernels of linear recurrences with one factor for all elements of a row.
#include "scan/export.cuh"
#include "scan/kinds/linear.cuh"

FOR_EACH_FLOAT(EXPORT_KIND, linear_recurrence_one, LinearOneFactor)
FOR_EACH_FLOAT(EXPORT_COLUMN_PIPELINED, linear_recurrence_one, LinearOneFactor)
FOR_EACH_FLOAT(EXPORT_ROW_PIPELINED, linear_recurrence_one, LinearOneFactor)
FOR_EACH_FLOAT(EXPORT_PACKED_LINEAR, linear_recurrence_one, PackedLinearOneFactor)

// The second step of every sum that was cut into chunks, by accumulator.
#include "mapreduce.cuh"

EXPORT(combine_f32, 1, CombineArgs, combine<float>(args))
EXPORT(combine_f64, 1, CombineArgs, combine<double>(args))

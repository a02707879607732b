/* FakeQuantizePerTokenBackward on the CPU (dequantize.h), for each processor. */
#include "dequantize.h"

#include <math.h>

#include "tree.h"
#include "vector.h"

#define LOOPS "dequantize_loops.h"
#include "each_processor.h"

void sw_fake_quantize_f32(float *dx, double *dscale, double *dzero_point, const float *dy, const float *x,
                          const float *scale, const float *zero_point, long run, float low, float high, long n) {
  CHOSEN(fake_quantize_f32)(dx, dscale, dzero_point, dy, x, scale, zero_point, run, low, high, n);
}

void sw_fake_quantize_f64(double *dx, double *dscale, double *dzero_point, const double *dy, const double *x,
                          const double *scale, const double *zero_point, long run, double low, double high, long n) {
  CHOSEN(fake_quantize_f64)(dx, dscale, dzero_point, dy, x, scale, zero_point, run, low, high, n);
}

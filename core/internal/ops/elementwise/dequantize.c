/* Dequantization and fake quantization on the CPU (dequantize.h), for each processor. */
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

void sw_dequantize_forward_f32(float *y, const float *q, const float *scale, const float *zero_point, long run,
                               long n) {
  CHOSEN(dequantize_forward_f32)(y, q, scale, zero_point, run, n);
}

void sw_dequantize_forward_f64(double *y, const double *q, const double *scale, const double *zero_point, long run,
                               long n) {
  CHOSEN(dequantize_forward_f64)(y, q, scale, zero_point, run, n);
}

void sw_fake_quantize_forward_f32(float *y, const float *x, const float *scale, const float *zero_point, long run,
                                  float low, float high, long n) {
  CHOSEN(fake_quantize_forward_f32)(y, x, scale, zero_point, run, low, high, n);
}

void sw_fake_quantize_forward_f64(double *y, const double *x, const double *scale, const double *zero_point, long run,
                                  double low, double high, long n) {
  CHOSEN(fake_quantize_forward_f64)(y, x, scale, zero_point, run, low, high, n);
}

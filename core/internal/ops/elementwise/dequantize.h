#ifndef STERNWAY_OP_DEQUANTIZE_H
#define STERNWAY_OP_DEQUANTIZE_H
#include <stdint.h>

/* The levels of a fake quantization: its bounds, and whether x times the reciprocal of scale takes
   the place of x / scale. */
typedef struct { double low, high; int reciprocal; } sw_levels;

/* FakeQuantizePerTokenBackward over one block of runs. Computes dx per element, and dscale and
   dzero_point, the sums of their terms, per run; the latter two may be NULL. scale and zero_point
   (rounded and clamped) have one number per run. The ratio x / scale, which decides the level, is
   rounded to the type of the operands like in a forward of that type; terms are float64. */
void sw_fake_quantize_f32(float *dx, double *dscale, double *dzero_point, const float *dy, const float *x,
                          const float *scale, const float *zero_point, long run, sw_levels levels, long n);
void sw_fake_quantize_f64(double *dx, double *dscale, double *dzero_point, const double *dy, const double *x,
                          const double *scale, const double *zero_point, long run, sw_levels levels, long n);

/* Blocks of DequantizePerToken and FakeQuantizePerToken. scale and zero_point have one number per
   run; a fake quantization gets zero_point rounded and clamped. y may be x. All arithmetic is in
   the type of the operands. */
void sw_dequantize_forward_f32(float *y, const float *q, const float *scale, const float *zero_point, long run, long n);
void sw_dequantize_forward_f64(double *y, const double *q, const double *scale, const double *zero_point, long run,
                               long n);
void sw_fake_quantize_forward_f32(float *y, const float *x, const float *scale, const float *zero_point, long run,
                                  sw_levels levels, long n);
void sw_fake_quantize_forward_f64(double *y, const double *x, const double *scale, const double *zero_point, long run,
                                  sw_levels levels, long n);

/* The same with a scale and a zero point for each element; zero_point may be NULL. The terms of
   dscale and dzero_point, which may be NULL, are left for each element. */
#define SW_EACH(suffix, type) \
  void sw_dequantize_each_##suffix(type *y, const type *q, const type *scale, const type *zero_point, long n); \
  void sw_fake_quantize_forward_each_##suffix(type *y, const type *x, const type *scale, const type *zero_point, \
                                              sw_levels levels, long n); \
  void sw_fake_quantize_each_##suffix(type *dx, double *dscale, double *dzero_point, const type *dy, const type *x, \
                                      const type *scale, const type *zero_point, sw_levels levels, long n);
SW_EACH(f32, float)
SW_EACH(f64, double)
#undef SW_EACH

/* The same for elements where they lie in memory, adjacent, in their storage types. scale and
   zero_point are of float64 if the output is, and of float32 otherwise. */
typedef struct {
  uintptr_t in, out; /* addresses */
  long in_dtype, out_dtype; /* rows of tensor.DTypeRows */
  long run, n; /* n elements: one run, or a part of it, or several whole runs */
} sw_dense_block;

void sw_dequantize_dense(sw_dense_block b, const void *scale, const void *zero_point);
void sw_fake_quantize_dense(sw_dense_block b, const void *scale, const void *zero_point, sw_levels levels);
#endif

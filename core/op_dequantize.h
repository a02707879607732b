#ifndef STERNWAY_OP_DEQUANTIZE_H
#define STERNWAY_OP_DEQUANTIZE_H

/* Fake quantise over one block: dx, dscale and dzero_point for each element as FakeQuantizePerTokenBackward says; scale and
   zero_point, already rounded and clamped, have one number for each run of elements. */
void sw_fake_quantize_f32(float *dx, float *dscale, float *dzero_point, const float *dy, const float *x, const float *scale,
                          const float *zero_point, long run, float low, float high, long n);
void sw_fake_quantize_f64(double *dx, double *dscale, double *dzero_point, const double *dy, const double *x, const double *scale,
                          const double *zero_point, long run, double low, double high, long n);
#endif

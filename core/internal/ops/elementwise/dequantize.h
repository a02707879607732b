#ifndef STERNWAY_OP_DEQUANTIZE_H
#define STERNWAY_OP_DEQUANTIZE_H

/* Fake quantise over one block, as FakeQuantizePerTokenBackward says: dx for each element, dscale and dzero_point, the sums of their terms,
   for each run of elements, of which scale and zero_point, already rounded and clamped, have one number. dscale and dzero_point are
   left out where they are NULL. The ratio x / scale that decides the level is rounded to the type of the operands, as a forward in
   that type rounds it; the terms are float64. */
void sw_fake_quantize_f32(float *dx, double *dscale, double *dzero_point, const float *dy, const float *x, const float *scale,
                          const float *zero_point, long run, float low, float high, long n);
void sw_fake_quantize_f64(double *dx, double *dscale, double *dzero_point, const double *dy, const double *x, const double *scale,
                          const double *zero_point, long run, double low, double high, long n);
#endif

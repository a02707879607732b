/* Dequantization and fake quantization on the CPU (dequantize.h), for each processor. */
#include "dequantize.h"

#include <float.h>
#include <math.h>

#include "../../cpu/tree.h"
#include "../../cpu/vector.h"

#define LOOPS "dequantize_loops.h"
#include "../../cpu/each_processor.h"

void sw_fake_quantize_f32(float *dx, double *dscale, double *dzero_point, const float *dy, const float *x,
                          const float *scale, const float *zero_point, long run, sw_levels levels, long n) {
  CHOSEN(fake_quantize_f32)(dx, dscale, dzero_point, dy, x, scale, zero_point, run, levels, n);
}

void sw_fake_quantize_f64(double *dx, double *dscale, double *dzero_point, const double *dy, const double *x,
                          const double *scale, const double *zero_point, long run, sw_levels levels, long n) {
  CHOSEN(fake_quantize_f64)(dx, dscale, dzero_point, dy, x, scale, zero_point, run, levels, n);
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
                                  sw_levels levels, long n) {
  CHOSEN(fake_quantize_forward_f32)(y, x, scale, zero_point, run, levels, n);
}

void sw_fake_quantize_forward_f64(double *y, const double *x, const double *scale, const double *zero_point, long run,
                                  sw_levels levels, long n) {
  CHOSEN(fake_quantize_forward_f64)(y, x, scale, zero_point, run, levels, n);
}

#define EACH(suffix, type) \
  void sw_dequantize_each_##suffix(type *y, const type *q, const type *scale, const type *zero_point, long n) { \
    CHOSEN(dequantize_each_##suffix)(y, q, scale, zero_point, n); \
  } \
  void sw_fake_quantize_forward_each_##suffix(type *y, const type *x, const type *scale, const type *zero_point, \
                                              sw_levels levels, long n) { \
    CHOSEN(fake_quantize_forward_each_##suffix)(y, x, scale, zero_point, levels, n); \
  } \
  void sw_fake_quantize_each_##suffix(type *dx, double *dscale, double *dzero_point, const type *dy, const type *x, \
                                      const type *scale, const type *zero_point, sw_levels levels, long n) { \
    CHOSEN(fake_quantize_each_##suffix)(dx, dscale, dzero_point, dy, x, scale, zero_point, levels, n); \
  }

EACH(f32, float)
EACH(f64, double)

/* Elements that are converted at once, a buffer in the L1 cache. */
enum { CHUNK = 2048 };

/* The elements of b from `start` on that fit into a chunk: a part of a run, or several whole runs.
   Sets the number of the first run and the length of each. */
static long chunk_of(const sw_dense_block *b, long start, long *first, long *run) {
  long left = b->n - start, m = b->run <= CHUNK ? CHUNK / b->run * b->run : CHUNK;
  if (b->run > CHUNK) left = LEAST(left, b->run - start % b->run);
  m = LEAST(m, left);
  *first = start / b->run;
  *run = LEAST(b->run, m);
  return m;
}

static const float *widened(float *buffer, const sw_dense_block *b, long start, long n) {
  if (b->in_dtype == DTYPE_f32) return (const float *)b->in + start;
  sw_widen(b->in_dtype, buffer, (const char *)b->in + start * DTYPE_SIZE[b->in_dtype], n);
  return buffer;
}

/* Where a chunk of results is to be computed: the output itself, or a buffer for narrowed(). */
static float *place_of(float *buffer, const sw_dense_block *b, long start) {
  return b->out_dtype == DTYPE_f32 ? (float *)b->out + start : buffer;
}

static void narrowed(const sw_dense_block *b, const float *values, long start, long n) {
  if (b->out_dtype == DTYPE_f32) return;
  sw_narrow(b->out_dtype, (char *)b->out + start * DTYPE_SIZE[b->out_dtype], values, n);
}

void sw_dequantize_dense(sw_dense_block b, const void *scale, const void *zero_point) {
  float wide[CHUNK];
  for (long start = 0, m, k, run; start < b.n; start += m) {
    m = chunk_of(&b, start, &k, &run);
    const float *q = widened(wide, &b, start, m);
    if (b.out_dtype == DTYPE_f64) {
      double *y = (double *)b.out + start;
      CHOSEN(double_of_float)(y, q, m);
      CHOSEN(dequantize_forward_f64)(y, y, (const double *)scale + k, (const double *)zero_point + k, run, m);
      continue;
    }
    float *y = place_of(wide, &b, start);
    CHOSEN(dequantize_forward_f32)(y, q, (const float *)scale + k, (const float *)zero_point + k, run, m);
    narrowed(&b, y, start, m);
  }
}

void sw_fake_quantize_dense(sw_dense_block b, const void *scale, const void *zero_point, sw_levels levels) {
  float wide[CHUNK];
  for (long start = 0, m, k, run; start < b.n; start += m) {
    m = chunk_of(&b, start, &k, &run);
    if (b.out_dtype == DTYPE_f64) {
      const double *x = (const double *)b.in + start;
      CHOSEN(fake_quantize_forward_f64)((double *)b.out + start, x, (const double *)scale + k,
                                        (const double *)zero_point + k, run, levels, m);
      continue;
    }
    const float *x = widened(wide, &b, start, m);
    float *y = place_of(wide, &b, start);
    CHOSEN(fake_quantize_forward_f32)(y, x, (const float *)scale + k, (const float *)zero_point + k, run, levels, m);
    narrowed(&b, y, start, m);
  }
}

#include "op_dequantize.h"

#include <math.h>
#include <stddef.h>

#include "vector.h"

/* t = round(x / scale) + zero_point; a NaN is outside, and stays a NaN in its level. */
#define FAKE_QUANTIZE(suffix, type, nearest) \
  INLINE void fake_quantize_run_##suffix(type *dx, type *dscale, type *dzero, const type *dy, const type *x, type s, type z, \
                                         type low, type high, long n) { \
    for (long i = 0; i < n; i++) { \
      type g = dy[i], ratio = x[i] / s, t = nearest(ratio) + z; \
      int inside = t >= low && t <= high; \
      type level = t < low ? low : t > high ? high : t; \
      if (dx) dx[i] = inside ? g : 0; \
      if (dscale) dscale[i] = g * ((level - z) - (inside ? ratio : 0)); \
      if (dzero) dzero[i] = inside ? 0 : -g * s; \
    } \
  } \
  EACH_PROCESSOR(void, fake_quantize_##suffix, \
                 (type *dx, type *dscale, type *dzero, const type *dy, const type *x, const type *scale, const type *zero, long run, \
                  type low, type high, long n), (dx, dscale, dzero, dy, x, scale, zero, run, low, high, n), { \
    for (long at = 0, k = 0; at < n; at += run, k++) { \
      long count = at + run <= n ? run : n - at; \
      if (dx && dscale && !dzero) \
        fake_quantize_run_##suffix(dx + at, dscale + at, NULL, dy + at, x + at, scale[k], zero[k], low, high, count); \
      else \
        fake_quantize_run_##suffix(dx ? dx + at : NULL, dscale ? dscale + at : NULL, dzero ? dzero + at : NULL, dy + at, x + at, \
                                   scale[k], zero[k], low, high, count); \
    } \
  })

FAKE_QUANTIZE(f32, float, rintf)
FAKE_QUANTIZE(f64, double, rint)

/* The loops of dequantize and fake quantize. dequantize.c includes this header once per vector
   width. */

#include "../../cpu/tree_loops.h"

/* x - q s, rounded once. The product of two float32 is exact in float64, and so is this difference
   where q is near x / s. */
#if VECTOR < 256
#define REST(x, q, s) (float)((double)(x) - (double)(q) * (double)(s))
#else
#define REST(x, q, s) __builtin_fmaf(-(q), s, x)
#endif

/* The constants of a token. The ratio of x to the scale is x factor / divisor: factor is 1, or
   divisor is 1 and factor the reciprocal of the scale. A scale of 0 is the limit of small positive
   scales: x / 0 is infinite with the sign of x, for which divisor is +0, and 0 / 0 is 0. inverse is
   0 for scales of 0 and infinity, for which the residual inside the bounds is 0. */
typedef struct { float factor, divisor; } AT(quotient_f32);
typedef struct { double factor, divisor; } AT(quotient_f64);
typedef struct { float scale, zero, low, high; AT(quotient_f32) by; double inverse; int plain; } AT(token_f32);
typedef struct { double scale, zero, low, high; AT(quotient_f64) by; } AT(token_f64);

INLINE AT(quotient_f32) AT(quotient_of_f32)(float scale, int reciprocal) {
  return (AT(quotient_f32)){reciprocal ? 1 / scale : 1, reciprocal ? 1 : scale};
}
INLINE AT(quotient_f64) AT(quotient_of_f64)(double scale, int reciprocal) {
  return (AT(quotient_f64)){reciprocal ? 1 / scale : 1, reciprocal ? 1 : scale};
}

/* x over the scale of a quotient. */
#define RATIO(x, by) ((x) * (by).factor / (by).divisor)

/* plain: the remainder of x / scale, and a level less its zero point, are exact in float32. */
INLINE AT(token_f32) AT(token_of_f32)(float scale, float zero, sw_levels levels) {
  const float low = (float)levels.low, high = (float)levels.high;
  int small = fabsf(zero) <= 0x1p22f && fabsf(low) <= 0x1p22f && fabsf(high) <= 0x1p22f;
  return (AT(token_f32)){
      scale, zero, low, high, AT(quotient_of_f32)(scale == 0 ? 0 : scale, levels.reciprocal),
      scale == 0 || isinf(scale) ? 0 : 1 / (double)scale, small && fabsf(scale) >= 0x1p-96f && !isinf(scale),
  };
}

INLINE AT(token_f64) AT(token_of_f64)(double scale, double zero, sw_levels levels) {
  const AT(quotient_f64) by = AT(quotient_of_f64)(scale == 0 ? 0 : scale, levels.reciprocal);
  return (AT(token_f64)){scale, zero, levels.low, levels.high, by};
}

/* x where mask is all ones, 0 where it is 0: a choice that never becomes a branch. */
INLINE float AT(where)(uint32_t mask, float x) { return float_of(bits_of(x) & mask); }

/* dx and the terms of n <= LANES elements, those of dzero_point without their factor scale. A NaN
   is outside, and stays a NaN in its level. This one is for plain tokens. The level is decided in
   float32, as a forward in that type does it; terms are float64: round(x / s) - x / s is round(q) -
   q, which is exact, less (x - q s) / s, where q is x / s in float32. */
TARGET INLINE void AT(fake_quantize_lanes_f32)(float *restrict dx, double *restrict dscale, double *restrict outside,
                                               const float *dy, const float *x, const AT(token_f32) *token, long n,
                                               int scales, int shifts) {
  const AT(token_f32) t = *token;
  float level[LANES], rest[LANES], outer[LANES];
  for (long j = 0; j < n; j++) {
    float g = dy[j], v = x[j], ratio = RATIO(v, t.by), whole = rintf(ratio), q = whole + t.zero;
    uint32_t inside = ((q >= t.low) & (q <= t.high)) ? UINT32_MAX : 0;
    q = q < t.low ? t.low : q;
    q = q > t.high ? t.high : q;
    level[j] = float_of((bits_of(whole - ratio) & inside) | (bits_of(q - t.zero) & ~inside));
    rest[j] = AT(where)(inside, REST(v, ratio, t.scale));
    outer[j] = AT(where)(~inside, g);
    dx[j] = AT(where)(inside, g);
  }
  for (long j = 0; scales && j < n; j++) dscale[j] = (double)dy[j] * ((double)level[j] - (double)rest[j] * t.inverse);
  for (long j = 0; shifts && j < n; j++) outside[j] = outer[j];
}

/* fake_quantize_lanes_f32 for tokens that are not plain. */
TARGET static __attribute__((noinline)) void AT(fake_quantize_any_f32)(float *dx, double *dscale, double *outside,
    const float *dy, const float *x, const AT(token_f32) *t, long n) {
  for (long j = 0; j < n; j++) {
    float g = dy[j], ratio = t->scale == 0 && x[j] == 0 ? 0 : RATIO(x[j], t->by), whole = rintf(ratio),
        q = whole + t->zero;
    int inside = q >= t->low && q <= t->high;
    float level = q < t->low ? t->low : q > t->high ? t->high : q;
    double residual = t->inverse == 0 ? 0 : ((double)whole * t->scale - (double)x[j]) * t->inverse;
    dx[j] = inside ? g : 0;
    dscale[j] = (double)g * (inside ? residual : (double)level - (double)t->zero);
    outside[j] = inside ? 0 : g;
  }
}

TARGET INLINE void AT(fake_quantize_lanes_f64)(double *restrict dx, double *restrict dscale, double *restrict outside,
                                               const double *dy, const double *x, const AT(token_f64) *token, long n,
                                               int scales, int shifts) {
  const AT(token_f64) t = *token;
  for (long j = 0; j < n; j++) {
    double g = dy[j], v = x[j], ratio = ((t.scale == 0) & (v == 0)) ? 0 : RATIO(v, t.by), whole = rint(ratio),
                                         q = whole + t.zero; int inside = (q >= t.low) & (q <= t.high);
    double level = q < t.low ? t.low : q > t.high ? t.high : q;
    dx[j] = inside ? g : 0;
    if (scales) dscale[j] = g * (inside ? whole - ratio : level - t.zero);
    if (shifts) outside[j] = inside ? 0 : g;
  }
}

#define PLAIN_f32(t) (t).plain
#define PLAIN_f64(t) 1
#define ANY_f32 AT(fake_quantize_any_f32)
#define ANY_f64(dx, dscale, outside, dy, x, t, n) AT(fake_quantize_lanes_f64)(dx, dscale, outside, dy, x, t, n, 1, 1)

/* dx, and the sums of the terms over each run. */
#define FAKE_QUANTIZE(suffix, type) \
  TARGET INLINE void AT(fake_quantize_leaf_##suffix)(tree *dscale, tree *outside, type *dx, const type *dy, \
                                                     const type *x, const AT(token_##suffix) *t, int scales, \
                                                     int shifts) { \
    double scale[LANES], shift[LANES], scale_part[LANES], shift_part[LANES]; \
    AT(fake_quantize_lanes_##suffix)(dx, scale, shift, dy, x, t, LANES, scales, shifts); \
    for (long i = LANES; i < LEAF; i += LANES) { \
      AT(fake_quantize_lanes_##suffix)(dx + i, scale_part, shift_part, dy + i, x + i, t, LANES, scales, shifts); \
      for (int j = 0; scales && j < LANES; j++) scale[j] += scale_part[j]; \
      for (int j = 0; shifts && j < LANES; j++) shift[j] += shift_part[j]; \
    } \
    if (scales) AT(push)(dscale, scale); \
    if (shifts) AT(push)(outside, shift); \
  } \
  /* n <= LEAF elements: those that are left at an end, and those of an unusual token. */ \
  TARGET static __attribute__((noinline)) void AT(fake_quantize_few_##suffix)(tree *dscale, tree *outside, type *dx, \
      const type *dy, const type *x, const AT(token_##suffix) *t, long n, int scales, int shifts) { \
    double scale[LEAF], shift[LEAF]; \
    if (!PLAIN_##suffix(*t)) ANY_##suffix(dx, scale, shift, dy, x, t, n); \
    for (long i = 0, m; PLAIN_##suffix(*t) && i < n; i += m) { \
      m = LEAST(LANES, n - i); \
      AT(fake_quantize_lanes_##suffix)(dx + i, scale + i, shift + i, dy + i, x + i, t, m, 1, 1); \
    } \
    if (scales) AT(push_part)(dscale, scale, n); \
    if (shifts) AT(push_part)(outside, shift, n); \
  } \
  TARGET INLINE void AT(fake_quantize_runs_##suffix)(type *dx, double *dscale, double *dzero, const type *dy, \
                                                     const type *x, const type *scale, const type *zero, long run, \
                                                     sw_levels levels, long n, int scales, int shifts) { \
    tree scale_sum, shift_sum; \
    scale_sum.depth = shift_sum.depth = scale_sum.leaves = shift_sum.leaves = 0; \
    for (long start = 0, k = 0; start < n; start += run, k++) { \
      AT(token_##suffix) t = AT(token_of_##suffix)(scale[k], zero[k], levels); \
      long end = LEAST(n, start + run), i = start; \
      for (; PLAIN_##suffix(t) && i + LEAF <= end; i += LEAF) \
        AT(fake_quantize_leaf_##suffix)(&scale_sum, &shift_sum, dx + i, dy + i, x + i, &t, scales, shifts); \
      for (; i < end; i += LEAF) \
        AT(fake_quantize_few_##suffix)(&scale_sum, &shift_sum, dx + i, dy + i, x + i, &t, LEAST(LEAF, end - i), \
                                       scales, shifts); \
      if (scales) dscale[k] = AT(total)(&scale_sum); \
      if (shifts) { \
        double outside = AT(total)(&shift_sum); \
        dzero[k] = outside == 0 ? 0 : -outside * (double)t.scale; \
      } \
    } \
  } \
  TARGET static void AT(fake_quantize_##suffix)(type *dx, double *dscale, double *dzero, const type *dy, \
                                                const type *x, const type *scale, const type *zero, long run, \
                                                sw_levels levels, long n) { \
    switch ((dscale ? 2 : 0) + (dzero ? 1 : 0)) { \
    case 0: AT(fake_quantize_runs_##suffix)(dx, dscale, dzero, dy, x, scale, zero, run, levels, n, 0, 0); break; \
    case 1: AT(fake_quantize_runs_##suffix)(dx, dscale, dzero, dy, x, scale, zero, run, levels, n, 0, 1); break; \
    case 2: AT(fake_quantize_runs_##suffix)(dx, dscale, dzero, dy, x, scale, zero, run, levels, n, 1, 0); break; \
    default: AT(fake_quantize_runs_##suffix)(dx, dscale, dzero, dy, x, scale, zero, run, levels, n, 1, 1); \
    } \
  }

FAKE_QUANTIZE(f32, float)
FAKE_QUANTIZE(f64, double)
#undef FAKE_QUANTIZE

TARGET static void AT(double_of_float)(double *restrict out, const float *restrict in, long n) {
  for (long i = 0; i < n; i++) out[i] = in[i];
}

/* The forwards. Every level times a scale of 0 is 0, so that a divisor of 1, which keeps levels
   finite, stands in for that scale. A NaN is clamped to itself. */
#define FORWARD(suffix, type, round) \
  TARGET static void AT(dequantize_forward_##suffix)(type *y, const type *q, const type *scale, const type *zero, \
                                                     long run, long n) { \
    for (long start = 0, k = 0; start < n; start += run, k++) { \
      const long end = LEAST(n, start + run); \
      const type s = scale[k], z = zero[k]; \
      INDEPENDENT \
      for (long i = start; i < end; i++) y[i] = (q[i] - z) * s; \
    } \
  } \
  TARGET static void AT(fake_quantize_forward_##suffix)(type *y, const type *x, const type *scale, const type *zero, \
                                                        long run, sw_levels levels, long n) { \
    const type low = (type)levels.low, high = (type)levels.high; \
    for (long start = 0, k = 0; start < n; start += run, k++) { \
      const long end = LEAST(n, start + run); \
      const type s = scale[k], z = zero[k]; \
      const AT(quotient_##suffix) by = AT(quotient_of_##suffix)(s == 0 ? 1 : s, levels.reciprocal); \
      INDEPENDENT \
      for (long i = start; i < end; i++) { \
        type t = round(RATIO(x[i], by)) + z; \
        t = t < low ? low : t; \
        t = t > high ? high : t; \
        y[i] = (t - z) * s; \
      } \
    } \
  }

FORWARD(f32, float, rintf)
FORWARD(f64, double, rint)
#undef FORWARD

/* The same with a scale, and a zero point unless `shifted` is 0, for each element. The kind of the
   quotient is chosen at run time: as a constant, it leaves branches in the loop, which is then not
   vectorized. */
#define EACH(suffix, type, round, magnitude, most) \
  TARGET INLINE void AT(dequantize_each_loop_##suffix)(type *y, const type *q, const type *scale, const type *zero, \
                                                       long n, int shifted) { \
    INDEPENDENT \
    for (long i = 0; i < n; i++) y[i] = (q[i] - (shifted ? zero[i] : 0)) * scale[i]; \
  } \
  TARGET static void AT(dequantize_each_##suffix)(type *y, const type *q, const type *scale, const type *zero, \
                                                  long n) { \
    if (zero) AT(dequantize_each_loop_##suffix)(y, q, scale, zero, n, 1); \
    else AT(dequantize_each_loop_##suffix)(y, q, scale, scale, n, 0); \
  } \
  TARGET INLINE void AT(fake_quantize_forward_each_loop_##suffix)(type *y, const type *x, const type *scale, \
      const type *zero, sw_levels levels, long n, int shifted) { \
    const type low = (type)levels.low, high = (type)levels.high; \
    INDEPENDENT \
    for (long i = 0; i < n; i++) { \
      const type s = scale[i], z = shifted ? zero[i] : 0, divisor = s == 0 ? 1 : s; \
      type t = round(levels.reciprocal ? x[i] * (1 / divisor) : x[i] / divisor) + z; \
      t = t < low ? low : t; \
      t = t > high ? high : t; \
      y[i] = (t - z) * s; \
    } \
  } \
  TARGET static void AT(fake_quantize_forward_each_##suffix)(type *y, const type *x, const type *scale, \
      const type *zero, sw_levels levels, long n) { \
    if (zero) AT(fake_quantize_forward_each_loop_##suffix)(y, x, scale, zero, levels, n, 1); \
    else AT(fake_quantize_forward_each_loop_##suffix)(y, x, scale, scale, levels, n, 0); \
  } \
  TARGET INLINE void AT(fake_quantize_each_loop_##suffix)(type *restrict dx, double *restrict dscale, \
      double *restrict dzero, const type *dy, const type *x, const type *scale, const type *zero, sw_levels levels, \
      long n, int scales, int shifts, int shifted) { \
    const type low = (type)levels.low, high = (type)levels.high; \
    for (long i = 0; i < n; i++) { \
      const type g = dy[i], v = x[i], s = scale[i], z = shifted ? zero[i] : 0; \
      const type divisor = s == 0 ? 0 : s, quotient = levels.reciprocal ? v * (1 / divisor) : v / divisor; \
      const type ratio = ((s == 0) & (v == 0)) ? 0 : quotient, whole = round(ratio), q = whole + z; \
      const int inside = (q >= low) & (q <= high); \
      type level = q < low ? low : q; \
      level = level > high ? high : level; \
      const double rest = (double)whole * (double)s - (double)v; \
      const double residual = ((s == 0) | (magnitude(s) > most)) ? 0 : rest / (double)s; \
      dx[i] = inside ? g : 0; \
      if (scales) dscale[i] = (double)g * (inside ? residual : (double)level - (double)z); \
      if (shifts) dzero[i] = inside ? 0 : -(double)g * (double)s; \
    } \
  } \
  TARGET static void AT(fake_quantize_each_##suffix)(type *dx, double *dscale, double *dzero, const type *dy, \
      const type *x, const type *scale, const type *zero, sw_levels levels, long n) { \
    const int shifted = zero != 0; \
    const type *z = shifted ? zero : scale; \
    const int form = (dscale != 0) * 4 + (dzero != 0) * 2 + shifted; \
    switch (form) { \
    case 0: AT(fake_quantize_each_loop_##suffix)(dx, 0, 0, dy, x, scale, z, levels, n, 0, 0, 0); break; \
    case 1: AT(fake_quantize_each_loop_##suffix)(dx, 0, 0, dy, x, scale, z, levels, n, 0, 0, 1); break; \
    case 2: case 3: \
      AT(fake_quantize_each_loop_##suffix)(dx, 0, dzero, dy, x, scale, z, levels, n, 0, 1, shifted); \
      break; \
    case 4: AT(fake_quantize_each_loop_##suffix)(dx, dscale, 0, dy, x, scale, z, levels, n, 1, 0, 0); break; \
    case 5: AT(fake_quantize_each_loop_##suffix)(dx, dscale, 0, dy, x, scale, z, levels, n, 1, 0, 1); break; \
    default: AT(fake_quantize_each_loop_##suffix)(dx, dscale, dzero, dy, x, scale, z, levels, n, 1, 1, shifted); \
    } \
  }

EACH(f32, float, rintf, fabsf, FLT_MAX)
EACH(f64, double, rint, fabs, DBL_MAX)
#undef EACH
#undef PLAIN_f32
#undef PLAIN_f64
#undef ANY_f32
#undef ANY_f64
#undef REST
#undef RATIO

/* Included once for each processor by op_dequantize.c. */

/* t = round(x / scale) + zero_point; a NaN is outside, and stays a NaN in its level. */
#define FAKE_QUANTIZE(suffix, type, nearest) \
  TARGET static void AT(fake_quantize_##suffix)(type *restrict dx, type *restrict dscale, type *restrict dzero, const type *dy, const type *x, \
                                                const type *scale, const type *zero, long run, type low, type high, long n) { \
    for (long start = 0; start < n; start += run) { \
      type s = *scale++, z = *zero++; \
      for (long i = start; i < (start + run < n ? start + run : n); i++) { \
        type g = dy[i], ratio = x[i] / s, t = nearest(ratio) + z; \
        int inside = t >= low && t <= high; \
        type level = t < low ? low : t > high ? high : t; \
        dx[i] = inside ? g : 0; \
        dscale[i] = g * ((level - z) - (inside ? ratio : 0)); \
        dzero[i] = inside ? 0 : -g * s; \
      } \
    } \
  }

FAKE_QUANTIZE(f32, float, rintf)
FAKE_QUANTIZE(f64, double, rint)
#undef FAKE_QUANTIZE

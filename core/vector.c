#include "vector.h"

#include <string.h>

INLINE uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
INLINE float float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

INLINE float widen_bf16_one(uint16_t h) { return float_of((uint32_t)h << 16); }

/* Round to nearest, ties to even; a NaN stays a quiet NaN. */
INLINE uint16_t narrow_bf16_one(float x) {
  uint32_t u = bits_of(x);
  uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : (uint16_t)rounded;
}

INLINE float widen_f16_one(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return float_of(sign | 0x7f800000u | (rest & 0x3ff) << 13);
  /* 2^112 moves the exponent from bias 15 to bias 127, and makes normals of subnormals. */
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}

INLINE uint16_t narrow_f16_one(float x) {
  uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return sign | 0x7e00;
  if (rest >= 0x477ff000u) return sign | 0x7c00;                                        /* rounds to infinity */
  if (rest < 0x38800000u) return sign | (bits_of(float_of(rest) + 0.5f) - 0x3f000000u); /* subnormal: 0.5 has its step */
  return sign | ((rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13);
}

#define CONVERT(name, from, to, one) \
  EACH_PROCESSOR(void, name, (to *out, const from *in, long n), (out, in, n), { for (long i = 0; i < n; i++) out[i] = one(in[i]); })

CONVERT(widen_bf16, uint16_t, float, widen_bf16_one)
CONVERT(narrow_bf16, float, uint16_t, narrow_bf16_one)
CONVERT(widen_i8, int8_t, float, (float))
CONVERT(widen_u8, uint8_t, float, (float))

void sw_widen_f16_portable(float *out, const uint16_t *in, long n) { for (long i = 0; i < n; i++) out[i] = widen_f16_one(in[i]); }
void sw_narrow_f16_portable(uint16_t *out, const float *in, long n) { for (long i = 0; i < n; i++) out[i] = narrow_f16_one(in[i]); }

/* The compiler finds no conversion of float16 in a loop by itself. */
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

VECTOR_256 static long widen_f16_256(float *out, const uint16_t *in, long n) {
  long i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i))));
  return i;
}

VECTOR_512 static long widen_f16_512(float *out, const uint16_t *in, long n) {
  long i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(in + i))));
  return i;
}

VECTOR_256 static long narrow_f16_256(uint16_t *out, const float *in, long n) {
  long i = 0;
  for (; i + 8 <= n; i += 8) _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}

VECTOR_512 static long narrow_f16_512(uint16_t *out, const float *in, long n) {
  long i = 0;
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256((__m256i *)(out + i), _mm512_cvtps_ph(_mm512_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}
#define IN_VECTORS(name, out, in, n) (vector_width() == 512 ? name##_512(out, in, n) : vector_width() == 256 ? name##_256(out, in, n) : 0)
#else
#define IN_VECTORS(name, out, in, n) 0
#endif

void sw_widen_f16(float *out, const uint16_t *in, long n) {
  long done = IN_VECTORS(widen_f16, out, in, n);
  sw_widen_f16_portable(out + done, in + done, n - done);
}

void sw_narrow_f16(uint16_t *out, const float *in, long n) {
  long done = IN_VECTORS(narrow_f16, out, in, n);
  sw_narrow_f16_portable(out + done, in + done, n - done);
}

/* Sums in float64 in a fixed order: 32 lanes over leaves of 128 numbers; then leaf after leaf in a binary counter, which is
   a balanced tree, so that error gathers slowly. */
#define SUM(suffix, from) \
  INLINE double leaf_##suffix(const from *in, long n) { \
    double lane[32] = {0}; \
    long i = 0; \
    for (; i + 32 <= n; i += 32) for (int j = 0; j < 32; j++) lane[j] += (double)in[i + j]; \
    for (int j = 0; i + j < n; j++) lane[j] += (double)in[i + j]; \
    for (int half = 16; half > 0; half /= 2) for (int j = 0; j < half; j++) lane[j] += lane[j + half]; \
    return lane[0]; \
  } \
  INLINE double sum_##suffix(const from *in, long n) { \
    double waiting[48], total = 0; \
    int depth = 0; \
    for (long leaf = 0, i = 0; i < n; leaf++, i += 128) { \
      double sum = leaf_##suffix(in + i, i + 128 <= n ? 128 : n - i); \
      for (long k = leaf; k & 1; k >>= 1) sum += waiting[--depth]; \
      waiting[depth++] = sum; \
    } \
    while (depth) total += waiting[--depth]; \
    return total; \
  } \
  EACH_PROCESSOR(void, sum_runs_##suffix, (double *sums, const from *in, long run, long n), (sums, in, run, n), { \
    for (long i = 0; i < n; i += run) sums[i / run] = sum_##suffix(in + i, i + run <= n ? run : n - i); \
  })

SUM(f32, float)
SUM(f64, double)

#define LEAST(a, b) ((a) < (b) ? (a) : (b))

#define PRODUCTS(suffix, type) \
  EACH_PROCESSOR(void, multiply_##suffix, (type *out, const type *x, const type *y, long y_run, long n), (out, x, y, y_run, n), { \
    if (y_run == 1) { \
      for (long i = 0; i < n; i++) out[i] = x[i] * y[i]; \
      return; \
    } \
    for (long start = 0; start < n; start += y_run) { \
      type c = y[start / y_run]; \
      for (long i = start; i < LEAST(n, start + y_run); i++) out[i] = x[i] * c; \
    } \
  }) \
  EACH_PROCESSOR(void, shifted_##suffix, (type *out, const type *x, const type *y, long y_run, const type *z, long z_run, long n), \
                 (out, x, y, y_run, z, z_run, n), { \
    long run = y_run == 1 ? z_run : z_run == 1 ? y_run : LEAST(y_run, z_run); \
    if (run == 1) run = n; \
    for (long start = 0; start < n; start += run) { \
      long end = LEAST(n, start + run); \
      type c = y[start / y_run]; \
      type d = z[start / z_run]; \
      if (y_run == 1 && z_run == 1) for (long i = start; i < end; i++) out[i] = x[i] * (y[i] - z[i]); \
      else if (y_run == 1) for (long i = start; i < end; i++) out[i] = x[i] * (y[i] - d); \
      else if (z_run == 1) for (long i = start; i < end; i++) out[i] = x[i] * (c - z[i]); \
      else for (long i = start; i < end; i++) out[i] = x[i] * (c - d); \
    } \
  })

PRODUCTS(f32, float)
PRODUCTS(f64, double)

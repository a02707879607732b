/* Included once for each processor by vector.c. */

#define CONVERT(name, from, to, one) \
  TARGET static inline void AT(name)(to *restrict out, const from *restrict in, long n) { for (long i = 0; i < n; i++) out[i] = one(in[i]); }

CONVERT(widen_bf16, uint16_t, float, widen_bf16_one)
CONVERT(narrow_bf16, float, uint16_t, narrow_bf16_one)
#undef CONVERT

/* The compiler finds no conversion of float16 in a loop by itself, and only a slow one of 8 bits. */
TARGET static inline void AT(widen_f16)(float *restrict out, const uint16_t *restrict in, long n) {
  long i = 0;
#if VECTOR == 512
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(in + i))));
#elif VECTOR == 256
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i))));
#endif
  for (; i < n; i++) out[i] = widen_f16_one(in[i]);
}

TARGET static inline void AT(narrow_f16)(uint16_t *restrict out, const float *restrict in, long n) {
  long i = 0;
#if VECTOR == 512
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256((__m256i *)(out + i), _mm512_cvtps_ph(_mm512_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#elif VECTOR == 256
  for (; i + 8 <= n; i += 8) _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < n; i++) out[i] = narrow_f16_one(in[i]);
}

#if VECTOR == 512
#define WIDEN_8(extended) \
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(out + i, _mm512_cvtepi32_ps(_mm512_##extended##_epi32(_mm_loadu_si128((const __m128i *)(in + i)))));
#elif VECTOR == 256
#define WIDEN_8(extended) \
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtepi32_ps(_mm256_##extended##_epi32(_mm_loadl_epi64((const __m128i *)(in + i)))));
#else
#define WIDEN_8(extended)
#endif
TARGET static inline void AT(widen_i8)(float *restrict out, const int8_t *restrict in, long n) {
  long i = 0;
  WIDEN_8(cvtepi8)
  for (; i < n; i++) out[i] = in[i];
}

TARGET static inline void AT(widen_u8)(float *restrict out, const uint8_t *restrict in, long n) {
  long i = 0;
  WIDEN_8(cvtepu8)
  for (; i < n; i++) out[i] = in[i];
}
#undef WIDEN_8

TARGET INLINE void AT(push)(tree *t, double *lane) {
  for (long k = t->leaves++; k & 1; k >>= 1) {
    const double *waiting = t->waiting[--t->depth];
    for (int j = 0; j < LANES; j++) lane[j] += waiting[j];
  }
  for (int j = 0; j < LANES; j++) t->waiting[t->depth][j] = lane[j];
  t->depth++;
}

TARGET static __attribute__((noinline)) double AT(total)(tree *t) {
  double lane[LANES] = {0}, by16[16], by8[8], by4[4];
  while (t->depth) {
    const double *waiting = t->waiting[--t->depth];
    for (int j = 0; j < LANES; j++) lane[j] += waiting[j];
  }
  t->leaves = 0;
  for (int j = 0; j < 16; j++) by16[j] = lane[j] + lane[j + 16];
  for (int j = 0; j < 8; j++) by8[j] = by16[j] + by16[j + 8];
  for (int j = 0; j < 4; j++) by4[j] = by8[j] + by8[j + 4];
  return (by4[0] + by4[2]) + (by4[1] + by4[3]);
}

#define SUM(suffix, from) \
  TARGET INLINE void AT(push_leaf_##suffix)(tree *t, const from *in) { \
    double lane[LANES]; \
    for (int j = 0; j < LANES; j++) lane[j] = (double)in[j] + (double)in[j + LANES] + (double)in[j + 2 * LANES] + (double)in[j + 3 * LANES]; \
    AT(push)(t, lane); \
  } \
  TARGET static __attribute__((noinline)) void AT(push_part_##suffix)(tree *t, const from *in, long n) { \
    double lane[LANES] = {0}; \
    for (long i = 0; i < n; i++) lane[i % LANES] += (double)in[i]; \
    AT(push)(t, lane); \
  } \
  TARGET static void AT(sum_runs_##suffix)(double *sums, const from *in, long run, long n) { \
    tree t; \
    t.depth = t.leaves = 0; \
    for (long start = 0; start < n; start += run) { \
      long end = LEAST(n, start + run), i = start; \
      for (; i + LEAF <= end; i += LEAF) AT(push_leaf_##suffix)(&t, in + i); \
      if (i < end) AT(push_part_##suffix)(&t, in + i, end - i); \
      *sums++ = AT(total)(&t); \
    } \
  } \
  TARGET static void AT(add_##suffix)(double *sums, const from *in, long n) { for (long i = 0; i < n; i++) sums[i] += (double)in[i]; } \
  TARGET INLINE void AT(copy_##suffix)(from *restrict out, const from *restrict in, long n) { for (long i = 0; i < n; i++) out[i] = in[i]; }

SUM(f32, float)
SUM(f64, double)
#undef SUM

#define STORED float
#define WIDE float
#define PUSH(name) AT(name##_f32)
#define FOR(name) AT(name##_f32)
#define WIDEN AT(copy_f32)
#define NARROW WIDEN
#include "products.h"

#define STORED double
#define WIDE double
#define PUSH(name) AT(name##_f64)
#define FOR(name) AT(name##_f64)
#define WIDEN AT(copy_f64)
#define NARROW WIDEN
#include "products.h"

#define STORED uint16_t
#define WIDE float
#define PUSH(name) AT(name##_f32)
#define FOR(name) AT(name##_f16)
#define WIDEN AT(widen_f16)
#define NARROW AT(narrow_f16)
#include "products.h"

#define STORED uint16_t
#define WIDE float
#define PUSH(name) AT(name##_f32)
#define FOR(name) AT(name##_bf16)
#define WIDEN AT(widen_bf16)
#define NARROW AT(narrow_bf16)
#include "products.h"

/* Conversions, sums and products over blocks. vector.c includes this header once per vector
   width. */

#define CONVERT(name, from, to, one) \
  TARGET static inline void AT(name)(to *restrict out, const from *restrict in, long n) { \
    for (long i = 0; i < n; i++) out[i] = one(in[i]); \
  }
CONVERT(widen_bf16, uint16_t, float, widen_bf16_one)
CONVERT(narrow_bf16, float, uint16_t, narrow_bf16_one)
CONVERT(widen_e4m3, uint8_t, float, widen_e4m3_one)
CONVERT(widen_e5m2, uint8_t, float, widen_e5m2_one)
#undef CONVERT

#define COPY(name, type) \
  TARGET INLINE void AT(name)(type *restrict out, const type *restrict in, long n) { \
    for (long i = 0; i < n; i++) out[i] = in[i]; \
  }
COPY(widen_f32, float)
COPY(narrow_f32, float)
COPY(widen_f64, double)
COPY(narrow_f64, double)
COPY(double_f64, double)
#undef COPY

/* Intrinsics, because compilers do not vectorize float16 conversions and vectorize 8-bit ones
   badly. */
TARGET static inline void AT(widen_f16)(float *restrict out, const uint16_t *restrict in, long n) {
  long i = 0;
#if VECTOR == 512
  for (; i + 16 <= n; i += 16)
    _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(in + i))));
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
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < n; i++) out[i] = narrow_f16_one(in[i]);
}

#if VECTOR == 512
#define WIDEN_8(extended) \
  for (; i + 16 <= n; i += 16) \
    _mm512_storeu_ps( \
      out + i, _mm512_cvtepi32_ps(_mm512_##extended##_epi32(_mm_loadu_si128((const __m128i *)(in + i)))));
#elif VECTOR == 256
#define WIDEN_8(extended) \
  for (; i + 8 <= n; i += 8) \
    _mm256_storeu_ps( \
      out + i, _mm256_cvtepi32_ps(_mm256_##extended##_epi32(_mm_loadl_epi64((const __m128i *)(in + i)))));
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

/* Whole bytes, each of which has two integers. */
TARGET static inline void AT(widen_bytes)(int is_signed, float *restrict out, const uint8_t *restrict in, long n) {
  for (long i = 0; i < n; i++) {
    out[2 * i] = widen_packed_one(is_signed, in[i], 0);
    out[2 * i + 1] = widen_packed_one(is_signed, in[i], 1);
  }
}

/* Conversions to float64, 4 or 8 elements at once. Compilers would spill narrower vectors to
   memory. */
#if VECTOR == 512
#define FLOATS(in) _mm256_loadu_ps(in)
#define HALVES(in) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in)))
#define BRAINS(in) \
  _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(in))), 16))
#define SIGNED(in) _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(in)))
#define UNSIGNED(in) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(in)))
#define DOUBLES(convert, load) for (; i + 8 <= n; i += 8) _mm512_storeu_pd(out + i, _mm512_##convert(load(in + i)));
#elif VECTOR == 256
#define FLOATS(in) _mm_loadu_ps(in)
#define HALVES(in) _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(in)))
#define BRAINS(in) _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)(in))))
#define SIGNED(in) _mm_cvtepi8_epi32(_mm_loadu_si32(in))
#define UNSIGNED(in) _mm_cvtepu8_epi32(_mm_loadu_si32(in))
#define DOUBLES(convert, load) for (; i + 4 <= n; i += 4) _mm256_storeu_pd(out + i, _mm256_##convert(load(in + i)));
#else
#define DOUBLES(convert, load)
#endif
#define WIDEN_TWICE(name, from, convert, load, one) \
  TARGET INLINE void AT(name)(double *restrict out, const from *restrict in, long n) { \
    long i = 0; \
    DOUBLES(convert, load) \
    for (; i < n; i++) out[i] = (double)one(in[i]); \
  }
WIDEN_TWICE(double_f32, float, cvtps_pd, FLOATS, )
WIDEN_TWICE(double_f16, uint16_t, cvtps_pd, HALVES, widen_f16_one)
WIDEN_TWICE(double_bf16, uint16_t, cvtps_pd, BRAINS, widen_bf16_one)
WIDEN_TWICE(double_i8, int8_t, cvtepi32_pd, SIGNED, )
WIDEN_TWICE(double_u8, uint8_t, cvtepi32_pd, UNSIGNED, )
#undef WIDEN_TWICE
#undef DOUBLES
#undef FLOATS
#undef HALVES
#undef BRAINS
#undef SIGNED
#undef UNSIGNED

#include "tree_loops.h"

TARGET static void AT(sum_runs)(double *sums, const double *in, long run, long n) {
  tree t;
  t.depth = t.leaves = 0;
  for (long start = 0; start < n; start += run) {
    long end = LEAST(n, start + run), i = start;
    for (; i + LEAF <= end; i += LEAF) AT(push_leaf)(&t, in + i);
    if (i < end) AT(push_part)(&t, in + i, end - i);
    *sums++ = AT(total)(&t);
  }
}

TARGET static void AT(add)(double *sums, const double *in, long n) { for (long i = 0; i < n; i++) sums[i] += in[i]; }

#define FLOAT_LOOPS "products.h"
#include "each_float.gen.h"

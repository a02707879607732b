#include "vector.h"

#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

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
  if (rest >= 0x7c00) return float_of(sign | 0x7f800000u | (rest > 0x7c00) << 22 | (rest & 0x3ff) << 13); /* a NaN becomes quiet */
  /* 2^112 moves the exponent from bias 15 to bias 127, and makes normals of subnormals. */
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}

INLINE uint16_t narrow_f16_one(float x) {
  uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return sign | 0x7e00 | (rest >> 13 & 0x3ff);
  if (rest >= 0x477ff000u) return sign | 0x7c00;                                        /* rounds to infinity */
  if (rest < 0x38800000u) return sign | (bits_of(float_of(rest) + 0.5f) - 0x3f000000u); /* subnormal: 0.5 has its step */
  return sign | ((rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13);
}

void sw_widen_f16_portable(float *out, const uint16_t *in, long n) { for (long i = 0; i < n; i++) out[i] = widen_f16_one(in[i]); }
void sw_narrow_f16_portable(uint16_t *out, const float *in, long n) { for (long i = 0; i < n; i++) out[i] = narrow_f16_one(in[i]); }

/* Sums are made in float64 in a fixed order: LANES lanes, each over leaves of four numbers, added leaf after leaf in a binary counter,
   which is a balanced tree, so that error gathers slowly; then the lanes themselves. */
enum { LANES = 32, LEAF = 4 * LANES };

typedef struct {
  double waiting[32][LANES];
  int depth;
  long leaves;
} tree;

#define LEAST(a, b) ((a) < (b) ? (a) : (b))

#define LOOPS "vector_loops.h"
#include "each_processor.h"

void sw_widen_f16(float *out, const uint16_t *in, long n) { CHOSEN(widen_f16)(out, in, n); }
void sw_narrow_f16(uint16_t *out, const float *in, long n) { CHOSEN(narrow_f16)(out, in, n); }
void sw_widen_bf16(float *out, const uint16_t *in, long n) { CHOSEN(widen_bf16)(out, in, n); }
void sw_narrow_bf16(uint16_t *out, const float *in, long n) { CHOSEN(narrow_bf16)(out, in, n); }
void sw_widen_i8(float *out, const int8_t *in, long n) { CHOSEN(widen_i8)(out, in, n); }
void sw_widen_u8(float *out, const uint8_t *in, long n) { CHOSEN(widen_u8)(out, in, n); }
void sw_sum_runs_f32(double *sums, const float *in, long run, long n) { CHOSEN(sum_runs_f32)(sums, in, run, n); }
void sw_sum_runs_f64(double *sums, const double *in, long run, long n) { CHOSEN(sum_runs_f64)(sums, in, run, n); }
void sw_add_f32(double *sums, const float *in, long n) { CHOSEN(add_f32)(sums, in, n); }
void sw_add_f64(double *sums, const double *in, long n) { CHOSEN(add_f64)(sums, in, n); }
void sw_products_f32(const sw_products *p) { CHOSEN(products_f32)(p); }
void sw_products_f64(const sw_products *p) { CHOSEN(products_f64)(p); }
void sw_products_f16(const sw_products *p) { CHOSEN(products_f16)(p); }
void sw_products_bf16(const sw_products *p) { CHOSEN(products_bf16)(p); }

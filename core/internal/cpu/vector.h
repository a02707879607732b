#ifndef STERNWAY_VECTOR_H
#define STERNWAY_VECTOR_H
#include <stdint.h>
#include <string.h>

#include "dtypes.gen.h"

/* Loops over blocks in C that the compiler vectorizes, with dispatch at run time. each_processor.h
   includes the header LOOPS three times: for any processor, for AVX2 and for AVX-512. VECTOR is the
   vector width in bits, TARGET the attributes of each function, AT(name) its name; CHOSEN(name)
   selects a variant, CHOSEN_256(name) one of loops that are compiled with NO_512. All variants give
   the same bits: additions are not reordered and no product is fused with a sum. */
#define VECTOR_OPTIONS optimize("O3", "no-math-errno", "no-trapping-math", "no-tree-loop-distribute-patterns")
#if defined(__x86_64__) && defined(__GNUC__)
#define FEATURES_256 "avx2,f16c,fma"
#define FEATURES_512 "avx512f,avx512bw,avx512dq,avx512vl,f16c,fma"
#ifdef __clang__ /* vectorizes at -O2 already, and has no options for single functions */
#define VECTOR_256 __attribute__((target(FEATURES_256)))
#define VECTOR_512 __attribute__((target(FEATURES_512)))
#else
#define VECTOR_256 __attribute__((target(FEATURES_256), VECTOR_OPTIONS))
#define VECTOR_512 __attribute__((target(FEATURES_512 ",prefer-vector-width=512"), VECTOR_OPTIONS))
#endif
#define VECTOR_PORTABLE 64
#define TARGET_PORTABLE
#define CHOSEN(name) (sw_vector_width == 512 ? name##_512 : CHOSEN_256(name))
#define CHOSEN_256(name) (sw_vector_width >= 256 ? name##_256 : name##_64)
#elif defined(__aarch64__) /* every one has NEON, which the compiler uses for vectors of 128 bits */
#define VECTOR_PORTABLE 128
#ifdef __clang__
#define TARGET_PORTABLE
#else
#define TARGET_PORTABLE __attribute__((VECTOR_OPTIONS))
#endif
#else
#define VECTOR_PORTABLE 64
#define TARGET_PORTABLE
#endif
#ifndef CHOSEN
#define CHOSEN(name) name##_64
#define CHOSEN_256(name) name##_64
#endif

extern int sw_vector_width; /* bits; the widest that this processor supports, unless a test lowers it */

/* INDEPENDENT promises that no iteration of the next loop reads memory that another one writes.
   Compilers for arm64 fuse products with sums by default. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#pragma GCC optimize("fp-contract=off")
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNUSED __attribute__((unused))

/* x rounded to the 24 significant bits of a float32 with round-to-odd: the last bit is set if any
   lower bit was. Rounding the result to 16 bits then equals one rounding of x. */
INLINE double odd_of(double x) {
  const uint64_t lost = ((uint64_t)1 << 29) - 1;
  uint64_t u;
  memcpy(&u, &x, 8);
  u = (u | ((u & lost) + lost)) & ~lost;
  memcpy(&x, &u, 8);
  return x;
}

INLINE uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
INLINE float float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

INLINE float widen_bf16_one(uint16_t h) { return float_of((uint32_t)h << 16); }

/* A float of 8 bits, by the bits of its exponent, its smallest normal number, and the bits of its
   infinity, which float8_e4m3fn does not have, and of its first NaN (OCP 8-bit floating point
   specification, 2023). */
INLINE float widen_float8(uint32_t h, int exponent, float least, uint32_t infinity, uint32_t nan) {
  const uint32_t rest = h & 0x7f, at = 16 + exponent, bias = 128 - (1u << (exponent - 1));
  const float normal = float_of((rest << at) + (bias << 23));
  const float subnormal = float_of((rest << at) + ((bias + 1) << 23)) - least;
  float x = rest >> (7 - exponent) ? normal : subnormal;
  x = rest == infinity ? __builtin_inff() : x;
  x = rest >= nan ? __builtin_nanf("") : x;
  return float_of(bits_of(x) | (h & 0x80) << 24);
}
INLINE float widen_e4m3_one(uint8_t h) { return widen_float8(h, 4, 0x1p-6f, 0x80, 0x7f); }
INLINE float widen_e5m2_one(uint8_t h) { return widen_float8(h, 5, 0x1p-14f, 0x7c, 0x7d); }

/* Round to nearest, ties to even; a NaN stays a quiet NaN. */
INLINE uint16_t narrow_bf16_one(float x) {
  uint32_t u = bits_of(x);
  uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : (uint16_t)rounded;
}

INLINE float widen_f16_one(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
  /* a NaN becomes quiet */
  if (rest >= 0x7c00) return float_of(sign | 0x7f800000u | (rest > 0x7c00) << 22 | (rest & 0x3ff) << 13);
  /* 2^112 moves the exponent from bias 15 to bias 127, and makes normals of subnormals. */
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}

INLINE uint16_t narrow_f16_one(float x) {
  uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return sign | 0x7e00 | (rest >> 13 & 0x3ff);
  if (rest >= 0x477ff000u) return sign | 0x7c00;                                        /* rounds to infinity */
  /* subnormal: 0.5 has its step */
  if (rest < 0x38800000u) return sign | (bits_of(float_of(rest) + 0.5f) - 0x3f000000u);
  return sign | ((rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13);
}

/* Conversions of n elements to float32 and back, by the row of their dtype. sw_widen takes floats
   of at most 16 bits and integers of 8 bits, sw_narrow those of 16 bits. */
void sw_widen(long dtype, float *out, const void *in, long n);
void sw_narrow(long dtype, void *out, const float *in, long n);

/* An integer of 4 bits, of the lower or the upper half of a byte. Flipping the sign bit adds 8. */
INLINE float widen_packed_one(int is_signed, uint8_t both, int upper) {
  const int flip = is_signed ? 8 : 0;
  return (float)(((upper ? both >> 4 : both & 15) ^ flip) - flip);
}

/* Converts n integers of 4 bits, two to a byte, to float32: number `first` from in, and every step
   from there. */
void sw_widen_packed(int is_signed, float *out, const uint8_t *in, long first, long step, long n);

/* The portable conversions of float16, so that tests can compare them with the ones that this
   processor prefers. */
void sw_widen_f16_portable(float *out, const uint16_t *in, long n);
void sw_narrow_f16_portable(uint16_t *out, const float *in, long n);

/* The sum of each run of values. */
void sw_sum_runs(double *sums, const double *in, long run, long n);

/* sums[c] += in[c] */
void sw_add(double *sums, const double *in, long n);

/* A factor has one number per run, in float64, or one per element, in the storage type of x or in 8
   bits. Addresses are integers, because cgo passes no memory that holds Go pointers; the caller
   keeps the memory alive. */
enum { FACTOR_NUMBER, FACTOR_DENSE, FACTOR_I8, FACTOR_U8 };

typedef struct {
  uintptr_t data;
  long kind;
  long step; /* from run to run, in numbers or elements; 0 if all runs share one */
} sw_factor;

/* One output x (y - z). Exactly one destination is not 0. out: elements in the storage type of x.
   terms: elements in float64. sums: float64 sums to add to, one per run, or one per position in a
   run if sw_products.columns is set. */
typedef struct {
  uintptr_t out, terms, sums;
  sw_factor y, z;
} sw_product;

typedef struct {
  uintptr_t x;
  long n, run;  /* elements in all, and elements of a run; the last run may be shorter */
  long pitch;   /* elements from run to run */
  long columns; /* sum over runs, not along them */
  long count;   /* products in use */
  sw_product product[3];
} sw_products;

/* Computes products of operands of a float that operations compute in, by its row. */
void sw_products_of(long dtype, const sw_products *p);
#endif

/* One vector of lanes: VEC, and the operations for which compilers have no good code. selective.c
   includes this header for each type of arithmetic and each vector width. The results of all widths
   have the same bits. */
#if VECTOR < 128
#define VECTOR_BYTES 16
#else
#define VECTOR_BYTES (VECTOR / 8)
#endif

typedef WIDE FOR(vec) __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef WIDE FOR(loose) __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef BITS FOR(word) __attribute__((vector_size(VECTOR_BYTES), may_alias));

#define VEC FOR(vec)
#define WORD FOR(word)
#define WIDTH ((long)(VECTOR_BYTES / sizeof(WIDE))) /* lanes of a vector */
#define LOAD(p) ((VEC)*(const FOR(loose) *)(p))
#define STORE(p, v) (*(FOR(loose) *)(p) = (v))
#define SPLAT(x) ((VEC)((WIDE)(x) - (VEC){0}))

/* least and most keep NaN in their first argument; kept is decay h, but 0 if the decay is 0;
   scaled is p 2^k with one rounding. */
#if VECTOR == 512
TARGET INLINE VEC FOR(least)(VEC x, VEC y) { return SUFFIXED(_mm512_min)(y, x); }
TARGET INLINE VEC FOR(most)(VEC x, VEC y) { return SUFFIXED(_mm512_max)(y, x); }
TARGET INLINE VEC FOR(kept)(VEC decay, VEC h) {
  return SUFFIXED(_mm512_maskz_mul)(MASK_512(decay, (VEC){0}, _CMP_NEQ_UQ), decay, h);
}
TARGET INLINE VEC FOR(scaled)(VEC p, VEC k) { return SUFFIXED(_mm512_scalef)(p, k); }
#else
TARGET INLINE VEC FOR(least)(VEC x, VEC y) {
#if VECTOR == 256
  return SUFFIXED(_mm256_min)(y, x);
#else
  WORD less = (WORD)(y < x);
  return (VEC)(((WORD)y & less) | ((WORD)x & ~less));
#endif
}
TARGET INLINE VEC FOR(most)(VEC x, VEC y) {
#if VECTOR == 256
  return SUFFIXED(_mm256_max)(y, x);
#else
  WORD greater = (WORD)(y > x);
  return (VEC)(((WORD)y & greater) | ((WORD)x & ~greater));
#endif
}
TARGET INLINE VEC FOR(kept)(VEC decay, VEC h) { return (VEC)((WORD)(decay * h) & (WORD)(decay != (VEC){0})); }

/* 2^k, where k and the exponent's bias are the low bits of a sum. */
TARGET INLINE VEC FOR(power)(VEC k) { return (VEC)((WORD)(k + (ROUNDER + BIAS)) << FRACTION); }
TARGET INLINE VEC FOR(scaled)(VEC p, VEC k) {
  VEC half = (k * (WIDE)0.5 + ROUNDER) - ROUNDER;
  return p * FOR(power)(half) * FOR(power)(k - half);
}
#endif

/* exp(x), as exp(k log 2 + r) with |r| <= log(2)/2. */
TARGET INLINE VEC FOR(exponential)(VEC x) {
  x = FOR(least)(FOR(most)(x, SPLAT(LOWEST)), SPLAT(HIGHEST));
  VEC k = (x * (WIDE)0x1.71547652b82fep0 + ROUNDER) - ROUNDER;
  VEC r = (x - k * LOG2_HIGH) - k * LOG2_LOW, p = SPLAT(SERIES[0]);
  for (int i = 1; i < (int)(sizeof SERIES / sizeof *SERIES); i++) p = p * r + SERIES[i];
  return FOR(scaled)(1 + (r + r * r * p), k);
}

/* Included once for each processor by narrow.c: scans of vectors of four numbers, in which c rows
   alternate, and the loops over the segments of a lane. The arithmetic is the same on every
   processor, so that bits are. */

/* A LOOP is compiled for each width and type. Processors of the x86 family without AVX2 are old:
   they have one function for all. */
#if VECTOR == 64 && defined(VECTOR_256)
#define LOOP static __attribute__((noinline))
#else
#define LOOP TARGET INLINE
#endif

#if VECTOR < 256
INLINE int64_t AT(narrow_any)(INTS4 mask) { return mask[0] | mask[1] | mask[2] | mask[3]; }
#define ANY AT(narrow_any)
#define MIN4(a, b) SELECT(ALL((a) < (b)), a, b)
#define FROM_FLOATS(p) __builtin_convertvector(*(const loose_floats *)(p), four)
#define TO_FLOATS(p, v) (*(loose_floats *)(p) = __builtin_convertvector(v, loose_floats))
#else
#define ANY(mask) _mm256_movemask_pd((__m256d)(mask))
#define MIN4(a, b) ((four)_mm256_min_pd((__m256d)(a), (__m256d)(b)))
#define FROM_FLOATS(p) ((four)_mm256_cvtps_pd(_mm_loadu_ps(p)))
#define TO_FLOATS(p, v) _mm_storeu_ps(p, _mm256_cvtpd_ps((__m256d)(v)))
#endif

/* Four numbers in scan order. */
TARGET INLINE four AT(narrow_read)(int type, int c, const segment *s, long i) {
  long place = s->reverse ? s->count - 4 - i : i;
  four v;
  const uint16_t *halves = (const uint16_t *)s->from + place;
  if (type == NARROW_F64 || type == NARROW_CONVERTED) v = LOAD((const double *)s->from + place);
#if VECTOR < 256
  else if (type == NARROW_F16) for (int j = 0; j < 4; j++) v[j] = widen_f16_one(halves[j]);
  else if (type == NARROW_BF16) for (int j = 0; j < 4; j++) v[j] = widen_bf16_one(halves[j]);
#else
  else if (type == NARROW_F16) v = (four)_mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)halves)));
  else if (type == NARROW_BF16)
    v = (four)_mm256_cvtps_pd(_mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(),
                                                                  _mm_loadl_epi64((const __m128i *)halves))));
#endif
  else v = FROM_FLOATS((const float *)s->from + place);
  return s->reverse ? TURNED(c, v) : v;
}

/* Numbers written as bfloat16 have been read as such, and are exact. */
TARGET INLINE void AT(narrow_write)(int type, int c, const segment *s, long i, four v) {
  if (s->to == 0) return;
  long place = s->reverse ? s->count - 4 - i : i;
  if (s->reverse) v = TURNED(c, v);
  if (type == NARROW_F64 || type == NARROW_CONVERTED) STORE((double *)s->to + place, v);
#if VECTOR < 256
  else if (type == NARROW_BF16) for (int j = 0; j < 4; j++) ((uint16_t *)s->to)[place + j] = narrow_bf16_one(v[j]);
#else
  else if (type == NARROW_BF16) {
    __m128i high = _mm_srli_epi32(_mm_castps_si128(_mm256_cvtpd_ps((__m256d)v)), 16);
    _mm_storel_epi64((__m128i *)((uint16_t *)s->to + place), _mm_packus_epi32(high, high));
  }
#endif
  else TO_FLOATS((float *)s->to + place, v);
}

TARGET INLINE void AT(narrow_write_index)(int c, const segment *s, long i, four v) {
  if (!s->found) return;
  if (s->reverse) STORE(s->found + s->count - 4 - i, TURNED(c, v));
  else STORE(s->found + i, v);
}

INLINE double AT(narrow_read_one)(int type, int c, const segment *s, long i) {
  long place = place_of(c, s, i);
  switch (type) {
    case NARROW_F32: return ((const float *)s->from)[place];
    case NARROW_F16: return widen_f16_one(((const uint16_t *)s->from)[place]);
    case NARROW_BF16: return widen_bf16_one(((const uint16_t *)s->from)[place]);
    default: return ((const double *)s->from)[place];
  }
}

INLINE void AT(narrow_write_one)(int type, int c, const segment *s, long i, double v) {
  long place = place_of(c, s, i);
  if (s->to == 0) return;
  if (type == NARROW_F32) ((float *)s->to)[place] = v;
  else if (type == NARROW_BF16) ((uint16_t *)s->to)[place] = narrow_bf16_one(v);
  else ((double *)s->to)[place] = v;
}

/* Cumulative sums. A segment's blocks of 16 numbers are summed by themselves. If exact, the sums of
   blocks are compensated. */
LOOP void AT(narrow_sum)(int c, int type, const segment *s, double *sum, double *error) {
  const int exact = type == NARROW_F64;
  four high = LOAD(sum), low = LOAD(error);
  long i = 0;
  for (; i + BLOCK <= s->count; i += BLOCK) {
    four total = {0};
    _Pragma("GCC unroll 4") for (long j = 0; j < BLOCK; j += 4) {
      four v = AT(narrow_read)(type, c, s, i + j);
      if (c == 1) v += SHUFFLE(v, ((four){0}), 4, 0, 4, 2), v += SHUFFLE(v, ((four){0}), 4, 4, 1, 1);
      if (c == 2) v += SHUFFLE(v, ((four){0}), 4, 4, 0, 1);
      if (exact) {
        AT(narrow_write)(type, c, s, i + j, high + (low + (total + v)));
        total += LAST_OF(c, v);
      } else {
        AT(narrow_write)(type, c, s, i + j, high + v);
        high += LAST_OF(c, v);
      }
    }
    if (!exact) continue;
    four next = high + total, part = next - total;
    low += (high - part) + (total - (next - part));
    high = next;
    low = SELECT(ALL(next - next == 0), low, (four){0});
  }
  STORE(sum, high), STORE(error, low);
  for (; i < s->count; i++) {
    long j = i % c;
    sum[j] = compensated_sum(exact, AT(narrow_read_one)(type, c, s, i), sum[j], &error[j]);
    AT(narrow_write_one)(type, c, s, i, exact ? sum[j] + error[j] : sum[j]);
  }
  repeat(c, sum), repeat(c, error);
}

/* One number at a time of a vector, or of the rest of a segment. Not inlined: long and seldom
   run. */
TARGET static __attribute__((noinline)) void AT(narrow_product_steps)(int c, int type, const segment *s, long i,
                                                                      long end, double *m, double *e) {
  for (; i < end; i++) {
    long j = i % c;
    product_step(type == NARROW_F64, AT(narrow_read_one)(type, c, s, i), &m[j], &e[j]);
    AT(narrow_write_one)(type, c, s, i, scaled(m[j], e[j]));
  }
  repeat(c, m), repeat(c, e);
}

TARGET INLINE four AT(narrow_products_of)(int c, four v) {
  if (c == 1) v *= SHUFFLE(v, ONES, 4, 0, 4, 2), v *= SHUFFLE(v, ONES, 4, 4, 1, 1);
  if (c == 2) v *= SHUFFLE(v, ONES, 4, 4, 0, 1);
  return v;
}

/* The products of a block, if it has neither a zero nor a number of another magnitude than
   PRODUCT_FACTOR: then none leaves the range of float64. Returns 0 and stores nothing otherwise. */
TARGET INLINE int AT(narrow_product_block)(int c, int type, int is_scaled, const product_scale *scale, const segment *s,
                                           long i, four *product) {
  four values[BLOCK / 4], sum = {0}, least = ONES, p = *product;
  _Pragma("GCC unroll 4") for (long j = 0; j < BLOCK / 4; j++) {
    values[j] = AT(narrow_read)(type, c, s, i + 4 * j);
    four size = ABS(values[j]);
    sum += size, least = MIN4(least, size);
  }
  if (ANY(~ALL(sum <= PRODUCT_FACTOR) | ALL(least < 1 / PRODUCT_FACTOR))) return 0;
  _Pragma("GCC unroll 4") for (long j = 0; j < BLOCK / 4; j++) {
    four v = AT(narrow_products_of)(c, values[j]);
    AT(narrow_write)(type, c, s, i + 4 * j, is_scaled ? p * v * LOAD(scale->first) * LOAD(scale->second) : p * v);
    p *= LAST_OF(c, v);
  }
  *product = p;
  return 1;
}

/* Whether a product is beyond the range in which factors are multiplied without a look at it. */
#define IS_FAR(p) ANY(~ALL(ABS(p) <= PRODUCT_MOST) | (ALL(ABS(p) < 1 / PRODUCT_MOST) & ALL((p) != 0)))

/* Cumulative products m 2^e. While m and the factors of a vector are bounded, no product of them
   leaves the range of float64. Other vectors are multiplied one number at a time. */
LOOP void AT(narrow_product)(int c, int type, const segment *s, double *m, double *e) {
  const int exact = type == NARROW_F64;
  const double most = exact ? PRODUCT_FACTOR : 0x1p128, least = exact ? 1 / PRODUCT_FACTOR : 0;
  product_scale scale = scale_of(m, e);
  four p = LOAD(m);
  for (long i = 0; i + 4 <= s->count;) {
    const int is_block = scale.is_finite && i + BLOCK <= s->count;
    if (is_block && (scale.is_scaled ? AT(narrow_product_block)(c, type, 1, &scale, s, i, &p)
                                     : AT(narrow_product_block)(c, type, 0, &scale, s, i, &p))) {
      i += BLOCK;
    } else {
      four v = AT(narrow_read)(type, c, s, i), size = ABS(v);
      if (scale.is_finite && !ANY(~ALL(size <= most) | (ALL(size < least) & ALL(v != 0)))) {
        v = AT(narrow_products_of)(c, v);
        AT(narrow_write)(type, c, s, i, scale.is_scaled ? p * v * LOAD(scale.first) * LOAD(scale.second) : p * v);
        p *= LAST_OF(c, v), i += 4;
      } else {
        STORE(m, p);
        AT(narrow_product_steps)(c, type, s, i, i + 4, m, e);
        scale = scale_of(m, e), p = LOAD(m), i += 4;
        continue;
      }
    }
    if (!IS_FAR(p)) continue;
    STORE(m, p);
    scale = scale_of(m, e), p = LOAD(m);
  }
  STORE(m, p);
  AT(narrow_product_steps)(c, type, s, s->count / 4 * 4, s->count, m, e);
}
#undef IS_FAR

/* The record of an older and a newer vector. */
#define NEWER_WINS(first, older, newer) \
  ((first) ? ALL((newer) > (older)) | (ALL((newer) != (newer)) & ALL((older) == (older))) \
           : ALL((newer) >= (older)) | ALL((newer) != (newer)))
#define TAKE_OLDER(...) do { \
    four older = SHUFFLE(v, v, __VA_ARGS__), older_index = SHUFFLE(index, index, __VA_ARGS__); \
    INTS4 wins = NEWER_WINS(first, older, v); \
    v = SELECT(wins, v, older); \
    if (with_index) index = SELECT(wins, index, older_index); \
  } while (0)

/* Cumulative maxima, of negated numbers if sign has the sign bit, and the bits of their indices.
   Most blocks of long rows have no record. */
LOOP void AT(narrow_records)(int c, int type, int first, int with_index, uint64_t sign, const segment *s,
                                      double *best, double *best_index) {
  const INTS4 flip = (INTS4){0} + (int64_t)sign;
  four b = LOAD(best), b_index = LOAD(best_index);
  INTS4 here = c == 1 ? (INTS4){0, 1, 2, 3} : c == 2 ? (INTS4){0, 0, 1, 1} : (INTS4){0};
  here = here * s->delta + s->here;
  long i = 0;
  for (; i + BLOCK <= s->count; i += BLOCK, here += BLOCK / c * s->delta) {
    four values[BLOCK / 4];
    INTS4 records = {0};
    _Pragma("GCC unroll 4") for (long j = 0; j < BLOCK / 4; j++) {
      values[j] = (four)((INTS4)AT(narrow_read)(type, c, s, i + 4 * j) ^ flip);
      records |= ~(first ? ALL(values[j] <= b) : ALL(values[j] < b));
    }
    if (!ANY(records)) {
      if (s->to == 0) continue;
      for (long j = 0; j < BLOCK; j += 4) AT(narrow_write)(type, c, s, i + j, (four)((INTS4)b ^ flip));
      if (with_index) for (long j = 0; j < BLOCK; j += 4) AT(narrow_write_index)(c, s, i + j, b_index);
      continue;
    }
    _Pragma("GCC unroll 4") for (long j = 0; j < BLOCK / 4; j++) {
      four v = values[j], index = (four)(here + 4 / c * j * s->delta);
      if (c == 1) { TAKE_OLDER(0, 0, 2, 2); TAKE_OLDER(0, 1, 1, 1); }
      if (c == 2) TAKE_OLDER(0, 1, 0, 1);
      INTS4 wins = NEWER_WINS(first, b, v);
      four y = SELECT(wins, v, b);
      AT(narrow_write)(type, c, s, i + 4 * j, (four)((INTS4)y ^ flip));
      if (with_index) {
        four y_index = SELECT(wins, index, b_index);
        AT(narrow_write_index)(c, s, i + 4 * j, y_index);
        b_index = LAST_OF(c, y_index);
      }
      b = LAST_OF(c, y);
    }
  }
  STORE(best, b), STORE(best_index, b_index);
  for (; i < s->count; i++) {
    long j = i % c;
    double v = number(bits(AT(narrow_read_one)(type, c, s, i)) ^ sign), older = best[j];
    int wins = first ? v > older || (v != v && older == older) : v >= older || v != v;
    if (wins) best[j] = v, best_index[j] = number(s->here + i / c * s->delta);
    AT(narrow_write_one)(type, c, s, i, number(bits(best[j]) ^ sign));
    if (with_index && s->found) s->found[place_of(c, s, i)] = bits(best_index[j]);
  }
  repeat(c, best), repeat(c, best_index);
}
#undef TAKE_OLDER

#define WIDTHS(function, ...) switch (c) { \
    case 1: AT(function)(1, __VA_ARGS__); break; \
    case 2: AT(function)(2, __VA_ARGS__); break; \
    case 4: AT(function)(4, __VA_ARGS__); break; \
  }
#define TYPES(function, ...) switch (call->x.type) { \
    case 0: WIDTHS(function, NARROW_F32, __VA_ARGS__) break; \
    case 1: WIDTHS(function, NARROW_F64, __VA_ARGS__) break; \
    case 2: if (s->to == 0) { WIDTHS(function, NARROW_F16, __VA_ARGS__) break; } /* fall through */ \
    case 3: if (s->to == 0) { WIDTHS(function, NARROW_BF16, __VA_ARGS__) break; } /* fall through */ \
    default: WIDTHS(function, NARROW_CONVERTED, __VA_ARGS__) \
  }
#define RECORDS(...) \
  if (call->x.type == 0) WIDTHS(narrow_records, NARROW_F32, __VA_ARGS__) \
  else if (call->x.type == 3) WIDTHS(narrow_records, NARROW_BF16, __VA_ARGS__) \
  else WIDTHS(narrow_records, NARROW_F64, __VA_ARGS__)

TARGET static void AT(scan_narrow)(const scan_forward_call *call, int c, const segment *s, double *a, double *b,
                                   double *index) {
  uint64_t sign = call->kind >= SCAN_MIN_LAST ? (uint64_t)1 << 63 : 0;
  int first = call->kind == SCAN_MAX_FIRST || call->kind == SCAN_MIN_FIRST;
  if (call->kind == SCAN_SUM) TYPES(narrow_sum, s, a, b)
  else if (call->kind == SCAN_PRODUCT) TYPES(narrow_product, s, a, b)
  else if (first && call->with_index) { RECORDS(1, 1, sign, s, a, index) }
  else if (first) { RECORDS(1, 0, sign, s, a, index) }
  else if (call->with_index) { RECORDS(0, 1, sign, s, a, index) }
  else { RECORDS(0, 0, sign, s, a, index) }
}
#undef WIDTHS
#undef TYPES
#undef RECORDS

#include "short_loops.h"
#undef LOOP
#undef NEWER_WINS
#undef ANY
#undef MIN4
#undef FROM_FLOATS
#undef TO_FLOATS

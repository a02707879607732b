/* The loops of embedding bags. bag.c includes this header once per vector width. */

/* Columns that are summed at once, with their sums in registers. */
enum { AT(BAG_TILE) = VECTOR / 8 };

#include "rows_loops.h"

/* The sum of 16 lanes, each with every 16th of n products: lane j goes to lane j + 8, then 4, 2, 1.
   The compiler needs twice as many instructions for it as AVX-512 has. */
#if VECTOR == 512
#define EIGHT_f32(y) _mm512_cvtps_pd(_mm256_loadu_ps(y))
#define EIGHT_f64(y) _mm512_loadu_pd(y)
#define LANES(suffix, type) \
  TARGET INLINE double AT(dot_lanes_##suffix)(const double *x, const type *y, long n) { \
    __m512d low = _mm512_setzero_pd(), high = low; \
    for (long i = 0; i < n; i += 16) { \
      low = _mm512_add_pd(low, _mm512_mul_pd(_mm512_loadu_pd(x + i), EIGHT_##suffix(y + i))); \
      high = _mm512_add_pd(high, _mm512_mul_pd(_mm512_loadu_pd(x + i + 8), EIGHT_##suffix(y + i + 8))); \
    } \
    low = _mm512_add_pd(low, high); \
    __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(low), _mm512_extractf64x4_pd(low, 1)); \
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1)); \
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two))); \
  }
#else
#define LANES(suffix, type) \
  TARGET INLINE double AT(dot_lanes_##suffix)(const double *x, const type *y, long n) { \
    double low[8] = {0}, high[8] = {0}, four[4]; /* several arrays, so that lanes stay in registers */ \
    for (long i = 0; i < n; i += 16) { \
      for (int j = 0; j < 8; j++) low[j] += x[i + j] * (double)y[i + j]; \
      for (int j = 0; j < 8; j++) high[j] += x[i + 8 + j] * (double)y[i + 8 + j]; \
    } \
    for (int j = 0; j < 8; j++) low[j] += high[j]; \
    for (int j = 0; j < 4; j++) four[j] = low[j] + low[j + 4]; \
    return (four[0] + four[2]) + (four[1] + four[3]); \
  }
#endif

/* Pairwise dot product: a lane adds up to 16 products; longer rows are split in halves. */
#define DOTS(suffix, type) \
  LANES(suffix, type) \
  TARGET INLINE double AT(dot_block_##suffix)(const double *x, const type *y, long n) { \
    long whole = n & ~15l; \
    double sum = AT(dot_lanes_##suffix)(x, y, whole), rest = 0; \
    for (long i = whole; i < n; i++) rest += x[i] * (double)y[i]; \
    return sum + rest; \
  } \
  TARGET static __attribute__((noinline)) double AT(dot_##suffix)(const double *x, const type *y, long n) { \
    long half = n / 32 * 16; \
    return n <= 256 ? AT(dot_block_##suffix)(x, y, n) : AT(dot_##suffix)(x, y, half) + AT(dot_##suffix)(x + half, \
        y + half, n - half); \
  }

DOTS(f32, float)
DOTS(f64, double)
#undef DOTS
#undef LANES
#undef EIGHT_f32
#undef EIGHT_f64

#include "update_loops.h"

/* Stores a row of sums, or updates it by an optimizer, which overwrites sum. */
TARGET static void AT(finish_row)(const sw_bag_out *out, long row, double *sum) {
  if (out->update) AT(update_row)(out, row, sum);
  else AT(store_row)(out, row, sum);
}

/* name: of the functions; suffix, type: what they add; index: numbers of bags, entries and
   elements. */
#define BAG_ROWS(name, suffix, type, index) \
  TARGET INLINE void AT(bag_tile_##name)(double *out, const type *dy, long step, const index *bags, \
                                         const double *scales, long of_bags, long n, long count) { \
    double sum[AT(BAG_TILE)], lost[AT(BAG_TILE)]; \
    for (long i = 0; i < count; i++) CLEAR_##suffix(sum[i], lost[i]); \
    for (long e = 0; e < n; e++) { \
      const type *x = dy + (long)bags[e] * step; \
      double scale = scales ? scales[of_bags ? (long)bags[e] : e] : 1; \
      for (long i = 0; i < count; i++) ADD_##suffix(sum[i], lost[i], (double)x[i] * scale); \
    } \
    for (long i = 0; i < count; i++) out[i] = WHOLE_##suffix(sum[i], lost[i]); \
  } \
  TARGET static __attribute__((noinline)) void AT(bag_few_##name)(double *out, const type *dy, long step, \
      const index *bags, const double *scales, long of_bags, long n, long count) { \
    AT(bag_tile_##name)(out, dy, step, bags, scales, of_bags, n, count); \
  } \
  /* Sums n rows of dy in at most 16 bits. They are converted here, as nothing else reads them. */ \
  TARGET static __attribute__((noinline)) void AT(bag_narrow_##name)(const sw_bag_rows *b, double *restrict sum, \
      const index *bags, const double *scales, long n) { \
    long columns = b->out.columns; \
    memset(sum, 0, columns * sizeof(double)); \
    for (long e = 0; e < n; e++) { \
      const char *row = (const char *)b->dy + (long)bags[e] * b->dy_bag * DTYPE_SIZE[b->dy_narrow]; \
      const float *restrict x = single_row(b->dy_narrow, row, (float *)b->out.single, columns); \
      double scale = scales ? scales[b->of_bags ? (long)bags[e] : e] : 1; \
      for (long i = 0; i < columns; i++) sum[i] += (double)x[i] * scale; \
    } \
  } \
  TARGET static void AT(bag_rows_##name)(const sw_bag_rows *b) { \
    const index *bags = (const index *)b->bags, *begin = (const index *)b->begin; \
    const double *scales = (const double *)b->scales; \
    const type *dy = (const type *)b->dy; \
    double *scratch = (double *)b->scratch; \
    long rows = b->out.rows, columns = b->out.columns, many = rows; \
    index *used = (index *)b->used; /* rows with entries: a list of them has no branch that depends on data */ \
    if (used) { \
      many = 0; \
      for (long row = 0; row < rows; row++) used[many] = (index)row, many += begin[row + 1] > begin[row]; \
      for (long k = 0; k < many; k++) ask_for_table(&b->out, (long)used[k]); \
    } \
    for (long k = 0; k < many; k++) { \
      long row = used ? (long)used[k] : k, first = (long)begin[row], n = (long)(begin[row + 1] - begin[row]), i = 0; \
      if (n == 0) { \
        long last = row; \
        while (last + 1 < rows && begin[last + 2] == begin[row]) last++; \
        store_zeros(&b->out, row, last + 1 - row); \
        k = last; \
        continue; \
      } \
      const double *s = scales && !b->of_bags ? scales + first : scales; \
      if (b->dy_narrow && n == 1 && !s && b->out.column == 1 && !b->out.update) { /* the row is its one summand */ \
        long size = DTYPE_SIZE[b->dy_narrow]; \
        memcpy(row_of(&b->out, row), (const char *)b->dy + (long)bags[first] * b->dy_bag * size, columns * size); \
        continue; \
      } \
      if (b->dy_narrow) AT(bag_narrow_##name)(b, scratch, bags + first, s, n), i = columns; \
      for (; i + AT(BAG_TILE) <= columns; i += AT(BAG_TILE)) \
        AT(bag_tile_##name)(scratch + i, dy + i, b->dy_bag, bags + first, s, b->of_bags, n, AT(BAG_TILE)); \
      if (i < columns) AT(bag_few_##name)(scratch + i, dy + i, b->dy_bag, bags + first, s, b->of_bags, n, \
                                          columns - i); \
      if (b->by_frequency && n > 1) for (i = 0; i < columns; i++) scratch[i] /= (double)n; \
      AT(finish_row)(&b->out, row, scratch); \
    } \
  } \
  TARGET static void AT(bag_terms_##name)(const sw_bag_terms *b) { \
    const sw_bag_term_##name *terms = (const sw_bag_term_##name *)b->terms; \
    double *restrict sums = (double *)b->sums, *restrict lost = (double *)b->lost; \
    long columns = b->out.columns, all = b->out.rows * columns; \
    memset(sums, 0, all * sizeof(double)); \
    if (lost) memset(lost, 0, all * sizeof(double)); \
    for (long e = 0; e < b->n; e++) ADD_##suffix(sums[terms[e].at], lost[terms[e].at], (double)terms[e].value); \
    if (lost) for (long i = 0; i < all; i++) sums[i] = WHOLE_##suffix(sums[i], lost[i]); \
    char *used = (char *)b->used; \
    if (used) memset(used, 0, b->out.rows); \
    for (long e = 0; used && e < b->n; e++) used[(long)terms[e].at / columns] = 1; \
    for (long row = 0; row < b->out.rows; row++) \
      if (!used || used[row]) AT(finish_row)(&b->out, row, sums + row * columns); \
  }

BAG_ROWS(f32, f32, float, uint32_t)
BAG_ROWS(f64, f64, double, uint32_t)
BAG_ROWS(f32_wide, f32, float, uint64_t)
BAG_ROWS(f64_wide, f64, double, uint64_t)
#undef BAG_ROWS

/* A row of dy in float64. All positions of a bag use it, so it is converted once per bag. */
TARGET static const double *AT(wide_f32)(const sw_bag_dots *b, long bag, double *restrict wide, float *single) {
  long start = bag * b->dy_bag * DTYPE_SIZE[b->dy_narrow];
  const float *row = single_row(b->dy_narrow, (const char *)b->dy + start, single, b->columns);
  for (long i = 0; i < b->columns; i++) wide[i] = (double)row[i];
  return wide;
}

TARGET static const double *AT(wide_f64)(const sw_bag_dots *b, long bag, double *wide, float *single) {
  (void)wide, (void)single;
  return (const double *)b->dy + bag * b->dy_bag;
}

/* Stores dots in the output, where they may span several rows. */
TARGET static void AT(store_dots)(const sw_bag_dots *b) {
  long width = b->out.columns, row = b->first / width, column = b->first % width;
  for (long e = 0; e < b->n; column = 0, row++) {
    sw_bag_out part = b->out;
    part.columns = width - column < b->n - e ? width - column : b->n - e;
    part.data += (uintptr_t)(column * part.column * DTYPE_SIZE[part.narrow]);
    AT(store_row)(&part, row, (const double *)b->dots + e);
    e += part.columns;
  }
}

#define BAG_DOTS(name, suffix, type, index) \
  TARGET static void AT(bag_dots_##name)(const sw_bag_dots *b) { \
    const index *bags = (const index *)b->bags, *rows = (const index *)b->rows, none = (index)-1; \
    double *dots = (double *)b->dots, *scratch = (double *)b->scratch; \
    float *single = (float *)(scratch + b->columns); \
    const char *weight = (const char *)b->weight; \
    long size = DTYPE_SIZE[b->weight_narrow], step = b->weight_row * size, n = b->n; \
    const double *x = NULL; \
    index bag = none; \
    for (long e = 0; e < n; e++) { \
      if (e + BAG_AHEAD < n && rows[e + BAG_AHEAD] != none) \
          ask_for(weight + (long)rows[e + BAG_AHEAD] * step, b->columns * size); \
      dots[e] = 0; \
      if (rows[e] == none) continue; \
      if (bags[e] != bag) { \
        bag = bags[e]; \
        x = AT(wide_##suffix)(b, (long)bag, scratch, single); \
      } \
      const type *y = (const type *)single_row(b->weight_narrow, weight + (long)rows[e] * step, single, b->columns); \
      dots[e] = b->columns <= 256 ? AT(dot_block_##suffix)(x, y, b->columns) : AT(dot_##suffix)(x, y, b->columns); \
    } \
    AT(store_dots)(b); \
  }
BAG_DOTS(f32, f32, float, uint32_t)
BAG_DOTS(f64, f64, double, uint32_t)
BAG_DOTS(f32_wide, f32, float, uint64_t)
BAG_DOTS(f64_wide, f64, double, uint64_t)
#undef BAG_DOTS

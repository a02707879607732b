/* The loops of embedding bags forward. forward.c includes this header once per vector width. */

/* Columns that are summed at once, with their sums in registers. */
enum { AT(REDUCE_TILE) = VECTOR / 8 };

#include "rows_loops.h"

/* Rows of `type` in memory, whose elements WIDE_suffix converts to float64. */
#define REDUCE(suffix, type) \
  /* Sums of `count` columns of n rows, from column `column` on. asks: prefetches rows ahead. */ \
  TARGET INLINE void AT(reduce_tile_##suffix)(const sw_bag_reduce *b, double *out, const uint64_t *rows, \
      const double *scales, long n, long left, long column, long count, int asks, int scaled) { \
    double sum[AT(REDUCE_TILE)], lost[AT(REDUCE_TILE)]; \
    for (long i = 0; i < count; i++) CLEAR_##suffix(sum[i], lost[i]); \
    const type *weight = (const type *)b->weight + column; \
    const long step = b->weight_row, bytes = b->out.columns * (long)sizeof(type); \
    for (long e = 0; e < n; e++) { \
      if (asks && BAG_AHEAD < left - e && rows[e + BAG_AHEAD] != NO_ROW) \
        ask_for((const char *)(weight + (long)rows[e + BAG_AHEAD] * step), bytes); \
      if (rows[e] == NO_ROW) continue; \
      const type *x = weight + (long)rows[e] * step; \
      double scale = scaled ? scales[e] : 1; \
      for (long i = 0; i < count; i++) \
        ADD_##suffix(sum[i], lost[i], scaled ? WIDE_##suffix(x[i]) * scale : WIDE_##suffix(x[i])); \
    } \
    for (long i = 0; i < count; i++) out[i] = WHOLE_##suffix(sum[i], lost[i]); \
  } \
  TARGET static __attribute__((noinline)) void AT(reduce_few_##suffix)(const sw_bag_reduce *b, double *out, \
      const uint64_t *rows, const double *scales, long n, long left, long column, long count) { \
    if (scales) AT(reduce_tile_##suffix)(b, out, rows, scales, n, left, column, count, column == 0, 1); \
    else AT(reduce_tile_##suffix)(b, out, rows, scales, n, left, column, count, column == 0, 0); \
  } \
  TARGET INLINE void AT(reduce_tiles_##suffix)(const sw_bag_reduce *b, double *out, const uint64_t *rows, \
      const double *scales, long n, long left, int scaled) { \
    const long columns = b->out.columns, tile = AT(REDUCE_TILE); \
    long i = 0; \
    if (tile <= columns) { \
      AT(reduce_tile_##suffix)(b, out, rows, scales, n, left, 0, AT(REDUCE_TILE), 1, scaled); \
      i = tile; \
    } \
    for (; i + tile <= columns; i += tile) \
      AT(reduce_tile_##suffix)(b, out + i, rows, scales, n, left, i, AT(REDUCE_TILE), 0, scaled); \
    if (i < columns) AT(reduce_few_##suffix)(b, out + i, rows, scales, n, left, i, columns - i); \
  } \
  /* Sums of all columns of rows that have to be copied. */ \
  TARGET static __attribute__((noinline)) void AT(reduce_copied_##suffix)(const sw_bag_reduce *b, \
      double *restrict sum, const uint64_t *rows, const double *scales, long n, long left) { \
    long columns = b->out.columns; \
    double *restrict lost = sum + columns; \
    memset(sum, 0, 2 * columns * sizeof(double)); \
    for (long e = 0; e < n; e++) { \
      ask_ahead(b, rows, e, left - e); \
      if (rows[e] == NO_ROW) continue; \
      const type *restrict x = dense_row(b, rows[e]); \
      double scale = scales ? scales[e] : 1; \
      for (long i = 0; i < columns; i++) ADD_##suffix(sum[i], lost[i], WIDE_##suffix(x[i]) * scale); \
    } \
    for (long i = 0; i < columns; i++) sum[i] = WHOLE_##suffix(sum[i], lost[i]); \
  } \
  /* Maxima of all columns of n rows. */ \
  TARGET static __attribute__((noinline)) void AT(reduce_max_##suffix)(const sw_bag_reduce *b, \
      double *restrict best, const uint64_t *rows, long n, long left) { \
    long columns = b->out.columns, counted = 0; \
    int64_t *restrict argmax_rows = (int64_t *)b->argmax_rows; \
    for (long i = 0; i < columns; i++) best[i] = 0, argmax_rows[i] = -1; \
    for (long e = 0; e < n; e++) { \
      ask_ahead(b, rows, e, left - e); \
      if (rows[e] == NO_ROW) continue; \
      const type *restrict x = dense_row(b, rows[e]); \
      int64_t row = (int64_t)rows[e]; \
      if (counted++ == 0) { \
        for (long i = 0; i < columns; i++) best[i] = WIDE_##suffix(x[i]), argmax_rows[i] = row; \
        continue; \
      } \
      for (long i = 0; i < columns; i++) { \
        double value = WIDE_##suffix(x[i]); \
        int64_t wins = -(int64_t)(value > best[i]); /* a NaN neither wins nor loses */ \
        best[i] = wins ? value : best[i]; \
        argmax_rows[i] = (argmax_rows[i] & ~wins) | (row & wins); \
      } \
    } \
  } \
  TARGET static void AT(bag_reduce_##suffix)(const sw_bag_reduce *b) { \
    const uint64_t *begin = (const uint64_t *)b->begin; \
    double *scratch = (double *)b->scratch; \
    long columns = b->out.columns; \
    for (long bag = 0; bag < b->bags; bag++) { \
      long first = (long)(begin[bag] - begin[0]), n = (long)(begin[bag + 1] - begin[bag]); \
      long left = (long)(begin[b->bags] - begin[bag]), counted = 0; \
      const uint64_t *rows = (const uint64_t *)b->rows + first; \
      const double *scales = b->scales ? (const double *)b->scales + first : NULL; \
      if (b->max) { \
        AT(reduce_max_##suffix)(b, scratch, rows, n, left); \
        store_argmax(b, bag, (const int64_t *)b->argmax_rows); \
      } else if (b->weight_column != 1) { \
        AT(reduce_copied_##suffix)(b, scratch, rows, scales, n, left); \
      } else if (scales) { \
        AT(reduce_tiles_##suffix)(b, scratch, rows, scales, n, left, 1); \
      } else { \
        AT(reduce_tiles_##suffix)(b, scratch, rows, scales, n, left, 0); \
      } \
      if (b->mean) { \
        for (long e = 0; e < n; e++) counted += rows[e] != NO_ROW; \
        if (counted > 1) for (long i = 0; i < columns; i++) scratch[i] /= (double)counted; \
      } \
      AT(store_row)(&b->out, bag, scratch); \
    } \
  }

#define FOR_FLOAT(suffix, stored, arithmetic) REDUCE(suffix, stored)
EACH_FLOAT(FOR_FLOAT)
#undef FOR_FLOAT
#undef REDUCE

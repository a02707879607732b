/* Included once for each processor by op_embedding_bag.c. */

/* Columns that a row is summed in at once: their sums stay in registers. */
enum { AT(BAG_TILE) = VECTOR / 8 };

/* float32 is added in float64, which is sum enough. float64 carries the error of each addition along (Knuth's exact sum of two numbers);
   where the sum is not finite the errors mean nothing. */
#define ADD_f32(sum, lost, x) do { sum += x; (void)lost; } while (0)
#define ADD_f64(sum, lost, x) \
  do { double term = x, next = sum + term, part = next - sum; lost += (sum - (next - part)) + (term - part); sum = next; } while (0)
#define WHOLE_f32(sum, lost) (sum)
#define WHOLE_f64(sum, lost) (isfinite(sum) ? (sum) + (lost) : (sum))

#define BAG_ROWS(suffix, type) \
  TARGET INLINE void AT(bag_tile_##suffix)(double *out, const type *dy, long step, const uint32_t *bags, const double *scales, long n, long count) { \
    double sum[AT(BAG_TILE)] = {0}, lost[AT(BAG_TILE)] = {0}; \
    for (long e = 0; e < n; e++) { \
      const type *x = dy + (long)bags[e] * step; \
      double scale = scales ? scales[e] : 1; \
      for (long i = 0; i < count; i++) ADD_##suffix(sum[i], lost[i], (double)x[i] * scale); \
    } \
    for (long i = 0; i < count; i++) out[i] = WHOLE_##suffix(sum[i], lost[i]); \
  } \
  TARGET static __attribute__((noinline)) void AT(bag_few_##suffix)(double *out, const type *dy, long step, const uint32_t *bags, const double *scales, long n, long count) { \
    AT(bag_tile_##suffix)(out, dy, step, bags, scales, n, count); \
  } \
  TARGET static __attribute__((noinline)) void AT(bag_winners_##suffix)(double *sum, double *lost, const type *dy, long step, const uint32_t *bags, const uint32_t *columns, long n, long width) { \
    memset(sum, 0, width * sizeof(double)); \
    memset(lost, 0, width * sizeof(double)); \
    for (long e = 0; e < n; e++) { \
      long i = columns[e]; \
      ADD_##suffix(sum[i], lost[i], (double)dy[(long)bags[e] * step + i]); \
    } \
    for (long i = 0; i < width; i++) sum[i] = WHOLE_##suffix(sum[i], lost[i]); \
  } \
  TARGET static void AT(bag_rows_##suffix)(const sw_bag_rows *b) { \
    const uint32_t *bags = (const uint32_t *)b->bags, *begin = (const uint32_t *)b->begin, *columns = (const uint32_t *)b->winners; \
    const double *scales = (const double *)b->scales; \
    const type *dy = (const type *)b->dy; \
    double *room = (double *)b->room; \
    for (long row = 0; row < b->rows; row++) { \
      long first = begin[row], n = begin[row + 1] - begin[row], i = 0; \
      if (n == 0) { \
        long last = row; \
        while (last + 1 < b->rows && begin[last + 2] == begin[row]) last++; \
        store_zeros(b, row, last + 1 - row); \
        row = last; \
        continue; \
      } \
      const double *s = scales ? scales + first : NULL; \
      if (columns) { \
        AT(bag_winners_##suffix)(room, room + b->columns, dy, b->dy_bag, bags + first, columns + first, n, b->columns); \
      } else { \
        for (; i + AT(BAG_TILE) <= b->columns; i += AT(BAG_TILE)) \
          AT(bag_tile_##suffix)(room + i, dy + i, b->dy_bag, bags + first, s, n, AT(BAG_TILE)); \
        if (i < b->columns) AT(bag_few_##suffix)(room + i, dy + i, b->dy_bag, bags + first, s, n, b->columns - i); \
        if (b->by_frequency && n > 1) for (i = 0; i < b->columns; i++) room[i] /= (double)n; \
      } \
      store_row(b, row, room); \
    } \
  }

BAG_ROWS(f32, float)
BAG_ROWS(f64, double)
#undef BAG_ROWS
#undef ADD_f32
#undef ADD_f64
#undef WHOLE_f32
#undef WHOLE_f64

/* 16 lanes, each with a part of the row, which go to the next level after 16 additions; then the lanes. A long row is cut in two. */
#define LESSER(a, b) ((a) < (b) ? (a) : (b))
#define DOTS(suffix, type) \
  TARGET static double AT(dot_##suffix)(const type *x, const type *y, long n) { \
    double total[16] = {0}; \
    long i = 0, half = n / 512 * 256; \
    if (n > 4096) return AT(dot_##suffix)(x, y, half) + AT(dot_##suffix)(x + half, y + half, n - half); \
    while (i + 16 <= n) { \
      double run[16] = {0}; \
      for (long stop = LESSER(n, i + 256); i + 16 <= stop; i += 16) \
        for (int j = 0; j < 16; j++) run[j] += (double)x[i + j] * (double)y[i + j]; \
      for (int j = 0; j < 16; j++) total[j] += run[j]; \
    } \
    double rest = 0, eight[8], four[4]; /* other arrays, so that lanes stay in registers */ \
    for (; i < n; i++) rest += (double)x[i] * (double)y[i]; \
    for (int j = 0; j < 8; j++) eight[j] = total[j] + total[j + 8]; \
    for (int j = 0; j < 4; j++) four[j] = eight[j] + eight[j + 4]; \
    return ((four[0] + four[2]) + (four[1] + four[3])) + rest; \
  } \
  TARGET static void AT(bag_dots_##suffix)(const sw_bag_dots *b) { \
    const uint32_t *bags = (const uint32_t *)b->bags, *rows = (const uint32_t *)b->rows; \
    for (long e = 0; e < b->n; e++) { \
      if (e + BAG_AHEAD < b->n) ask_for_row(b, rows[e + BAG_AHEAD], sizeof(type)); \
      ((double *)b->out)[e] = rows[e] == UINT32_MAX ? 0 \
        : AT(dot_##suffix)((const type *)b->dy + (long)bags[e] * b->dy_bag, (const type *)wide_row(b, rows[e], sizeof(type)), b->columns); \
    } \
  }

DOTS(f32, float)
DOTS(f64, double)
#undef DOTS
#undef LESSER

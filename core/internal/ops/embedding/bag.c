/* The loops of embedding bags (bag.h), for each processor. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-math-errno") /* otherwise loops that call sqrt are not vectorized */
#endif
#include "bag.h"

#include <math.h>
#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#include "../../cpu/vector.h"

static char *row_of(const sw_bag_out *out, long row) {
  return (char *)out->data + row * out->row * DTYPE_SIZE[out->narrow];
}

/* Clears `count` adjacent rows. */
static void store_zeros(const sw_bag_out *out, long row, long count) {
  if (out->update) return; /* no index names them */
  long n = out->columns, size = DTYPE_SIZE[out->narrow];
  char *to = row_of(out, row);
  if (out->column == 1 && out->row == n) {
    memset(to, 0, count * n * size);
    return;
  }
  for (; count > 0; count--, to += out->row * size) {
    if (out->column == 1) memset(to, 0, n * size);
    else for (long i = 0; i < n; i++) memset(to + i * out->column * size, 0, size);
  }
}

void sw_bag_zeros(const sw_bag_out *out) { store_zeros(out, 0, out->rows); }

/* Stores a row of float32 in the dtype and with the column stride of the output. */
static void store_single(const sw_bag_out *out, long row, const float *single) {
  long n = out->columns, step = out->column;
  if (out->narrow == DTYPE_f32) {
    for (long i = 0; i < n; i++) ((float *)row_of(out, row))[i * step] = single[i];
    return;
  }
  char *to = row_of(out, row), *narrow = step == 1 ? to : (char *)(single + n);
  sw_narrow(out->narrow, narrow, single, n);
  if (step == 1) return;
  switch (out->narrow) {
#define SCATTER(suffix, stored) \
  case DTYPE_##suffix: \
    for (long i = 0; i < n; i++) ((stored *)to)[i * step] = ((const stored *)narrow)[i]; \
    break;
  EACH_NARROW(SCATTER)
#undef SCATTER
  }
}

/* Software prefetch distance: rows of weight are gathered, so BAG_LINES cache lines of the row
   BAG_AHEAD entries ahead are prefetched. */
enum { BAG_AHEAD = 6, BAG_LINES = 8 };

static inline void ask_for(const char *line, long bytes) {
  for (long at = 0; at < bytes && at < 64 * BAG_LINES; at += 64) __builtin_prefetch(line + at);
}

INLINE const float *single_row(long narrow, const void *row, float *scratch, long n) {
  if (DTYPE_SIZE[narrow] > 2) return row;
  sw_widen(narrow, scratch, row, n);
  return scratch;
}

#define LOOPS "bag_loops.h"
#include "../../cpu/each_processor.h"

#define EXPORT(name) \
  void sw_bag_rows_##name(const sw_bag_rows *b) { CHOSEN(bag_rows_##name)(b); } \
  void sw_bag_terms_##name(const sw_bag_terms *b) { CHOSEN(bag_terms_##name)(b); } \
  void sw_bag_dots_##name(const sw_bag_dots *b) { CHOSEN(bag_dots_##name)(b); }

EXPORT(f32)
EXPORT(f64)
EXPORT(f32_wide)
EXPORT(f64_wide)

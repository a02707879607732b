#ifndef STERNWAY_OP_EMBEDDING_ROWS_H
#define STERNWAY_OP_EMBEDDING_ROWS_H
/* Rows of a table and of an output: how the loops of this package read and store them. */
#include <math.h>

#include "bag.h"
#include "../../cpu/vector.h"

/* float32 terms are added in float64. float64 terms use compensated summation with Knuth's TwoSum;
   the compensation is dropped if the sum is not finite. */
#define CLEAR_f32(sum, lost) do { sum = 0; (void)lost; } while (0)
#define CLEAR_f64(sum, lost) (sum = lost = 0)
#define ADD_f32(sum, lost, x) do { sum += x; (void)lost; } while (0)
#define ADD_f64(sum, lost, x) \
  do { double term = x, next = sum + term, part = next - sum; lost += (sum - (next - part)) + (term - part); \
      sum = next; } while (0)
#define WHOLE_f32(sum, lost) (sum)
#define WHOLE_f64(sum, lost) (isfinite(sum) ? (sum) + (lost) : (sum))

INLINE char *row_of(const sw_bag_out *out, long row) {
  return (char *)out->data + row * out->row * DTYPE_SIZE[out->narrow];
}

/* Stores a row of float32 in the dtype and with the column stride of the output. */
UNUSED static void store_single(const sw_bag_out *out, long row, const float *single) {
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

INLINE void ask_for(const char *line, long bytes) {
  for (long at = 0; at < bytes && at < 64 * BAG_LINES; at += 64) __builtin_prefetch(line + at);
}

/* Prefetches a row that an optimizer updates, and its states. */
INLINE void ask_for_table(const sw_bag_out *out, long row) {
  const sw_bag_update *u = (const sw_bag_update *)out->update;
  long of_state = out->columns * (out->narrow == DTYPE_f64 ? 8 : 4);
  ask_for(row_of(out, row), out->columns * DTYPE_SIZE[out->narrow]);
  if (u->state && !u->by_row) ask_for((const char *)u->state + row * of_state, of_state);
  if (u->state2) ask_for((const char *)u->state2 + row * of_state, of_state);
}

INLINE const float *single_row(long narrow, const void *row, float *scratch, long n) {
  if (DTYPE_SIZE[narrow] > 2) return row;
  sw_widen(narrow, scratch, row, n);
  return scratch;
}
#endif

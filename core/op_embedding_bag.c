#include "op_embedding_bag.h"

#include <math.h>
#include <string.h>

#include "vector.h"

/* Puts one row of dweight, in float64, where it belongs. */
static void store_row(const sw_bag_rows *b, long row, double *sum) {
  static const long sizes[] = {4, 8, 2, 2};
  long n = b->columns, size = sizes[b->narrow], step = b->out_column;
  char *out = (char *)b->out + row * b->out_row * size;
  if (b->narrow == BAG_F64) {
    for (long i = 0; i < n; i++) ((double *)out)[i * step] = sum[i];
    return;
  }
  float *single = (float *)sum; /* in place: a float is written where no double is read any more */
  for (long i = 0; i < n; i++) {
    double value = sum[i];
    float rounded = (float)value;
    memcpy(single + i, &rounded, sizeof rounded);
  }
  if (b->narrow == BAG_F32) {
    if (step == 1) memcpy(out, single, n * sizeof(float));
    else for (long i = 0; i < n; i++) memcpy((float *)out + i * step, single + i, sizeof(float));
    return;
  }
  uint16_t *half = (uint16_t *)(single + n); /* the row of float64 has room behind the floats */
  if (step == 1) half = (uint16_t *)out;
  if (b->narrow == BAG_F16) sw_narrow_f16(half, single, n);
  else sw_narrow_bf16(half, single, n);
  if (step != 1) for (long i = 0; i < n; i++) ((uint16_t *)out)[i * step] = half[i];
}

/* Clears `count` adjacent rows. */
static void store_zeros(const sw_bag_rows *b, long row, long count) {
  static const long sizes[] = {4, 8, 2, 2};
  long n = b->columns, size = sizes[b->narrow];
  char *out = (char *)b->out + row * b->out_row * size;
  if (b->out_column == 1 && b->out_row == n) {
    memset(out, 0, count * n * size);
    return;
  }
  for (; count > 0; count--, out += b->out_row * size) {
    if (b->out_column == 1) memset(out, 0, n * size);
    else for (long i = 0; i < n; i++) memset(out + i * b->out_column * size, 0, size);
  }
}

/* Rows of weight come from anywhere: lines are asked for so many rows ahead, the first ones of a long row. */
enum { BAG_AHEAD = 6, BAG_LINES = 8 };

static const char *row_at(const sw_bag_dots *b, long row, long size) {
  return (const char *)b->weight + row * b->weight_row * (b->room ? 2 : size);
}

static inline void ask_for_row(const sw_bag_dots *b, uint32_t row, long size) {
  if (row == UINT32_MAX) return;
  const char *line = row_at(b, row, size);
  long bytes = b->columns * (b->room ? 2 : size);
  for (long at = 0; at < bytes && at < 64 * BAG_LINES; at += 64) __builtin_prefetch(line + at);
}

/* A row of weight as wide as dy. */
static inline const void *wide_row(const sw_bag_dots *b, long row, long size) {
  if (!b->room) return row_at(b, row, size);
  (b->narrow == BAG_F16 ? sw_widen_f16 : sw_widen_bf16)((float *)b->room, (const uint16_t *)row_at(b, row, size), b->columns);
  return (const void *)b->room;
}

#define LOOPS "op_embedding_bag_loops.h"
#include "each_processor.h"

void sw_bag_rows_f32(const sw_bag_rows *b) { CHOSEN(bag_rows_f32)(b); }
void sw_bag_rows_f64(const sw_bag_rows *b) { CHOSEN(bag_rows_f64)(b); }
void sw_bag_dots_f32(const sw_bag_dots *b) { CHOSEN(bag_dots_f32)(b); }
void sw_bag_dots_f64(const sw_bag_dots *b) { CHOSEN(bag_dots_f64)(b); }

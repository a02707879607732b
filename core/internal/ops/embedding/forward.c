/* The loops of embedding bags forward (forward.h), for each processor. */
#include "forward.h"
#include "rows.h"

#define NO_ROW (~(uint64_t)0)

/* Asks for the row that is added BAG_AHEAD entries after entry e; there are `left` entries from there
   on. */
INLINE void ask_ahead(const sw_bag_reduce *b, const uint64_t *rows, long e, long left) {
  long size = DTYPE_SIZE[b->weight_dtype];
  if (BAG_AHEAD < left && rows[e + BAG_AHEAD] != NO_ROW)
    ask_for((const char *)b->weight + (long)rows[e + BAG_AHEAD] * b->weight_row * size, b->out.columns * size);
}

/* A row of weight without gaps. */
static const void *dense_row(const sw_bag_reduce *b, uint64_t row) {
  long n = b->out.columns, step = b->weight_column;
  const char *from = (const char *)b->weight + (long)row * b->weight_row * DTYPE_SIZE[b->weight_dtype];
  if (step == 1) return from;
  switch (b->weight_dtype) {
#define COPY(suffix, stored, arithmetic) \
  case DTYPE_##suffix: \
    for (long i = 0; i < n; i++) ((stored *)b->copied)[i] = ((const stored *)from)[i * step]; \
    break;
  EACH_FLOAT(COPY)
#undef COPY
  }
  return (const void *)b->copied;
}

/* A row of weight in the type that is added. */
static const float *added_row_f32(const sw_bag_reduce *b, uint64_t row) {
  return single_row(b->weight_dtype, dense_row(b, row), (float *)(b->copied + b->out.columns * 8), b->out.columns);
}
static const double *added_row_f64(const sw_bag_reduce *b, uint64_t row) { return dense_row(b, row); }

/* Stores the rows that won in a bag. */
static void store_winners(const sw_bag_reduce *b, long bag, const int64_t *winners) {
  if (!b->argmax) return;
  long n = b->out.columns, step = b->argmax_column;
  if (b->argmax_wide) for (long i = 0; i < n; i++) ((int64_t *)b->argmax)[bag * b->argmax_row + i * step] = winners[i];
  else for (long i = 0; i < n; i++) ((int32_t *)b->argmax)[bag * b->argmax_row + i * step] = (int32_t)winners[i];
}

#define LOOPS "forward_loops.h"
#include "../../cpu/each_processor.h"

void sw_bag_reduce_f32(const sw_bag_reduce *b) { CHOSEN(bag_reduce_f32)(b); }
void sw_bag_reduce_f64(const sw_bag_reduce *b) { CHOSEN(bag_reduce_f64)(b); }

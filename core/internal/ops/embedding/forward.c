/* The loops of embedding bags forward (forward.h), for each processor. */
#include "forward.h"
#include "rows.h"

#define NO_ROW (~(uint64_t)0)

/* Asks for the row that is added BAG_AHEAD entries after entry e; there are `left` entries from
   there on. */
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

/* An element of each dtype in float64, and how sums of it are made (rows.h). */
#define WIDE_f32(x) ((double)(x))
#define WIDE_f64(x) (x)
#define WIDE_f16(x) ((double)widen_f16_one(x))
#define WIDE_bf16(x) ((double)widen_bf16_one(x))
#define CLEAR_f16 CLEAR_f32
#define CLEAR_bf16 CLEAR_f32
#define ADD_f16 ADD_f32
#define ADD_bf16 ADD_f32
#define WHOLE_f16 WHOLE_f32
#define WHOLE_bf16 WHOLE_f32

/* Stores the argmax rows of a bag. */
static void store_argmax(const sw_bag_reduce *b, long bag, const int64_t *argmax_rows) {
  if (!b->argmax) return;
  long n = b->out.columns, step = b->argmax_column;
  long first = bag * b->argmax_row;
  if (b->argmax_wide) for (long i = 0; i < n; i++) ((int64_t *)b->argmax)[first + i * step] = argmax_rows[i];
  else for (long i = 0; i < n; i++) ((int32_t *)b->argmax)[first + i * step] = (int32_t)argmax_rows[i];
}

#define LOOPS "forward_loops.h"
#include "../../cpu/each_processor.h"

#define EXPORT(suffix, stored, arithmetic) \
  void sw_bag_reduce_##suffix(const sw_bag_reduce *b) { CHOSEN(bag_reduce_##suffix)(b); }

EACH_FLOAT(EXPORT)

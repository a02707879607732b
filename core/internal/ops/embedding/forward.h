#ifndef STERNWAY_OP_EMBEDDING_FORWARD_H
#define STERNWAY_OP_EMBEDDING_FORWARD_H
#include "bag.h"

/* Row b of the output reduces the rows rows[e] of weight over the entries e from begin[b] -
   begin[0] to begin[b + 1] - begin[0]; an entry with all bits set is no row. Sums are made in
   float64, of scales[e] times a row where scales is not 0, and divided by the number of rows if
   `mean` is set. If `max` is set, a row is the maximum of each column, and argmax, unless it is 0,
   gets the row of weight that it is of, or -1: in 64 bits if argmax_wide is set, else in 32.
   scratch: two rows of float64; argmax_rows: a row of int64; copied: a row of weight. */
typedef struct {
  sw_bag_out out;
  uintptr_t weight, rows, begin, scales, argmax, scratch, argmax_rows, copied;
  long weight_row, weight_column, weight_dtype;
  long argmax_row, argmax_column, argmax_wide;
  long bags, mean, max;
} sw_bag_reduce;

/* By the dtype of weight. */
void sw_bag_reduce_f32(const sw_bag_reduce *);
void sw_bag_reduce_f64(const sw_bag_reduce *);
void sw_bag_reduce_f16(const sw_bag_reduce *);
void sw_bag_reduce_bf16(const sw_bag_reduce *);
#endif

#ifndef STERNWAY_OP_EMBEDDING_BAG_H
#define STERNWAY_OP_EMBEDDING_BAG_H
#include <stdint.h>

/* Addresses are integers (see sw_factor in cpu/vector.h). Dtypes are rows of tensor.DTypeRows. */

/* The optimizer that updates the rows of an output, contiguous ones (learning.go). The states have
   the type of arithmetic, and begin at the first row of the output; an optimizer with fewer states
   has 0 in their place. by_row: the state has one number for each row. stochastic: 16-bit rows are
   rounded at random; stream, first: the start of the random numbers, and the number of the first
   element of the rows among all that have random numbers. scratch: two rows of float64. */
typedef struct {
  double lr, eps, weight_decay, beta1, beta2, grad_scale, step_size;
  uintptr_t state, state2, scratch;
  uint64_t stream;
  long first, by_row, stochastic;
} sw_bag_update;

/* 64 random bits of a number in a stream (splitmix64). */
static inline uint64_t sw_hash(uint64_t stream, uint64_t number) {
  uint64_t x = stream + number * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/* Rows of an output, of the dtype `narrow`. single: scratch for two rows of float32. update: an
   sw_bag_update, by which rows are updated in place of being stored, or 0. */
typedef struct {
  uintptr_t data, single, update;
  long row, column, rows, columns, narrow; /* the first two are strides */
} sw_bag_out;

void sw_bag_zeros(const sw_bag_out *);

/* Functions with suffix _wide read indices of bags, rows and entries as uint64_t, the others as
   uint32_t. */

/* Row r is the sum of scales[e] dy[bags[e]] over the entries e from begin[r] to begin[r + 1], made
   in float64, and divided by their number where by_frequency is set. scales may be 0; where of_bags
   is set, they are those of bags. The rows of dy are dense, in float32 or float64, or in at most 16
   bits if dy_narrow says so, where each is used once. used: with an optimizer, scratch for the
   numbers of out.rows rows, else 0. scratch: a row of float64. */
typedef struct {
  sw_bag_out out;
  uintptr_t dy, bags, scales, begin, used, scratch;
  long dy_bag, dy_narrow, of_bags, by_frequency;
} sw_bag_rows;

void sw_bag_rows_f32(const sw_bag_rows *);
void sw_bag_rows_f64(const sw_bag_rows *);
void sw_bag_rows_f32_wide(const sw_bag_rows *);
void sw_bag_rows_f64_wide(const sw_bag_rows *);

/* Element `at` of the rows is a sum of the values of its terms, computed in float64: sums and, for
   values of float64, lost are scratch for all rows. used: scratch of a byte for each row if rows
   are updated. */
typedef struct { uint32_t at; float value; } sw_bag_term_f32;
typedef struct { uint32_t at; double value; } sw_bag_term_f64;
typedef struct { uint64_t at; float value; } sw_bag_term_f32_wide;
typedef struct { uint64_t at; double value; } sw_bag_term_f64_wide;

typedef struct {
  sw_bag_out out;
  uintptr_t terms, sums, lost, used;
  long n;
} sw_bag_terms;

void sw_bag_terms_f32(const sw_bag_terms *);
void sw_bag_terms_f64(const sw_bag_terms *);
void sw_bag_terms_f32_wide(const sw_bag_terms *);
void sw_bag_terms_f64_wide(const sw_bag_terms *);

/* Element first + e of the output, counted row by row, is dot(dy of bags[e], row rows[e] of
   weight), both without gaps; 0 where rows[e] is no row, all bits set. Each is as wide as the
   function says, or of at most 16 bits, as dy_narrow and weight_narrow say. dots: scratch for n.
   scratch: a row of weight in float64, and one in float32. */
typedef struct {
  sw_bag_out out;
  uintptr_t dy, weight, bags, rows, dots, scratch;
  long first, n, dy_bag, weight_row, columns, dy_narrow, weight_narrow;
} sw_bag_dots;
void sw_bag_dots_f32(const sw_bag_dots *);
void sw_bag_dots_f64(const sw_bag_dots *);
void sw_bag_dots_f32_wide(const sw_bag_dots *);
void sw_bag_dots_f64_wide(const sw_bag_dots *);
#endif

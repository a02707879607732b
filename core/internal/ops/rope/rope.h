#ifndef STERNWAY_OP_ROPE_H
#define STERNWAY_OP_ROPE_H
#include <stdint.h>

/* A rotation of RopeBackward over a tile: some tokens, some pairs, some heads. Each pair has four
   factors, in the accumulator:

     out_i = a in_i + b in_j      out_j = c in_j + d in_i

   Addresses are integers (see sw_factor in vector.h). Strides are in elements. */

/* A table of cosines or sines; data is the address of the tile's first pair in row 0. */
typedef struct {
  uintptr_t data;
  long dtype; /* a row of tensor.DTypeRows */
  long row, column;
} sw_rope_table;

typedef struct {
  uintptr_t factor[4];    /* a, b, c, d: [tokens][pairs] */
  uintptr_t position;     /* int64 for each token */
  long tokens, pairs;
  uintptr_t frequency;    /* a double for each pair, or 0: there are tables */
  long single;            /* the angle is formed in float32 */
  long forward;           /* the transpose of the backward */
  sw_rope_table cos, sin;
  long pair_stride, partner_offset;      /* columns from a pair to the next, and from its first member to its second */
} sw_rope_factors;

/* Angles must be below ROPE_LARGEST. */
#define ROPE_LARGEST 1647099.0 /* 2^20 quarters of a turn */
void sw_rope_factors_f32(const sw_rope_factors *f);
void sw_rope_factors_f64(const sw_rope_factors *f);

typedef struct {
  uintptr_t in, out;      /* the first element of the first row; may be the same */
  long outer, inner;      /* heads and tokens, or tokens and heads */
  long in_outer, in_inner, in_step, out_outer, out_inner, out_step;
  long factor_outer, factor_inner;
  uintptr_t factor[4];
  long first, pairs;      /* the element that the pairs begin at */
  long pair_stride, partner_offset;      /* elements from a pair to the next, and from its first member to its second */
  long copied[2][2];      /* elements that are copied: where they begin, how many */
} sw_rope_rows;

/* dtype is that of the elements, a row of tensor.DTypeRows. */
void sw_rope_rows_of(long dtype, const sw_rope_rows *r);
#endif

#ifndef STERNWAY_TREE_H
#define STERNWAY_TREE_H

/* Pairwise summation in float64 in a fixed order. Each of LANES lanes sums leaves of four numbers
   and combines the leaves as a binary counter, which is a balanced tree: the error grows with the
   logarithm of the length. The lanes are added last. */
enum { LANES = 32, LEAF = 4 * LANES };

typedef struct {
  double waiting[32][LANES];
  int depth;
  long leaves;
} tree;

#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#endif

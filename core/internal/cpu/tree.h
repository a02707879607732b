#ifndef STERNWAY_TREE_H
#define STERNWAY_TREE_H

/* Sums are made in float64 in a fixed order: LANES lanes, each over leaves of four numbers, added leaf after leaf in a binary counter,
   which is a balanced tree, so that error gathers slowly; then the lanes themselves. */
enum { LANES = 32, LEAF = 4 * LANES };

typedef struct {
  double waiting[32][LANES];
  int depth;
  long leaves;
} tree;

#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#endif

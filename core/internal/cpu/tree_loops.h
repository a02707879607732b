/* The summation tree of tree.h: push adds a leaf of LANES partial sums, total returns the sum and
   empties the tree. */

TARGET INLINE void AT(push)(tree *t, double *lane) {
  for (long k = t->leaves++; k & 1; k >>= 1) {
    const double *waiting = t->waiting[--t->depth];
    for (int j = 0; j < LANES; j++) lane[j] += waiting[j];
  }
  for (int j = 0; j < LANES; j++) t->waiting[t->depth][j] = lane[j];
  t->depth++;
}

TARGET static __attribute__((noinline)) double AT(total)(tree *t) {
  double lane[LANES], by16[16], by8[8], by4[4];
  for (int j = 0; j < LANES; j++) lane[j] = 0; /* an initializer would be a call, or a slow instruction */
  while (t->depth) {
    const double *waiting = t->waiting[--t->depth];
    for (int j = 0; j < LANES; j++) lane[j] += waiting[j];
  }
  t->leaves = 0;
  for (int j = 0; j < 16; j++) by16[j] = lane[j] + lane[j + 16];
  for (int j = 0; j < 8; j++) by8[j] = by16[j] + by16[j + 8];
  for (int j = 0; j < 4; j++) by4[j] = by8[j] + by8[j + 4];
  return (by4[0] + by4[2]) + (by4[1] + by4[3]);
}

TARGET INLINE void AT(push_leaf)(tree *t, const double *in) {
  double lane[LANES];
  for (int j = 0; j < LANES; j++) lane[j] = in[j] + in[j + LANES] + in[j + 2 * LANES] + in[j + 3 * LANES];
  AT(push)(t, lane);
}

TARGET static __attribute__((noinline)) void AT(push_part)(tree *t, const double *in, long n) {
  double lane[LANES];
  for (int j = 0; j < LANES; j++) lane[j] = 0;
  for (long i = 0; i < n; i++) lane[i % LANES] += in[i];
  AT(push)(t, lane);
}

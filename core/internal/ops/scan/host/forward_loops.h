/* Included once for each processor by forward.c: the loops over the tiles of a call. */

/* Scans the lanes of a call, whose prefixes are in states; NULL: lanes are whole rows. An upsweep
   stores nothing but the aggregates, in states; a downsweep leaves the prefixes after the lanes
   there. */
TARGET INLINE void AT(scan_forward)(enum scan_kind kind, int exact, int is_upsweep, int with_index,
                                    const scan_forward_call *call, const group *g, double *states) {
  SIZES;
  double x[SCAN_TILE], other[SCAN_TILE]; /* other: indices, or products */
  double a[SCAN_WIDEST], b[SCAN_WIDEST], c[SCAN_WIDEST];
  uint64_t index[SCAN_WIDEST], here[SCAN_WIDEST];
  unpack_prefixes(kind, g, is_upsweep ? NULL : states, a, b, c);
  if (with_index) init_indices(call, g, c, index, here);
  for (long k = 0; k < call->n; k += positions) {
    long n = POSITIONS(k);
    sw_scan_load(x, &call->x, WINDOW(k, n));
    EACH_BLOCK scan_block(kind, exact, is_upsweep, with_index, a + s, b + s, c + s, index + s, here + s, x + s,
                          other + s, call->delta, width, n);
    if (is_upsweep) continue;
    if (call->y.data) sw_scan_store(&call->y, kind == SCAN_PRODUCT ? other : x, WINDOW(k, n));
    if (with_index && call->indices.data) sw_scan_store(&call->indices, other, WINDOW(k, n));
  }
  if (!states) return;
  for (long l = 0; l < g->lanes; l++) {
    double *to = states + 3 * (g->lane + l);
    to[0] = a[l], to[1] = b[l], to[2] = with_index ? number(index[l]) : c[l];
  }
}

#define DIRECTIONS(kind, exact, with_index) \
  if (is_upsweep) { EACH_GROUP AT(scan_forward)(kind, exact, 1, with_index, call, g, states); } \
  else { EACH_GROUP AT(scan_forward)(kind, exact, 0, with_index, call, g, states); }

/* Sums of at most SCAN_SHORT_MAX terms need no compensation. */
#define ARITHMETIC(name, kind) \
  TARGET static void AT(scan_forward_##name)(const scan_forward_call *call, int is_upsweep, double *states) { \
    int exact = call->x.type == DTYPE_f64 && (kind != SCAN_SUM || call->n > SCAN_SHORT_MAX); \
    if (exact) { DIRECTIONS(kind, 1, 0) } else { DIRECTIONS(kind, 0, 0) } \
  }
#define RECORDS(name, kind) \
  TARGET static void AT(scan_forward_##name)(const scan_forward_call *call, int is_upsweep, double *states) { \
    if (call->with_index) { DIRECTIONS(kind, 0, 1) } else { DIRECTIONS(kind, 0, 0) } \
  }

EACH_ARITHMETIC_KIND(ARITHMETIC)
EACH_RECORD_KIND(RECORDS)
#undef DIRECTIONS
#undef ARITHMETIC
#undef RECORDS

/* Included once for each processor by kinds.c: upsweeps and downsweeps of the kinds that have
   vector code. */

#define IN_FLOAT64 (call->dy.type == DTYPE_f64)
#define GROUPS(exact, ...) \
  if (exact) { enum { EXACT = 1 }; EACH_GROUP { __VA_ARGS__ } } else { enum { EXACT = 0 }; EACH_GROUP { __VA_ARGS__ } }

#include "block_loops.h"

/* Finds the records of the lanes, and stores their flags in place of checkpoints, unless checkpoint
   is NULL. */
TARGET INLINE void AT(scan_flag_records)(enum scan_kind kind, const scan_call *call, const group *g,
                                         double *restrict best, double *restrict seen, double *checkpoint) {
  SIZES;
  double x[SCAN_TILE];
  uint32_t unused_flags[SCAN_TILE / SCAN_LANES];
  int is_min = kind >= SCAN_MIN_LAST, first = kind == SCAN_MAX_FIRST || kind == SCAN_MIN_FIRST;
  for (long k = 0; k < call->n; k += positions) {
    long n = POSITIONS(k);
    uint32_t *flags = checkpoint ? (uint32_t *)CHECKPOINT(k) : unused_flags;
    sw_scan_load(x, &call->x, WINDOW(k, n));
    EACH_BLOCK AT(scan_flag_records_block)(is_min, first, best + s, seen + s, x + s, flags + s / SCAN_LANES, width, n);
  }
}

/* The aggregates of lanes. */
TARGET INLINE void AT(scan_upsweep_records)(enum scan_kind kind, const scan_call *call, double *states) {
  EACH_GROUP {
    double best[SCAN_WIDEST] = {0}, seen[SCAN_WIDEST] = {0};
    AT(scan_flag_records)(kind, call, g, best, seen, NULL);
    for (long l = 0; l < g->lanes; l++) states[2 * (g->lane + l)] = best[l], states[2 * (g->lane + l) + 1] = seen[l];
  }
}

/* The suffixes of a group whose record flags are stored. */
TARGET INLINE void AT(scan_suffix_upsweep_group)(int exact, const scan_call *call, const group *g, double *carries,
                                                 const double *checkpoint) {
  SIZES;
  double dy[SCAN_TILE], link[SCAN_WIDEST], suffix[SCAN_WIDEST], error[SCAN_WIDEST];
  for (long l = 0; l < width; l++) link[l] = 1, suffix[l] = error[l] = 0;
  for (long k = 0; k < call->n; k += positions, checkpoint += 2 * width) {
    long n = POSITIONS(k);
    sw_scan_load(dy, &call->dy, WINDOW(k, n));
    const uint32_t *flags = (const uint32_t *)checkpoint;
    EACH_BLOCK add_linked(SCAN_MAX_LAST, exact, link + s, suffix + s, error + s, NULL, flags + s / SCAN_LANES,
                          dy + s, width, n);
  }
  for (long l = 0; l < g->lanes; l++) carries[l] = suffix[l] + error[l];
}

/* The downsweep of a group whose record flags are stored. */
TARGET INLINE void AT(scan_downsweep_records_as)(int exact, const scan_call *call, const group *g,
                                                 double *carries, const double *checkpoint) {
  SIZES;
  double dy[SCAN_TILE], carry_in[SCAN_WIDEST] = {0}, error[SCAN_WIDEST] = {0};
  if (carries) copy(g, carries, carry_in);
  EACH_TILE_BACK {
    const uint32_t *flags = (const uint32_t *)CHECKPOINT(k);
    sw_scan_load(dy, &call->dy, WINDOW_BACK(k, n));
    EACH_BLOCK AT(scan_downsweep_records_block)(exact, carry_in + s, error + s, flags + s / SCAN_LANES, dy + s,
                                                width, n);
    if (call->dx.data) sw_scan_store(&call->dx, dy, WINDOW_BACK(k, n));
  }
  store_suffixes(g, carries, carry_in, error);
}

/* Sums of at most SCAN_SHORT_MAX terms need no compensation. */
TARGET static void AT(scan_downsweep_records)(const scan_call *call, const group *g, double *carries,
                                              const double *checkpoint) {
  if (IN_FLOAT64 && call->n > SCAN_SHORT_MAX) AT(scan_downsweep_records_as)(1, call, g, carries, checkpoint);
  else AT(scan_downsweep_records_as)(0, call, g, carries, checkpoint);
}

TARGET static void AT(scan_suffix_upsweep_records)(const scan_call *call, double *carries, const double *checkpoints) {
  GROUPS(IN_FLOAT64, AT(scan_suffix_upsweep_group)(EXACT, call, g, carries + g->lane, CHECKPOINTS(g));)
}

/* Stores the record flags of a group, from the prefixes of its lanes. */
#define FLAG_RECORDS(kind, states) do { \
    double best[SCAN_WIDEST] = {0}, seen[SCAN_WIDEST] = {0}; \
    if (states) unpack(g, states, best, seen); \
    AT(scan_flag_records)(kind, call, g, best, seen, CHECKPOINTS(g)); \
  } while (0)

#define RECORD(name, kind) \
  TARGET static void AT(scan_upsweep_##name)(const scan_call *call, double *states, UNUSED double *carries) { \
    AT(scan_upsweep_records)(kind, call, states); \
  } \
  TARGET static void AT(scan_suffix_upsweep_##name)(const scan_call *call, const double *states, double *carries, \
                                                    double *checkpoints) { \
    EACH_GROUP FLAG_RECORDS(kind, states + 2 * g->lane); \
    AT(scan_suffix_upsweep_records)(call, carries, checkpoints); \
  } \
  TARGET static void AT(scan_downsweep_##name)(const scan_call *call, const double *states, double *carries, \
                                               double *checkpoints, UNUSED int *valid) { \
    EACH_GROUP { \
      if (states || call->whole) FLAG_RECORDS(kind, states ? states + 2 * g->lane : NULL); \
      AT(scan_downsweep_records)(call, g, carries ? carries + g->lane : NULL, CHECKPOINTS(g)); \
    } \
  }

/* Stores the checkpoints of products. */
TARGET INLINE void AT(scan_checkpoint_products)(const scan_call *call, const group *g, const double *states,
                                                double *checkpoint) {
  SIZES;
  double x[SCAN_TILE], before[SCAN_WIDEST], unused[SCAN_WIDEST];
  for (long l = 0; l < width; l++) before[l] = 1;
  if (states) unpack(g, states, before, unused);
  for (long k = 0; k < call->n; k += positions, checkpoint += 2 * width) {
    long n = POSITIONS(k);
    memcpy(checkpoint, before, sizeof *before * width);
    if (k + n == call->n) break;
    sw_scan_load(x, &call->x, WINDOW(k, n));
    EACH_BLOCK if (AT(scan_products_block)(before + s, x + s, width, n))
        product_forward(before + s, x + s, NULL, width, n);
  }
}

TARGET INLINE void AT(scan_downsweep_products)(int exact, const scan_call *call, const group *g, double *carries,
                                               double *checkpoint) {
  SIZES;
  double x[SCAN_TILE], w[SCAN_TILE], dy[SCAN_TILE], carry_in[SCAN_WIDEST] = {0}, error[SCAN_WIDEST] = {0};
  if (carries) copy(g, carries, carry_in);
  EACH_TILE_BACK {
    double *before = CHECKPOINT(k);
    sw_scan_load(x, &call->x, WINDOW_BACK(k, n));
    sw_scan_load(dy, &call->dy, WINDOW_BACK(k, n));
    EACH_BLOCK if (AT(scan_downsweep_products_block)(exact, before + s, carry_in + s, error + s, x + s, w + s,
        dy + s, width, n))
      product_fallback(exact, &call->dy, WINDOW_BACK(k, n), s, before + s, carry_in + s, error + s, x + s, w + s,
                       dy + s);
    if (call->dx.data) sw_scan_store(&call->dx, dy, WINDOW_BACK(k, n));
  }
  store_suffixes(g, carries, carry_in, error);
}

/* The products of lanes, and their suffixes. */
TARGET INLINE void AT(scan_upsweep_products)(int exact, const scan_call *call, const group *g, double *states,
                                             double *carries) {
  SIZES;
  double x[SCAN_TILE], dy[SCAN_TILE], m[SCAN_WIDEST], e[SCAN_WIDEST] = {0};
  double suffix[SCAN_WIDEST] = {0}, error[SCAN_WIDEST] = {0};
  for (long l = 0; l < width; l++) m[l] = 1;
  if (carries) copy(g, carries, suffix);
  else memset(dy, 0, sizeof dy);
  EACH_TILE_BACK {
    sw_scan_load(x, &call->x, WINDOW_BACK(k, n));
    if (carries) sw_scan_load(dy, &call->dy, WINDOW_BACK(k, n));
    EACH_BLOCK if (AT(scan_upsweep_products_block)(exact, m + s, e + s, suffix + s, error + s, x + s, dy + s, width, n))
      product_upsweep(exact, m + s, e + s, suffix + s, error + s, x + s, dy + s, width, n);
  }
  for (long l = 0; l < g->lanes; l++) {
    states[2 * l] = m[l], states[2 * l + 1] = e[l];
    if (carries) carries[l] = suffix[l] + error[l];
  }
}

TARGET static void AT(scan_upsweep_product)(const scan_call *call, double *states, double *carries) {
  GROUPS(IN_FLOAT64, AT(scan_upsweep_products)(EXACT, call, g, states + 2 * g->lane, carries ? carries + g->lane
                                               : NULL);)
}
TARGET static void AT(scan_downsweep_product)(const scan_call *call, const double *states, double *carries,
                                              double *checkpoints, UNUSED int *valid) {
  GROUPS(IN_FLOAT64 && call->n > SCAN_SHORT_MAX, \
    if (states || call->whole) AT(scan_checkpoint_products)(call, g, states ? states + 2 * g->lane : NULL, \
        CHECKPOINTS(g)); \
    AT(scan_downsweep_products)(EXACT, call, g, carries ? carries + g->lane : NULL, CHECKPOINTS(g)); \
  )
}

/* Returns whether the indices of the group are those of a scan. */
TARGET INLINE int AT(scan_downsweep_indices)(int exact, const scan_call *call, const group *g, const double *states,
                                             const double *carries) {
  SIZES;
  double x[SCAN_TILE], dy[SCAN_TILE], carry_in[SCAN_WIDEST] = {0}, error[SCAN_WIDEST] = {0}, before[SCAN_WIDEST];
  uint64_t expected[SCAN_WIDEST] = {0}, next_index[SCAN_WIDEST] = {0}, next_is_record[SCAN_WIDEST];
  uint64_t mismatch[SCAN_WIDEST] = {0}, all = 0;
  memset(next_is_record, -1, sizeof next_is_record);
  if (carries) copy(g, carries, carry_in);
  init_expected(call, g, states, expected, before);
  EACH_TILE_BACK {
    sw_scan_load(x, &call->x, WINDOW_BACK(k, n));
    sw_scan_load(dy, &call->dy, WINDOW_BACK(k, n));
    EACH_BLOCK AT(scan_downsweep_indices_block)(exact, expected + s, next_index + s, next_is_record + s, mismatch + s,
                                                carry_in + s, error + s, x + s, dy + s, k, DELTA(call->kind), width, n);
    sw_scan_store(&call->dx, dy, WINDOW_BACK(k, n));
  }
  for (long l = 0; l < g->lanes; l++) all |= mismatch[l] | ((next_index[l] ^ bits(before[l])) & ~next_is_record[l]);
  return all == 0;
}

#define UPSWEEP(name, kind) \
  TARGET static void AT(scan_upsweep_##name)(const scan_call *call, double *states, double *carries) { \
    GROUPS(IN_FLOAT64, upsweep(kind, EXACT, call, g, states + 2 * g->lane, carries ? carries + g->lane : NULL);) \
  }

#define INDICES(name, kind) UPSWEEP(name, kind) \
  TARGET static void AT(scan_downsweep_##name)(const scan_call *call, const double *states, double *carries, \
                                               UNUSED double *checkpoints, int *valid) { \
    GROUPS(IN_FLOAT64 && call->n > SCAN_SHORT_MAX, \
      const double *before = states ? states + 2 * g->lane : NULL; \
      *valid &= AT(scan_downsweep_indices)(EXACT, call, g, before, carries ? carries + g->lane : NULL); \
    ) \
  }

#define SHARED(name, kind) UPSWEEP(name, kind) \
  TARGET static void AT(scan_downsweep_##name)(const scan_call *call, const double *states, double *carries, \
                                               double *checkpoints, UNUSED int *valid) { \
    /* Exponentials compensate sums of few terms, too. */ \
    GROUPS(IN_FLOAT64 && (kind == SCAN_LOG_SUM || call->n > SCAN_SHORT_MAX), \
      const double *before = states ? states + 2 * g->lane : NULL; \
      if ((before || call->whole) && kind == SCAN_LOG_SUM) \
          log_sum_checkpoints(EXACT, call, g, before, CHECKPOINTS(g)); \
      downsweep(kind, EXACT, call, g, carries ? carries + g->lane : NULL, CHECKPOINTS(g)); \
    ) \
  }

EACH_SHARED_KIND(SHARED)
EACH_RECORD_KIND(RECORD)
EACH_INDEX_KIND(INDICES)
#undef UPSWEEP
#undef SHARED
#undef INDICES
#undef RECORD
#undef FLAG_RECORDS

TARGET static void AT(scan_suffix_upsweep_log_sum)(const scan_call *call, const double *states, double *carries,
                                                   double *checkpoints) {
  GROUPS(IN_FLOAT64, log_sum_suffix_upsweep(EXACT, call, g, states + 2 * g->lane, carries + g->lane, CHECKPOINTS(g));)
}

TARGET static void AT(scan_sum_suffixes)(const scan_call *call, double *carries) {
  GROUPS(IN_FLOAT64, sum_suffixes(EXACT, call, g, carries + g->lane);)
}
#undef GROUPS
#undef IN_FLOAT64

/* Whether one of n numbers, as integers, is not below row. */
TARGET static int AT(scan_out_of_range)(const double *x, long n, int64_t row) {
  uint64_t worst = 0;
  for (long i = 0; i < n; i++) worst = bits(x[i]) > worst ? bits(x[i]) : worst;
  return worst >= (uint64_t)row;
}

/* The number of positions is a constant for the compiler. */
TARGET static void AT(scan_gather)(double *dx, const double *dy, const double *x, uint64_t expected, long delta,
                                   long width, long n) {
  switch (n) {
    case 1: gather(dx, dy, x, expected, delta, width, 1); break;
    case 2: gather(dx, dy, x, expected, delta, width, 2); break;
    case 3: gather(dx, dy, x, expected, delta, width, 3); break;
    case 4: gather(dx, dy, x, expected, delta, width, 4); break;
  }
}

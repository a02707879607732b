/* Included once for each processor by kinds.c: upsweeps and downsweeps of the kinds that have vector code. */

#define IN_FLOAT64 (call->dy.type == 1)
#define GROUPS(exact, ...) \
  if (exact) { enum { EXACT = 1 }; EACH_GROUP { __VA_ARGS__ } } else { enum { EXACT = 0 }; EACH_GROUP { __VA_ARGS__ } }

#include "strip_loops.h"

/* The winners of the lanes, into the checkpoints or nowhere. */
TARGET INLINE void AT(scan_mark)(enum scan_kind kind, const scan_call *call, const group *g, double *restrict best, double *restrict seen,
                                 double *checkpoint) {
  SIZES;
  double x[SCAN_TILE];
  uint32_t nowhere[SCAN_TILE / SCAN_LANES];
  int down = kind >= SCAN_MIN_LAST, first = kind == SCAN_MAX_FIRST || kind == SCAN_MIN_FIRST;
  for (long k = 0; k < call->n; k += positions) {
    long n = POSITIONS(k);
    uint32_t *words = checkpoint ? (uint32_t *)KEPT(k) : nowhere;
    sw_scan_load(x, &call->x, WINDOW(k, n));
    EACH_STRIP AT(scan_winners)(down, first, best + s, seen + s, x + s, words + s / SCAN_LANES, width, n);
  }
}

/* The states of lanes by themselves. */
TARGET INLINE void AT(scan_fold_record)(enum scan_kind kind, const scan_call *call, double *states) {
  EACH_GROUP {
    double best[SCAN_WIDEST] = {0}, seen[SCAN_WIDEST] = {0};
    AT(scan_mark)(kind, call, g, best, seen, NULL);
    for (long l = 0; l < g->lanes; l++) states[2 * (g->lane + l)] = best[l], states[2 * (g->lane + l) + 1] = seen[l];
  }
}

/* What leaves lanes whose winners are marked. */
TARGET INLINE void AT(scan_leave_record)(int exact, const scan_call *call, const group *g, double *carries, const double *checkpoint) {
  SIZES;
  double dy[SCAN_TILE], link[SCAN_WIDEST], leaving[SCAN_WIDEST], lost[SCAN_WIDEST];
  for (long l = 0; l < width; l++) link[l] = 1, leaving[l] = lost[l] = 0;
  for (long k = 0; k < call->n; k += positions, checkpoint += 2 * width) {
    long n = POSITIONS(k);
    sw_scan_load(dy, &call->dy, WINDOW(k, n));
    EACH_STRIP linked(SCAN_MAX_LAST, exact, link + s, leaving + s, lost + s, NULL, (const uint32_t *)checkpoint + s / SCAN_LANES, dy + s, width, n);
  }
  for (long l = 0; l < g->lanes; l++) carries[l] = leaving[l] + lost[l];
}

/* The way back of records, whatever made them. Sums of few terms need not keep what rounding takes from them. */
TARGET INLINE void AT(scan_run)(int exact, const scan_call *call, const group *g, const double *carries, const double *checkpoint) {
  SIZES;
  double dy[SCAN_TILE], entering[SCAN_WIDEST] = {0}, lost[SCAN_WIDEST] = {0};
  if (carries) copy(g, carries, entering);
  EACH_TILE_BACK {
    const uint32_t *words = (const uint32_t *)KEPT(k);
    sw_scan_load(dy, &call->dy, WINDOW_BACK(k, n));
    EACH_STRIP AT(scan_run_strip)(exact, entering + s, lost + s, words + s / SCAN_LANES, dy + s, width, n);
    sw_scan_store(&call->dx, dy, WINDOW_BACK(k, n));
  }
}

TARGET static void AT(scan_runs)(const scan_call *call, const group *g, const double *carries, const double *checkpoint) {
  if (IN_FLOAT64 && call->n > SCAN_FEW) AT(scan_run)(1, call, g, carries, checkpoint);
  else AT(scan_run)(0, call, g, carries, checkpoint);
}

TARGET static void AT(scan_leave_records)(const scan_call *call, double *carries, const double *checkpoints) {
  GROUPS(IN_FLOAT64, AT(scan_leave_record)(EXACT, call, g, carries + g->lane, CHECKPOINTS(g));)
}

/* Marks the lanes after the states that enter them. */
#define MARK(kind, states) do { \
    double best[SCAN_WIDEST] = {0}, seen[SCAN_WIDEST] = {0}; \
    if (states) unpack(g, states, best, seen); \
    AT(scan_mark)(kind, call, g, best, seen, CHECKPOINTS(g)); \
  } while (0)

#define RECORD(name, kind) \
  TARGET static void AT(scan_fold_##name)(const scan_call *call, double *states, UNUSED double *carries) { AT(scan_fold_record)(kind, call, states); } \
  TARGET static void AT(scan_leave_##name)(const scan_call *call, const double *states, double *carries, double *checkpoints) { \
    EACH_GROUP MARK(kind, states + 2 * g->lane); \
    AT(scan_leave_records)(call, carries, checkpoints); \
  } \
  TARGET static void AT(scan_walk_##name)(const scan_call *call, const double *states, const double *carries, double *checkpoints, UNUSED int *scans) { \
    EACH_GROUP { \
      if (states || call->whole) MARK(kind, states ? states + 2 * g->lane : NULL); \
      AT(scan_runs)(call, g, carries ? carries + g->lane : NULL, CHECKPOINTS(g)); \
    } \
  }

/* Products: their checkpoints, and all of the walk. */
TARGET INLINE void AT(scan_mark_product)(const scan_call *call, const group *g, const double *states, double *checkpoint) {
  SIZES;
  double x[SCAN_TILE], before[SCAN_WIDEST], unused[SCAN_WIDEST];
  for (long l = 0; l < width; l++) before[l] = 1;
  if (states) unpack(g, states, before, unused);
  for (long k = 0; k < call->n; k += positions, checkpoint += 2 * width) {
    long n = POSITIONS(k);
    memcpy(checkpoint, before, sizeof *before * width);
    if (k + n == call->n) break;
    sw_scan_load(x, &call->x, WINDOW(k, n));
    EACH_STRIP if (AT(scan_products)(before + s, x + s, width, n)) product_forward(before + s, x + s, NULL, width, n);
  }
}

TARGET INLINE void AT(scan_product)(int exact, const scan_call *call, const group *g, const double *carries, double *checkpoint) {
  SIZES;
  double x[SCAN_TILE], w[SCAN_TILE], dy[SCAN_TILE], entering[SCAN_WIDEST] = {0}, lost[SCAN_WIDEST] = {0};
  if (carries) copy(g, carries, entering);
  EACH_TILE_BACK {
    double *before = KEPT(k);
    sw_scan_load(x, &call->x, WINDOW_BACK(k, n));
    sw_scan_load(dy, &call->dy, WINDOW_BACK(k, n));
    EACH_STRIP if (AT(scan_product_strip)(exact, before + s, entering + s, lost + s, x + s, w + s, dy + s, width, n))
      product_again(exact, &call->dy, WINDOW_BACK(k, n), s, before + s, entering + s, lost + s, x + s, w + s, dy + s);
    sw_scan_store(&call->dx, dy, WINDOW_BACK(k, n));
  }
}

/* What leaves lanes of products, and their own. */
TARGET INLINE void AT(scan_products_leaving)(int exact, const scan_call *call, const group *g, double *states, double *carries) {
  SIZES;
  double x[SCAN_TILE], dy[SCAN_TILE], m[SCAN_WIDEST], e[SCAN_WIDEST] = {0}, leaving[SCAN_WIDEST] = {0}, lost[SCAN_WIDEST] = {0};
  for (long l = 0; l < width; l++) m[l] = 1;
  if (carries) copy(g, carries, leaving);
  else memset(dy, 0, sizeof dy);
  EACH_TILE_BACK {
    sw_scan_load(x, &call->x, WINDOW_BACK(k, n));
    if (carries) sw_scan_load(dy, &call->dy, WINDOW_BACK(k, n));
    EACH_STRIP if (AT(scan_fold_strip)(exact, m + s, e + s, leaving + s, lost + s, x + s, dy + s, width, n))
      product_fold(exact, m + s, e + s, leaving + s, lost + s, x + s, dy + s, width, n);
  }
  for (long l = 0; l < g->lanes; l++) {
    states[2 * l] = m[l], states[2 * l + 1] = e[l];
    if (carries) carries[l] = leaving[l] + lost[l];
  }
}

TARGET static void AT(scan_fold_product)(const scan_call *call, double *states, double *carries) {
  GROUPS(IN_FLOAT64, AT(scan_products_leaving)(EXACT, call, g, states + 2 * g->lane, carries ? carries + g->lane : NULL);)
}
TARGET static void AT(scan_walk_product)(const scan_call *call, const double *states, const double *carries, double *checkpoints, UNUSED int *scans) {
  GROUPS(IN_FLOAT64 && call->n > SCAN_FEW, \
    if (states || call->whole) AT(scan_mark_product)(call, g, states ? states + 2 * g->lane : NULL, CHECKPOINTS(g)); \
    AT(scan_product)(EXACT, call, g, carries ? carries + g->lane : NULL, CHECKPOINTS(g)); \
  )
}

/* Whether the indices are a scan's as well. */
TARGET INLINE int AT(scan_chosen)(int exact, const scan_call *call, const group *g, const double *states, const double *carries) {
  SIZES;
  double x[SCAN_TILE], dy[SCAN_TILE], entering[SCAN_WIDEST] = {0}, lost[SCAN_WIDEST] = {0}, before[SCAN_WIDEST];
  uint64_t want[SCAN_WIDEST] = {0}, right[SCAN_WIDEST] = {0}, won[SCAN_WIDEST], odd[SCAN_WIDEST] = {0}, all = 0;
  memset(won, -1, sizeof won);
  if (carries) copy(g, carries, entering);
  expect(call, g, states, want, before);
  EACH_TILE_BACK {
    sw_scan_load(x, &call->x, WINDOW_BACK(k, n));
    sw_scan_load(dy, &call->dy, WINDOW_BACK(k, n));
    EACH_STRIP AT(scan_chosen_strip)(exact, want + s, right + s, won + s, odd + s, entering + s, lost + s, x + s, dy + s, k,
                                     DELTA(call->kind), width, n);
    sw_scan_store(&call->dx, dy, WINDOW_BACK(k, n));
  }
  for (long l = 0; l < g->lanes; l++) all |= odd[l] | ((right[l] ^ bits(before[l])) & ~won[l]);
  return all == 0;
}

#define FOLD(name, kind) \
  TARGET static void AT(scan_fold_##name)(const scan_call *call, double *states, double *carries) { \
    GROUPS(IN_FLOAT64, fold(kind, EXACT, call, g, states + 2 * g->lane, carries ? carries + g->lane : NULL);) \
  }

#define CHOICE(name, kind) FOLD(name, kind) \
  TARGET static void AT(scan_walk_##name)(const scan_call *call, const double *states, const double *carries, UNUSED double *checkpoints, int *scans) { \
    GROUPS(IN_FLOAT64 && call->n > SCAN_FEW, \
      *scans &= AT(scan_chosen)(EXACT, call, g, states ? states + 2 * g->lane : NULL, carries ? carries + g->lane : NULL); \
    ) \
  }

#define KIND(name, kind) FOLD(name, kind) \
  TARGET static void AT(scan_walk_##name)(const scan_call *call, const double *states, const double *carries, double *checkpoints, UNUSED int *scans) { \
    /* Exponentials keep what rounding takes from few terms, too. */ \
    GROUPS(IN_FLOAT64 && (kind == SCAN_SOFT || call->n > SCAN_FEW), \
      const double *before = states ? states + 2 * g->lane : NULL; \
      if ((before || call->whole) && kind == SCAN_SOFT) mark_soft(EXACT, call, g, before, CHECKPOINTS(g)); \
      walk(kind, EXACT, call, g, carries ? carries + g->lane : NULL, CHECKPOINTS(g)); \
    ) \
  }

KIND(sum, SCAN_SUM)
RECORD(max_last, SCAN_MAX_LAST)
RECORD(max_first, SCAN_MAX_FIRST)
RECORD(min_last, SCAN_MIN_LAST)
RECORD(min_first, SCAN_MIN_FIRST)
KIND(soft, SCAN_SOFT)
CHOICE(chosen, SCAN_CHOSEN)
CHOICE(chosen_down, SCAN_CHOSEN_DOWN)
#undef FOLD
#undef KIND
#undef CHOICE
#undef RECORD
#undef MARK

TARGET static void AT(scan_leave_soft)(const scan_call *call, const double *states, double *carries, double *checkpoints) {
  GROUPS(IN_FLOAT64, leave_soft(EXACT, call, g, states + 2 * g->lane, carries + g->lane, CHECKPOINTS(g));)
}

TARGET static void AT(scan_pass)(const scan_call *call, double *carries) { GROUPS(IN_FLOAT64, pass(EXACT, call, g, carries + g->lane);) }
#undef GROUPS
#undef IN_FLOAT64

/* Whether some of n numbers, as integers, are not below row. */
TARGET static int AT(scan_beyond)(const double *x, long n, int64_t row) {
  uint64_t worst = 0;
  for (long i = 0; i < n; i++) worst = bits(x[i]) > worst ? bits(x[i]) : worst;
  return worst >= (uint64_t)row;
}

/* The compiler knows how many positions there are. */
TARGET static void AT(scan_gather)(double *dx, const double *dy, const double *x, uint64_t want, long delta, long width, long n) {
  switch (n) {
    case 1: gather(dx, dy, x, want, delta, width, 1); break;
    case 2: gather(dx, dy, x, want, delta, width, 2); break;
    case 3: gather(dx, dy, x, want, delta, width, 3); break;
    case 4: gather(dx, dy, x, want, delta, width, 4); break;
  }
}

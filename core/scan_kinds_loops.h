/* Included once for each processor by scan_kinds.c. */

#define IN_FLOAT64 (call->dy.type == 1)
#define GROUPS(exact, ...) \
  if (exact) { enum { EXACT = 1 }; EACH_GROUP { __VA_ARGS__ } } else { enum { EXACT = 0 }; EACH_GROUP { __VA_ARGS__ } }

/* Choices as bits. */
TARGET static void AT(scan_pack)(uint32_t *restrict words, const double *restrict choices, long n) {
  for (; n > 0; n -= SCAN_LANES, choices += SCAN_LANES) {
    uint32_t word = 0;
#if VECTOR == 512
    for (long l = 0; l < SCAN_LANES; l += 8) word |= (uint32_t)_mm512_movepi64_mask(_mm512_loadu_si512(choices + l)) << l;
#elif VECTOR == 256
    for (long l = 0; l < SCAN_LANES; l += 4) word |= (uint32_t)_mm256_movemask_pd(_mm256_loadu_pd(choices + l)) << l;
#else
    for (long l = 0; l < SCAN_LANES; l++) word |= (uint32_t)(bits(choices[l]) & 1) << l;
#endif
    *words++ = word;
  }
}

/* The way back of records, whatever made them. Sums of few terms need not keep what rounding takes from them. */
TARGET static void AT(scan_runs)(const scan_call *call, const group *g, const double *carries, double *checkpoint) {
  if (IN_FLOAT64 && call->n > SCAN_FEW) walk(SCAN_MAX_LAST, 1, call, g, NULL, carries, checkpoint);
  else walk(SCAN_MAX_LAST, 0, call, g, NULL, carries, checkpoint);
}

#define RECORD(name, kind) LEAVING(name, kind, 0) \
  TARGET static void AT(scan_walk_##name)(const scan_call *call, const double *states, const double *carries, double *checkpoints, int *scans) { \
    EACH_GROUP { \
      const double *before = states ? states + 2 * g->lane : NULL; \
      if (before || call->whole) mark(kind, 0, call, g, before, CHECKPOINTS(g), AT(scan_pack)); \
      AT(scan_runs)(call, g, carries ? carries + g->lane : NULL, CHECKPOINTS(g)); \
    } \
  }

#define LEAVING(name, kind, exact) \
  TARGET static void AT(scan_fold_##name)(const scan_call *call, double *states, double *carries) { \
    GROUPS(exact, fold(kind, EXACT, call, g, states + 2 * g->lane, carries ? carries + g->lane : NULL);) \
  } \
  TARGET static void AT(scan_leave_##name)(const scan_call *call, const double *states, double *carries, double *checkpoints) { \
    GROUPS(IN_FLOAT64, leave(kind, EXACT, call, g, states + 2 * g->lane, carries + g->lane, CHECKPOINTS(g), AT(scan_pack));) \
  }

#define KIND(name, kind) LEAVING(name, kind, IN_FLOAT64) \
  TARGET static void AT(scan_walk_##name)(const scan_call *call, const double *states, const double *carries, double *checkpoints, int *scans) { \
    /* Exponentials keep what rounding takes from few terms, too. */ \
    GROUPS(IN_FLOAT64 && (kind == SCAN_SOFT || call->n > SCAN_FEW), \
      const double *before = states ? states + 2 * g->lane : NULL; \
      if ((before || call->whole) && kind != SCAN_SUM && !BY_INDEX(kind)) mark(kind, EXACT, call, g, before, CHECKPOINTS(g), AT(scan_pack)); \
      *scans &= walk(kind, EXACT, call, g, before, carries ? carries + g->lane : NULL, CHECKPOINTS(g)); \
    ) \
  }

KIND(sum, SCAN_SUM)
KIND(product, SCAN_PRODUCT)
RECORD(max_last, SCAN_MAX_LAST)
RECORD(max_first, SCAN_MAX_FIRST)
RECORD(min_last, SCAN_MIN_LAST)
RECORD(min_first, SCAN_MIN_FIRST)
KIND(soft, SCAN_SOFT)
KIND(chosen, SCAN_CHOSEN)
KIND(chosen_down, SCAN_CHOSEN_DOWN)
#undef KIND
#undef RECORD
#undef LEAVING

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

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

#define KIND(name, kind) \
  TARGET static void AT(scan_fold_##name)(const scan_call *call, double *states, double *carries) { \
    GROUPS(IN_FLOAT64, fold(kind, EXACT, call, g, states + 2 * g->lane, carries ? carries + g->lane : NULL);) \
  } \
  TARGET static void AT(scan_leave_##name)(const scan_call *call, const double *states, double *carries, double *checkpoints) { \
    GROUPS(IN_FLOAT64, leave(kind, EXACT, call, g, states + 2 * g->lane, carries + g->lane, CHECKPOINTS(g), AT(scan_pack));) \
  } \
  TARGET static void AT(scan_walk_##name)(const scan_call *call, const double *states, const double *carries, double *checkpoints, int *scans) { \
    /* Sums of few terms need not keep what rounding takes from them, but exponentials do. */ \
    GROUPS(IN_FLOAT64 && (kind == SCAN_SOFT || call->n > SCAN_FEW), \
      const double *before = states ? states + 2 * g->lane : NULL; \
      if ((before || call->whole) && kind != SCAN_SUM && !BY_INDEX(kind)) mark(kind, EXACT, call, g, before, CHECKPOINTS(g), AT(scan_pack)); \
      *scans &= walk(kind, EXACT, call, g, before, carries ? carries + g->lane : NULL, CHECKPOINTS(g)); \
    ) \
  }

KIND(sum, SCAN_SUM)
KIND(product, SCAN_PRODUCT)
KIND(max_last, SCAN_MAX_LAST)
KIND(max_first, SCAN_MAX_FIRST)
KIND(min_last, SCAN_MIN_LAST)
KIND(min_first, SCAN_MIN_FIRST)
KIND(soft, SCAN_SOFT)
KIND(chosen, SCAN_CHOSEN)
KIND(chosen_down, SCAN_CHOSEN_DOWN)
#undef KIND

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

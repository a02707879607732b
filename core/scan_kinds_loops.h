/* Included once for each processor by scan_kinds.c. */

#define KIND(name, kind) \
  TARGET static void AT(scan_fold_##name)(const scan_call *call, double *states, double *carries) { \
    EACH_GROUP fold(kind, call, lane, LANES_FROM(lane), states + 2 * lane, carries ? carries + lane : NULL); \
  } \
  TARGET static void AT(scan_leave_##name)(const scan_call *call, const double *states, double *carries, double *checkpoints) { \
    EACH_GROUP leave(kind, call, lane, LANES_FROM(lane), states + 2 * lane, carries + lane, CHECKPOINTS(lane)); \
  } \
  TARGET static void AT(scan_walk_##name)(const scan_call *call, const double *states, double *carries, double *checkpoints) { \
    EACH_GROUP { \
      const double *before = states ? states + 2 * lane : NULL; \
      if (before && kind != SCAN_SUM && !BY_INDEX(kind)) mark(kind, call, lane, LANES_FROM(lane), before, CHECKPOINTS(lane)); \
      walk(kind, call, lane, LANES_FROM(lane), before, carries + lane, CHECKPOINTS(lane)); \
    } \
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

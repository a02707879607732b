/* Included once for each processor by linear.c: the loops over the tiles of a call. */

/* Advances the states of a group by n positions; b becomes h. A factor of 0 cuts off whatever came
   before, NaN included. */
TARGET INLINE void AT(linear_steps)(const double *restrict a, double *restrict b, double *restrict h, long width,
                                    long n) {
  EACH_BLOCK {
    double state[SCAN_LANES];
    EACH_LANE state[l] = h[s + l];
    for (long k = 0; k < n; k++) EACH_LANE {
      double factor = a[k * width + s + l], term = b[k * width + s + l], next = factor * state[l] + term;
      b[k * width + s + l] = state[l] = factor == 0 ? term : next;
    }
    EACH_LANE h[s + l] = state[l];
  }
}

TARGET INLINE void AT(linear_forward_group)(const linear_call *call, const group *g) {
  SIZES;
  double a[SCAN_TILE], b[SCAN_TILE], h[SCAN_WIDEST];
  const int64_t *starts = (const int64_t *)(uintptr_t)call->starts;
  long next = 0; /* the sequence that begins next */
  for (long k = 0; k <= call->n; k += positions) {
    long n = POSITIONS(k);
    if (n > 0) sw_scan_load(a, &call->a, WINDOW(k, n));
    if (n > 0) sw_scan_load(b, &call->b, WINDOW(k, n));
    for (long at = 0; at < n || k + n == call->n;) {
      for (; next < call->sequences && starts[next] == k + at; next++) {
        if (next > 0) leave(&call->final_state, g, next - 1, h);
        enter(&call->initial_state, g, next, h);
        if (!call->initial_state.data && at < n) clear_row(a + at * width, width); /* the first decay is not applied */
      }
      if (at == n) break;
      long end = next < call->sequences && starts[next] < k + n ? starts[next] - k : n;
      AT(linear_steps)(a + at * width, b + at * width, h, width, end - at);
      at = end;
    }
    if (n > 0) sw_scan_store(&call->h, b, WINDOW(k, n));
  }
  if (next > 0) leave(&call->final_state, g, next - 1, h);
}

/* Advances the gradients of states by n positions, from the last to the first: u is that of the
   state before a position. dh becomes db, and before, which has the states before positions,
   becomes da. */
TARGET INLINE void AT(linear_steps_back)(const double *restrict a, double *restrict dh, double *restrict before,
                                         double *restrict u, long width, long n) {
  EACH_BLOCK {
    double state[SCAN_LANES];
    EACH_LANE state[l] = u[s + l];
    for (long k = n - 1; k >= 0; k--) EACH_LANE {
      double factor = a[k * width + s + l], g = dh[k * width + s + l] + state[l], product = factor * g;
      dh[k * width + s + l] = g;
      before[k * width + s + l] *= g;
      state[l] = factor == 0 ? 0 : product;
    }
    EACH_LANE u[s + l] = state[l];
  }
}

TARGET INLINE void AT(linear_backward_group)(const linear_call *call, const group *g) {
  SIZES;
  double a[SCAN_TILE], dh[SCAN_TILE], before[SCAN_TILE], u[SCAN_WIDEST];
  const int64_t *starts = (const int64_t *)(uintptr_t)call->starts;
  long last = call->sequences - 1; /* the sequence that ends next, walking back */
  for (long k = call->n / positions * positions; k >= 0; k -= positions) {
    long n = POSITIONS(k);
    if (n > 0) {
      sw_scan_load(a, &call->a, WINDOW_BACK(k, n));
      sw_scan_load(dh, &call->dh, WINDOW_BACK(k, n));
    }
    if (n > 0 && call->da.data) { /* row r has h of position k + r - 1 */
      long skipped = k == 0;
      clear_row(before, width);
      if (n > skipped) sw_scan_load(before + skipped * width, &call->h, WINDOW_BACK(k - 1 + skipped, n - skipped));
    }
    for (long at = n;;) {
      /* Sequences that begin at k + at are done; those that end there enter. */
      for (; last >= 0 && starts[last + 1] == k + at && (at > 0 || k == 0); last--) {
        enter(&call->dfinal_state, g, last, u);
        if (starts[last] < starts[last + 1]) break;
        leave(&call->dinitial_state, g, last, u); /* an empty sequence */
      }
      if (at == 0) break;
      long begin = last >= 0 && starts[last] > k ? starts[last] - k : 0;
      int begins = last >= 0 && starts[last] == k + begin;
      if (begins && call->da.data) enter(&call->initial_state, g, last, before + begin * width);
      if (begins && !call->initial_state.data) clear_row(a + begin * width, width);
      AT(linear_steps_back)(a + begin * width, dh + begin * width, before + begin * width, u, width, at - begin);
      if (begins && !call->initial_state.data) clear_row(before + begin * width, width);
      if (begins) leave(&call->dinitial_state, g, last--, u);
      at = begin;
    }
    if (n > 0 && call->db.data) sw_scan_store(&call->db, dh, WINDOW_BACK(k, n));
    if (n > 0 && call->da.data) sw_scan_store(&call->da, before, WINDOW_BACK(k, n));
  }
}

TARGET static void AT(linear_forward)(const linear_call *call) { EACH_GROUP AT(linear_forward_group)(call, g); }
TARGET static void AT(linear_backward)(const linear_call *call) { EACH_GROUP AT(linear_backward_group)(call, g); }

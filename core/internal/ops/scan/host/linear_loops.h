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

/* Adds n positions to the sums of lanes, with rounding errors. The numbers of a tile are added
   first, which costs less. */
TARGET INLINE void AT(linear_sums)(const double *restrict tile, double *restrict sums, double *restrict errors,
                                   long width, long n) {
  EACH_BLOCK {
    double total[SCAN_LANES] = {0};
    for (long k = 0; k < n; k++) EACH_LANE total[l] += tile[k * width + s + l];
    EACH_LANE sums[s + l] = compensated_sum(1, sums[s + l], total[l], &errors[s + l]);
  }
}

/* Advances the products of a block, and its states or their gradients, by n positions. */
TARGET INLINE void AT(linear_products)(int exact, int is_backward, const double *restrict a,
                                       const double *restrict terms, double *restrict m, double *restrict e,
                                       double *restrict state, long width, long n) {
  double p[SCAN_LANES], power_of_p[SCAN_LANES], u[SCAN_LANES];
  EACH_LANE p[l] = m[l], power_of_p[l] = e[l], u[l] = state[l];
  for (long i = 0; i < n; i++) {
    long k = is_backward ? n - 1 - i : i;
    EACH_LANE {
      double factor = a[k * width + l], term = terms[k * width + l], sum = u[l] + term;
      double next = is_backward ? factor * sum : factor * u[l] + term;
      u[l] = factor == 0 ? (is_backward ? 0 : term) : next;
      extend(exact, factor, &p[l], &power_of_p[l]);
    }
    if (exact || i % 4 == 3 || i == n - 1) EACH_LANE scale(&p[l], &power_of_p[l]);
  }
  EACH_LANE m[l] = p[l], e[l] = power_of_p[l], state[l] = u[l];
}

TARGET INLINE void AT(linear_upsweep_group)(int exact, int is_backward, const linear_call *call, const group *g,
                                            double *states) {
  SIZES;
  double a[SCAN_TILE], terms[SCAN_TILE], m[SCAN_WIDEST], e[SCAN_WIDEST] = {0}, state[SCAN_WIDEST];
  if (is_backward) init_states(state, &call->dfinal_state, flags_of(call->leaves, g), NULL, g);
  else init_states(state, &call->initial_state, flags_of(call->enters, g), NULL, g);
  for (long l = 0; l < width; l++) m[l] = 1;
  for (long tiles = (call->n + positions - 1) / positions, i = 0; i < tiles; i++) {
    long k = (is_backward ? tiles - 1 - i : i) * positions, n = POSITIONS(k);
    const scan_window *window = is_backward ? WINDOW_BACK(k, n) : WINDOW(k, n);
    sw_scan_load(a, &call->a, window);
    sw_scan_load(terms, is_backward ? &call->dh : &call->b, window);
    keep_after_ends(call, g, a, terms, k, n);
    if (k == 0) clear_first(call, g, a);
    EACH_BLOCK AT(linear_products)(exact, is_backward, a + s, terms + s, m + s, e + s, state + s, width, n);
  }
  for (long l = 0; l < g->lanes; l++, states += 3) states[0] = m[l], states[1] = e[l], states[2] = state[l];
}

TARGET INLINE void AT(linear_forward_group)(const linear_call *call, const group *g, const double *states) {
  SIZES;
  double a[SCAN_TILE], b[SCAN_TILE], h[SCAN_WIDEST];
  init_states(h, &call->initial_state, flags_of(call->enters, g), states, g);
  for (long k = 0; k < call->n; k += positions) {
    long n = POSITIONS(k);
    sw_scan_load(a, &call->a, WINDOW(k, n));
    sw_scan_load(b, &call->b, WINDOW(k, n));
    keep_after_ends(call, g, a, b, k, n);
    if (k == 0) clear_first(call, g, a);
    AT(linear_steps)(a, b, h, width, n);
    sw_scan_store(&call->h, b, WINDOW(k, n));
  }
  if (call->final_state.data) store_some(&call->final_state, h, flags_of(call->leaves, g), g);
}

TARGET INLINE void AT(linear_backward_group)(const linear_call *call, const group *g, const double *states,
                                             double *sums) {
  SIZES;
  double a[SCAN_TILE], dh[SCAN_TILE], before[SCAN_TILE] = {0}, u[SCAN_WIDEST];
  double total[SCAN_WIDEST], errors[SCAN_WIDEST];
  const uint8_t *enters = flags_of(call->enters, g);
  const int64_t *lengths = (const int64_t *)(uintptr_t)call->dh.lengths;
  int has_da = call->da.data || sums;
  init_states(u, &call->dfinal_state, flags_of(call->leaves, g), states, g);
  if (sums) memset(total, 0, sizeof total), memset(errors, 0, sizeof errors);
  EACH_TILE_BACK {
    sw_scan_load(a, &call->a, WINDOW_BACK(k, n));
    sw_scan_load(dh, &call->dh, WINDOW_BACK(k, n));
    keep_after_ends(call, g, a, dh, k, n);
    if (has_da && k > 0) sw_scan_load(before, &call->h, WINDOW_BACK(k - 1, n));
    if (has_da && k == 0) { /* position -1 of a lane is in another lane, or the initial state */
      if (n > 1) sw_scan_load(before + width, &call->h, WINDOW_BACK(0, n - 1));
      memset(before, 0, sizeof *before * width);
      load_some(before, &call->h, -1, enters, 1, g);
      if (call->initial_state.data) load_some(before, &call->initial_state, 0, enters, 0, g);
    }
    if (k == 0) clear_first(call, g, a);
    AT(linear_steps_back)(a, dh, before, u, width, n);
    if (k == 0 && !call->initial_state.data) for (long l = 0; l < g->lanes; l++) before[l] = enters[l] ? before[l] : 0;
    if (call->db.data) sw_scan_store(&call->db, dh, WINDOW_BACK(k, n));
    if (call->da.data) sw_scan_store(&call->da, before, WINDOW_BACK(k, n));
    if (sums) clear_after_ends(lengths, g, before, k, n), AT(linear_sums)(before, total, errors, width, n);
  }
  if (sums) for (long l = 0; l < g->lanes; l++) sums[l] = total[l] + errors[l];
  if (call->dinitial_state.data) store_some(&call->dinitial_state, u, enters, g);
}

TARGET static void AT(linear_upsweep)(const linear_call *call, int is_backward, double *states) {
  int exact = call->a.type == DTYPE_f64;
  if (exact && is_backward) { EACH_GROUP AT(linear_upsweep_group)(1, 1, call, g, states + 3 * g->lane); }
  else if (exact) { EACH_GROUP AT(linear_upsweep_group)(1, 0, call, g, states + 3 * g->lane); }
  else if (is_backward) { EACH_GROUP AT(linear_upsweep_group)(0, 1, call, g, states + 3 * g->lane); }
  else { EACH_GROUP AT(linear_upsweep_group)(0, 0, call, g, states + 3 * g->lane); }
}
TARGET static void AT(linear_forward)(const linear_call *call, const double *states) {
  EACH_GROUP AT(linear_forward_group)(call, g, states);
}
TARGET static void AT(linear_backward)(const linear_call *call, const double *states, double *sums) {
  EACH_GROUP AT(linear_backward_group)(call, g, states, sums ? sums + g->lane : NULL);
}

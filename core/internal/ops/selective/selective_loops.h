/* The loops of a chunk. WIDE is the type of arithmetic, FOR(name) the name of its function. Loops
   over lanes become vector code; states of lanes stay in registers. */

#define TILE(k) ((WIDE *)c->tiles + (k) * CHUNK * LANES)
#define AT_LANE(t) ((t) * LANES + l)

/* B or C at position t of a vector of lanes from lane l on. */
#define FACTOR(row, is_constant, t) ((is_constant) ? LOAD((row) + l) : SPLAT((row)[t]))

TARGET static void FOR(load_states)(WIDE *to, const selective_states *from, long sequence, long state, long lanes) {
  const WIDE *in = (const WIDE *)from->data;
  EACH_LANE to[l] = in && l < lanes ? in[sequence * from->sequence + l * from->lane + state * from->state] : 0;
}

TARGET static void FOR(store_states)(const selective_states *to, const WIDE *from, long sequence, long state,
                                     long lanes) {
  WIDE *out = (WIDE *)to->data;
  if (out) for (long l = 0; l < lanes; l++) out[sequence * to->sequence + l * to->lane + state * to->state] = from[l];
}

TARGET static void FOR(load_lanes)(WIDE *to, const selective_operand *from, long step, long lanes) {
  const WIDE *in = (const WIDE *)from->data;
  EACH_LANE to[l] = in && l < lanes ? in[l * from->lane + step * from->step] : 0;
}

/* TILE_DELTA with delta_bias, TILE_STEP and TILE_INPUT = step u. */
TARGET static void FOR(prepare)(const selective_call *c) {
  WIDE *restrict delta = TILE(TILE_DELTA), *restrict step = TILE(TILE_STEP), *restrict input = TILE(TILE_INPUT);
  const WIDE *restrict u = TILE(TILE_U);
  WIDE bias[LANES];
  FOR(load_lanes)(bias, &c->bias, 0, c->lanes);
  if (c->bias.data) for (long t = 0; t < c->positions; t++) EACH_LANE delta[AT_LANE(t)] += bias[l];
  long n = c->positions * LANES;
  if (c->softplus) for (long i = 0; i < n; i++) step[i] = (WIDE)softplus_of(delta[i]);
  else for (long i = 0; i < n; i++) step[i] = delta[i];
  for (long i = 0; i < n; i++) input[i] = step[i] * u[i];
}

/* total += part, and part = 0 */
TARGET static void FOR(fold)(WIDE *restrict total, WIDE *restrict part, long n) {
  for (long i = 0; i < n; i++) total[i] += part[i], part[i] = 0;
}

TARGET static void FOR(clear)(WIDE *tile, long n) { memset(tile, 0, sizeof(WIDE) * n); }

/* Adds terms of lanes to sums, with the rounding errors in the LANES numbers after them (Knuth's
   TwoSum, as in Neumaier's summation). */
TARGET static void FOR(add_lanes)(double *restrict sums, const double *restrict terms) {
  EACH_LANE {
    double before = sums[l], sum = before + terms[l], added = sum - before;
    double lost = (before - (sum - added)) + (terms[l] - added);
    sums[l] = sum, sums[LANES + l] += lost - lost == 0 ? lost : 0;
  }
}

/* One state of a vector of lanes, from lane l on, at the positions of a segment. A decay of exactly
   0 cuts off whatever came before, infinity and NaN included. is_new: the first decay is not
   applied. */
TARGET INLINE void FOR(advance)(const selective_call *c, WIDE *state, const WIDE *rates, const WIDE *b,
                                const WIDE *out, const selective_segment *s, long l, int is_new, int has_y) {
  const WIDE *restrict step = TILE(TILE_STEP), *restrict input = TILE(TILE_INPUT);
  WIDE *restrict y = TILE(TILE_PART_Y);
  VEC h = LOAD(state + l), rate = LOAD(rates + l);
  const long first = s->first, end = s->end, constant_b = c->constant_b, constant_c = c->constant_c;
  for (long t = first; t < end; t++) {
    VEC kept = FOR(kept)(FOR(exponential)(LOAD(step + AT_LANE(t)) * rate), h);
    if (is_new && t == first) kept = SPLAT(0);
    h = kept + LOAD(input + AT_LANE(t)) * FACTOR(b, constant_b, t);
    if (has_y) STORE(y + AT_LANE(t), LOAD(y + AT_LANE(t)) + h * FACTOR(out, constant_c, t));
  }
  STORE(state + l, h);
}

/* One state of the lanes through the chunk. */
TARGET INLINE void FOR(forward_state)(const selective_call *c, long state, int has_y) {
  const selective_segment *s = (const selective_segment *)c->segment;
  const WIDE *b = (const WIDE *)c->b + state * (c->constant_b ? LANES : CHUNK);
  const WIDE *out = (const WIDE *)c->c + state * (c->constant_c ? LANES : CHUNK);
  WIDE *h = (WIDE *)c->state + state * LANES, rates[LANES];
  FOR(load_lanes)(rates, &c->a, state, c->lanes);
  for (long i = 0; i < c->segments; i++, s++) {
    if (s->begins) FOR(load_states)(h, &c->initial, s->sequence, state, c->lanes);
    if (i == 0) FOR(store_states)(&c->before, h, 0, state, c->lanes);
    int is_new = s->begins && !c->initial.data;
    for (long l = 0; l < LANES; l += WIDTH) FOR(advance)(c, h, rates, b, out, s, l, is_new, has_y);
    if (s->ends) FOR(store_states)(&c->last, h, s->sequence, state, c->lanes);
  }
}

TARGET static void FOR(selective_forward)(const selective_call *c) {
  long n = c->positions * LANES, has_y = c->y.data != 0;
  WIDE *restrict y = TILE(TILE_Y), *part = TILE(TILE_PART_Y), d[LANES];
  FOR(prepare)(c);
  if (has_y) FOR(clear)(y, n), FOR(clear)(part, n);
  for (long state = 0; state < c->states; state++) {
    FOR(forward_state)(c, state, has_y);
    if (has_y && (state % SELECTIVE_FOLD == SELECTIVE_FOLD - 1 || state == c->states - 1)) FOR(fold)(y, part, n);
  }
  if (!has_y) return;
  const WIDE *restrict u = TILE(TILE_U), *restrict z = TILE(TILE_Z);
  FOR(load_lanes)(d, &c->d, 0, c->lanes);
  if (c->d.data) for (long t = 0; t < c->positions; t++) EACH_LANE y[AT_LANE(t)] += d[l] * u[AT_LANE(t)];
  if (c->z.data) for (long i = 0; i < n; i++) y[i] *= (WIDE)(z[i] * sigmoid_of(z[i]));
}

/* The decays and the kept parts of states, and the terms of dC. */
TARGET INLINE void FOR(recompute)(const selective_call *c, WIDE *state, const WIDE *rates, const WIDE *b,
                                  const WIDE *out, const selective_segment *s, long l, int is_new, int has_y) {
  const WIDE *restrict step = TILE(TILE_STEP), *restrict input = TILE(TILE_INPUT), *restrict dout = TILE(TILE_DOUT);
  WIDE *restrict decays = TILE(TILE_DECAY), *restrict kepts = TILE(TILE_KEPT), *restrict terms = TILE(TILE_TERMS);
  WIDE *restrict y = TILE(TILE_PART_Y);
  VEC h = LOAD(state + l), rate = LOAD(rates + l);
  const long first = s->first, end = s->end, constant_b = c->constant_b, constant_c = c->constant_c;
  for (long t = first; t < end; t++) {
    VEC decay = FOR(exponential)(LOAD(step + AT_LANE(t)) * rate), kept;
    if (is_new && t == first) decay = SPLAT(0);
    kept = FOR(kept)(decay, h);
    h = kept + LOAD(input + AT_LANE(t)) * FACTOR(b, constant_b, t);
    STORE(decays + AT_LANE(t), decay);
    STORE(kepts + AT_LANE(t), kept);
    STORE(terms + AT_LANE(t), h * LOAD(dout + AT_LANE(t)));
    if (has_y) STORE(y + AT_LANE(t), LOAD(y + AT_LANE(t)) + h * FACTOR(out, constant_c, t));
  }
  STORE(state + l, h);
}

/* The gradient of one state at positions end - 1 to first, at most 32 of them. da becomes the sums
   of their terms. */
TARGET INLINE void FOR(retreat)(const selective_call *c, WIDE *gradient, double *da, const WIDE *rates, const WIDE *b,
                                const WIDE *out, long first, long end, long l) {
  const WIDE *restrict step = TILE(TILE_STEP), *restrict input = TILE(TILE_INPUT), *restrict dout = TILE(TILE_DOUT);
  const WIDE *restrict decays = TILE(TILE_DECAY), *restrict kepts = TILE(TILE_KEPT);
  WIDE *restrict dinput = TILE(TILE_PART_DINPUT), *restrict dstep = TILE(TILE_PART_DSTEP);
  WIDE *restrict terms = TILE(TILE_TERMS), sums[WIDTH];
  VEC next = LOAD(gradient + l), rate = LOAD(rates + l), sum = SPLAT(0);
  const long constant_b = c->constant_b, constant_c = c->constant_c;
  for (long t = end - 1; t >= first; t--) {
    VEC g = LOAD(dout + AT_LANE(t)) * FACTOR(out, constant_c, t) + next, through = g * LOAD(kepts + AT_LANE(t));
    STORE(dinput + AT_LANE(t), LOAD(dinput + AT_LANE(t)) + g * FACTOR(b, constant_b, t));
    STORE(dstep + AT_LANE(t), LOAD(dstep + AT_LANE(t)) + through * rate);
    sum += through * LOAD(step + AT_LANE(t));
    STORE(terms + AT_LANE(t), g * LOAD(input + AT_LANE(t)));
    next = FOR(kept)(LOAD(decays + AT_LANE(t)), g);
  }
  STORE(gradient + l, next);
  STORE(sums, sum);
  for (long i = 0; i < WIDTH; i++) da[l + i] = sums[i];
}

/* Adds the sums over lanes of each position to sums, in a fixed order: lanes l and l + 8, and so
   on. */
TARGET static void FOR(add_over_lanes)(WIDE *restrict sums, const WIDE *restrict terms, long n) {
  for (long t = 0; t < n; t++) {
    WIDE s[LANES / 2];
    for (long l = 0; l < 8; l++) s[l] = terms[AT_LANE(t)] + terms[AT_LANE(t) + 8];
    for (long l = 0; l < 4; l++) s[l] += s[l + 4];
    sums[t] += (s[0] + s[2]) + (s[1] + s[3]);
  }
}

/* Adds the terms of dB or dC of one state to the sums over positions or over channels. */
TARGET static void FOR(add_terms)(const selective_call *c, uintptr_t rows, long state_step, uintptr_t sums,
                                  long state) {
  WIDE *restrict terms = TILE(TILE_TERMS);
  if (sums) {
    for (long first = 0; first < c->positions; first += 16) {
      long end = first + 16 < c->positions ? first + 16 : c->positions;
      double s[LANES] = {0};
      for (long t = first; t < end; t++) EACH_LANE s[l] += terms[AT_LANE(t)];
      FOR(add_lanes)((double *)sums + state * 2 * LANES, s);
    }
  }
  if (!rows) return;
  if (c->lanes < LANES) for (long t = 0; t < c->positions; t++) for (long l = c->lanes; l < LANES; l++)
    terms[AT_LANE(t)] = 0;
  FOR(add_over_lanes)((WIDE *)rows + state * state_step, terms, c->positions);
}

TARGET INLINE void FOR(backward_state)(const selective_call *c, long state, int has_y) {
  const selective_segment *segments = (const selective_segment *)c->segment;
  const WIDE *b = (const WIDE *)c->b + state * (c->constant_b ? LANES : CHUNK);
  const WIDE *out = (const WIDE *)c->c + state * (c->constant_c ? LANES : CHUNK);
  WIDE h[LANES], rates[LANES], *gradient = (WIDE *)c->state + state * LANES;
  double da[LANES];
  FOR(load_lanes)(rates, &c->a, state, c->lanes);
  FOR(load_states)(h, &c->before, 0, state, c->lanes);
  for (long i = 0; i < c->segments; i++) {
    const selective_segment *s = &segments[i];
    if (s->begins) FOR(load_states)(h, &c->initial, s->sequence, state, c->lanes);
    int is_new = s->begins && !c->initial.data;
    for (long l = 0; l < LANES; l += WIDTH) FOR(recompute)(c, h, rates, b, out, s, l, is_new, has_y);
  }
  FOR(add_terms)(c, c->dc, c->dc_state, c->dc_sums, state);
  for (long i = c->segments - 1; i >= 0; i--) {
    const selective_segment *s = &segments[i];
    if (s->ends) FOR(load_states)(gradient, &c->dlast, s->sequence, state, c->lanes);
    for (long end = s->end, first; end > s->first; end = first) {
      first = end - 32 > s->first ? end - 32 : s->first;
      for (long l = 0; l < LANES; l += WIDTH) FOR(retreat)(c, gradient, da, rates, b, out, first, end, l);
      FOR(add_lanes)((double *)c->da_sums + state * 2 * LANES, da);
    }
    if (s->begins) FOR(store_states)(&c->dinitial, gradient, s->sequence, state, c->lanes);
  }
  FOR(add_terms)(c, c->db, c->db_state, c->db_sums, state);
}

/* TILE_DINPUT and TILE_DSTEP become du and ddelta, TILE_Z becomes dz, and the terms of dD and
   ddelta_bias are summed. */
TARGET static void FOR(finish)(const selective_call *c) {
  long n = c->positions * LANES;
  const WIDE *restrict u = TILE(TILE_U), *restrict delta = TILE(TILE_DELTA), *restrict step = TILE(TILE_STEP);
  const WIDE *restrict dout = TILE(TILE_DOUT), *restrict dy = TILE(TILE_DY);
  WIDE *restrict y = TILE(TILE_Y), *restrict z = TILE(TILE_Z), *restrict du = TILE(TILE_DINPUT);
  WIDE *restrict ddelta = TILE(TILE_DSTEP), d[LANES];
  for (long i = 0; i < n; i++) ddelta[i] += u[i] * du[i], du[i] *= step[i];
  if (c->softplus) for (long i = 0; i < n; i++) ddelta[i] = (WIDE)(ddelta[i] * sigmoid_of(delta[i]));
  FOR(load_lanes)(d, &c->d, 0, c->lanes);
  if (c->d.data) for (long t = 0; t < c->positions; t++) EACH_LANE {
    du[AT_LANE(t)] += d[l] * dout[AT_LANE(t)];
    y[AT_LANE(t)] += d[l] * u[AT_LANE(t)];
  }
  if (c->dz.data) for (long i = 0; i < n; i++) z[i] = (WIDE)((double)dy[i] * y[i] * silu_slope_of(z[i]));
  for (long first = 0; first < c->positions; first += 16) {
    long end = first + 16 < c->positions ? first + 16 : c->positions;
    double dd[LANES] = {0}, dbias[LANES] = {0};
    for (long t = first; t < end; t++) EACH_LANE {
      dd[l] += (double)dout[AT_LANE(t)] * u[AT_LANE(t)];
      dbias[l] += ddelta[AT_LANE(t)];
    }
    FOR(add_lanes)((double *)c->dd_sums, dd);
    FOR(add_lanes)((double *)c->dbias_sums, dbias);
  }
}

TARGET static void FOR(selective_backward)(const selective_call *c) {
  long n = c->positions * LANES, has_y = c->dz.data != 0;
  const WIDE *restrict dy = TILE(TILE_DY), *restrict z = TILE(TILE_Z);
  WIDE *restrict dout = TILE(TILE_DOUT);
  FOR(prepare)(c);
  if (c->z.data) for (long i = 0; i < n; i++) dout[i] = (WIDE)(dy[i] * (z[i] * sigmoid_of(z[i])));
  else for (long i = 0; i < n; i++) dout[i] = dy[i];
  FOR(clear)(TILE(TILE_DINPUT), n), FOR(clear)(TILE(TILE_PART_DINPUT), n);
  FOR(clear)(TILE(TILE_DSTEP), n), FOR(clear)(TILE(TILE_PART_DSTEP), n);
  FOR(clear)(TILE(TILE_Y), n), FOR(clear)(TILE(TILE_PART_Y), n);
  for (long state = 0; state < c->states; state++) {
    FOR(backward_state)(c, state, has_y);
    if (state % SELECTIVE_FOLD != SELECTIVE_FOLD - 1 && state != c->states - 1) continue;
    FOR(fold)(TILE(TILE_DINPUT), TILE(TILE_PART_DINPUT), n), FOR(fold)(TILE(TILE_DSTEP), TILE(TILE_PART_DSTEP), n);
    if (has_y) FOR(fold)(TILE(TILE_Y), TILE(TILE_PART_Y), n);
  }
  FOR(finish)(c);
}

#undef TILE
#undef AT_LANE
#undef FACTOR

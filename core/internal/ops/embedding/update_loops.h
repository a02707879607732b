/* The update of a row of a table by an optimizer, in place of storing its gradient; the rules are
   in learning.go. bag_loops.h includes this header once per vector width. Arithmetic is in
   float64. */

/* Replaces numbers by their square roots. Calls of sqrt are not vectorized, and need libm for the
   errno of negative numbers: only the option -fno-math-errno changes that, which cgo refuses. */
TARGET static void AT(take_roots)(double *x, long n) {
  long i = 0;
#if VECTOR == 512
  for (; i + 8 <= n; i += 8) _mm512_storeu_pd(x + i, _mm512_sqrt_pd(_mm512_loadu_pd(x + i)));
#elif VECTOR == 256
  for (; i + 4 <= n; i += 4) _mm256_storeu_pd(x + i, _mm256_sqrt_pd(_mm256_loadu_pd(x + i)));
#endif
#if defined(__x86_64__) && defined(__GNUC__)
  for (; i < n; i++) _mm_store_sd(x + i, _mm_sqrt_sd(_mm_setzero_pd(), _mm_load_sd(x + i)));
#elif defined(__aarch64__) && defined(__GNUC__)
  for (; i < n; i++) x[i] = vget_lane_f64(vsqrt_f64(vld1_f64(x + i)), 0);
#else
  for (; i < n; i++) x[i] = sqrt(x[i]);
#endif
}

/* TABLE, STATE: dtypes of a row and of its state. table, sum: a row of the table, which is updated,
   and its gradient, which is overwritten. root: room for a row. */
#define UPDATE(name, TABLE, STATE) \
  TARGET static void AT(update_##name)(const sw_bag_update *u, long row, long n, TABLE *restrict table, \
                                       double *restrict sum, double *restrict root) { \
    double lr = u->lr, eps = u->eps, inverse = 1 / u->grad_scale, decay = u->weight_decay; \
    if (!u->state) { \
      for (long i = 0; i < n; i++) { \
        double x = (double)table[i]; \
        table[i] = (TABLE)(x - lr * (sum[i] * inverse + decay * x)); \
      } \
      return; \
    } \
    for (long i = 0; i < n; i++) sum[i] = sum[i] * inverse + decay * (double)table[i]; \
    if (u->by_row) { \
      STATE *state = (STATE *)u->state + row; \
      *state += (STATE)(AT(dot_block_f64)(sum, sum, n) / (double)n); \
      *root = (double)*state; \
      AT(take_roots)(root, 1); \
      double rate = lr / (*root + eps); \
      for (long i = 0; i < n; i++) table[i] = (TABLE)((double)table[i] - rate * sum[i]); \
    } else if (!u->state2) { \
      STATE *restrict state = (STATE *)u->state + row * n; \
      for (long i = 0; i < n; i++) root[i] = (double)(state[i] = (STATE)((double)state[i] + sum[i] * sum[i])); \
      AT(take_roots)(root, n); \
      for (long i = 0; i < n; i++) \
        table[i] = (TABLE)((double)table[i] - lr * sum[i] / (root[i] + eps)); \
    } else { \
      STATE *restrict first = (STATE *)u->state + row * n, *restrict second = (STATE *)u->state2 + row * n; \
      double step = u->step_size, mine = 1 - u->beta1, mine2 = 1 - u->beta2; \
      for (long i = 0; i < n; i++) { \
        first[i] = (STATE)((double)first[i] + mine * (sum[i] - (double)first[i])); \
        second[i] = (STATE)((double)second[i] + mine2 * (sum[i] * sum[i] - (double)second[i])); \
        root[i] = (double)second[i]; \
      } \
      AT(take_roots)(root, n); \
      for (long i = 0; i < n; i++) \
        table[i] = (TABLE)((double)table[i] - step * (double)first[i] / (root[i] + eps)); \
    } \
  }

UPDATE(f32, float, float)
UPDATE(f64, double, double)
UPDATE(narrow, double, float) /* a row of 16-bit floats, in float64 */
#undef UPDATE

/* 32 random bits for an element of the table: those of 64 that two adjacent elements share. */
static inline uint32_t AT(random_bits)(const sw_bag_update *u, uint64_t element) {
  uint64_t x = sw_hash(u->stream, element >> 1);
  return (uint32_t)(element & 1 ? x >> 32 : x);
}

/* Stores a row of 16-bit floats, each rounded to one of its two neighbors at random (stochastic
   rounding): the farther one with the probability by which the nearer one is wrong. */
TARGET static void AT(store_random)(const sw_bag_out *out, long row, const float *single) {
  const sw_bag_update *u = (const sw_bag_update *)out->update;
  uint16_t *to = (uint16_t *)row_of(out, row);
  long n = out->columns;
  sw_narrow(out->narrow, to, single, n);
  for (long i = 0; i < n; i++) {
    float nearer, farther;
    sw_widen(out->narrow, &nearer, to + i, 1);
    uint16_t other = (uint16_t)(to[i] + (fabsf(nearer) > fabsf(single[i]) ? -1 : 1));
    sw_widen(out->narrow, &farther, &other, 1);
    uint64_t element = (uint64_t)u->first + (uint64_t)row * (uint64_t)n + (uint64_t)i;
    float random = (float)(AT(random_bits)(u, element) >> 8) * 0x1p-24f;
    if (random < (single[i] - nearer) / (farther - nearer)) to[i] = other;
  }
}

/* Updates a row of the table, of which sum is the gradient; sum is overwritten. */
TARGET static void AT(update_row)(const sw_bag_out *out, long row, double *sum) {
  const sw_bag_update *u = (const sw_bag_update *)out->update;
  long n = out->columns;
  double *root = (double *)u->scratch, *table = root + n;
  char *stored = row_of(out, row);
  if (out->narrow == DTYPE_f64) {
    AT(update_f64)(u, row, n, (double *)stored, sum, root);
    return;
  }
  if (out->narrow == DTYPE_f32) {
    AT(update_f32)(u, row, n, (float *)stored, sum, root);
    return;
  }
  float *single = (float *)out->single;
  sw_widen(out->narrow, single, stored, n);
  for (long i = 0; i < n; i++) table[i] = (double)single[i];
  AT(update_narrow)(u, row, n, table, sum, root);
  if (!u->stochastic) {
    sw_bag_out plain = *out;
    plain.update = 0;
    AT(store_row)(&plain, row, table);
    return;
  }
  for (long i = 0; i < n; i++) single[i] = (float)table[i];
  AT(store_random)(out, row, single);
}

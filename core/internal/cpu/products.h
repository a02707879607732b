/* The loops of vector.h that compute up to three products in one pass, for one storage type.
   each_float.gen.h includes this header once per storage type. */

/* A factor at the start of its run. kind is a compile-time constant wherever the functions below
   are inlined. */
typedef struct { int kind; double number; const void *data; } FOR(factor);

TARGET INLINE FOR(factor) FOR(factor_of)(const sw_factor *f, long run) {
  FOR(factor) at = {.kind = f->kind, .number = 0, .data = NULL};
  long begin = run * f->step;
  switch (f->kind) {
  case FACTOR_NUMBER: if (f->data) at.number = ((const double *)f->data)[begin]; break;
  case FACTOR_DENSE: at.data = (const STORED *)f->data + begin; break;
  default: at.data = (const int8_t *)f->data + begin;
  }
  return at;
}

TARGET INLINE void FOR(factor_values)(WIDE *out, int kind, const FOR(factor) *f, long i, long n) {
  float eight[LANES];
  switch (kind) {
  case FACTOR_NUMBER: for (long j = 0; j < n; j++) out[j] = (WIDE)f->number; return;
  case FACTOR_DENSE: FOR(widen)(out, (const STORED *)f->data + i, n); return;
  case FACTOR_I8: AT(widen_i8)(eight, (const int8_t *)f->data + i, n); break;
  case FACTOR_U8: AT(widen_u8)(eight, (const uint8_t *)f->data + i, n); break;
  }
  for (long j = 0; j < n; j++) out[j] = eight[j];
}

TARGET INLINE void FOR(factor_doubles)(double *out, int kind, const FOR(factor) *f, long i, long n) {
  switch (kind) {
  case FACTOR_NUMBER: for (long j = 0; j < n; j++) out[j] = f->number; return;
  case FACTOR_DENSE: FOR(double)(out, (const STORED *)f->data + i, n); return;
  case FACTOR_I8: AT(double_i8)(out, (const int8_t *)f->data + i, n); return;
  case FACTOR_U8: AT(double_u8)(out, (const uint8_t *)f->data + i, n); return;
  }
}

/* x (y - z) of n <= LANES elements from i on, in WIDE, for outputs that are stored. */
TARGET INLINE void FOR(product)(WIDE *out, const STORED *x, int y_kind, const FOR(factor) *y, int z_kind,
                                const FOR(factor) *z, long i, long n) {
  WIDE a[LANES], b[LANES], c[LANES];
  FOR(widen)(a, x + i, n);
  FOR(factor_values)(b, y_kind, y, i, n);
  FOR(factor_values)(c, z_kind, z, i, n);
  for (long j = 0; j < n; j++) out[j] = a[j] * (b[j] - c[j]);
}

/* x (y - z) in float64, for outputs that are summed. If terms cancel, their float32 roundings would
   dominate the sum. */
TARGET INLINE void FOR(term)(double *out, const STORED *x, int y_kind, const FOR(factor) *y, int z_kind,
                             const FOR(factor) *z, long i, long n) {
  double a[LANES], b[LANES], c[LANES];
  FOR(double)(a, x + i, n);
  FOR(factor_doubles)(b, y_kind, y, i, n);
  FOR(factor_doubles)(c, z_kind, z, i, n);
  for (long j = 0; j < n; j++) out[j] = a[j] * (b[j] - c[j]);
}

/* The remainder loops below handle the last elements. They take the kinds at run time, to save
   code. */
TARGET static __attribute__((noinline)) void FOR(store_few)(STORED *out, const STORED *x, const FOR(factor) *y,
    const FOR(factor) *z, long i, long n) {
  WIDE value[LANES];
  FOR(product)(value, x, y->kind, y, z->kind, z, i, n);
  FOR(narrow)(out + i, value, n);
}

TARGET static __attribute__((noinline)) void FOR(few_terms)(double *out, const STORED *x, const FOR(factor) *y,
    const FOR(factor) *z, long i, long n) {
  FOR(term)(out, x, y->kind, y, z->kind, z, i, n);
}

/* Stores elements first..end-1 in out. */
TARGET INLINE void FOR(store)(STORED *out, const STORED *x, int y_kind, const FOR(factor) *y, int z_kind,
                              const FOR(factor) *z, long first, long end) {
  long i = first;
  for (; i + LANES <= end; i += LANES) {
    WIDE value[LANES];
    FOR(product)(value, x, y_kind, y, z_kind, z, i, LANES);
    FOR(narrow)(out + i, value, LANES);
  }
  if (i < end) FOR(store_few)(out, x, y, z, i, end - i);
}

/* Stores elements first..end-1 in float64. */
TARGET INLINE void FOR(store_terms)(double *out, const STORED *x, int y_kind, const FOR(factor) *y, int z_kind,
                                    const FOR(factor) *z, long first, long end) {
  long i = first;
  for (; i + LANES <= end; i += LANES) FOR(term)(out + i, x, y_kind, y, z_kind, z, i, LANES);
  if (i < end) FOR(few_terms)(out + i, x, y, z, i, end - i);
}

/* Adds elements first..end-1 to a summation tree. */
TARGET INLINE void FOR(sum)(tree *t, const STORED *x, int y_kind, const FOR(factor) *y, int z_kind,
                            const FOR(factor) *z, long first, long end) {
  long i = first;
  for (; i + LEAF <= end; i += LEAF) {
    double lane[LANES], value[LANES];
    FOR(term)(lane, x, y_kind, y, z_kind, z, i, LANES);
    for (int part = LANES; part < LEAF; part += LANES) {
      FOR(term)(value, x, y_kind, y, z_kind, z, i + part, LANES);
      for (int j = 0; j < LANES; j++) lane[j] += value[j];
    }
    AT(push)(t, lane);
  }
  if (i == end) return;
  double lane[LANES], value[LANES];
  for (int j = 0; j < LANES; j++) lane[j] = 0;
  for (; i + LANES <= end; i += LANES) {
    FOR(term)(value, x, y_kind, y, z_kind, z, i, LANES);
    for (int j = 0; j < LANES; j++) lane[j] += value[j];
  }
  if (i < end) FOR(few_terms)(value, x, y, z, i, end - i);
  for (long j = i; j < end; j++) lane[j - i] += value[j - i];
  AT(push)(t, lane);
}

/* Adds each of elements first..end-1 to its own sum. */
TARGET INLINE void FOR(add_places)(double *sums, const STORED *x, int y_kind, const FOR(factor) *y, int z_kind,
                                   const FOR(factor) *z, long first, long end) {
  long i = first;
  for (; i + LANES <= end; i += LANES) {
    double value[LANES];
    FOR(term)(value, x, y_kind, y, z_kind, z, i, LANES);
    for (long j = 0; j < LANES; j++) sums[i + j] += value[j];
  }
  if (i < end) {
    double value[LANES];
    FOR(few_terms)(value, x, y, z, i, end - i);
    for (long j = i; j < end; j++) sums[j] += value[j - i];
  }
}

/* STRETCH elements of x stay in the L1 cache while all products read them. The summation tree is
   totalled after every PIECE elements, which is a block of sw_sum_runs, so that both give the same
   bits. */
enum { FOR(STRETCH) = 1024, FOR(PIECE) = 16384 / sizeof(WIDE) };

TARGET static void FOR(products)(const sw_products *p) {
  tree sums[3];
  for (int o = 0; o < 3; o++) sums[o].depth = sums[o].leaves = 0;
  long k = 0;
  for (long left = p->n, start = 0; left > 0; left -= p->run, start += p->pitch, k++) {
    const STORED *x = (const STORED *)p->x + start;
    long run = LEAST(p->run, left);
    FOR(factor) y[3], z[3];
    for (int o = 0; o < p->count; o++) {
      y[o] = FOR(factor_of)(&p->product[o].y, k);
      z[o] = FOR(factor_of)(&p->product[o].z, k);
    }
    for (long i = 0, n; i < run; i += n) {
      n = LEAST(FOR(STRETCH), run - i);
      for (int o = 0; o < p->count; o++) {
        const sw_product *q = &p->product[o];
        STORED *out = q->out ? (STORED *)q->out + start : NULL;
        double *terms = q->terms ? (double *)q->terms + start : NULL;
#define STRETCH_OF(y_kind, z_kind) \
  case y_kind * 4 + z_kind: \
    if (out) FOR(store)(out, x, y_kind, &y[o], z_kind, &z[o], i, i + n); \
    else if (terms) FOR(store_terms)(terms, x, y_kind, &y[o], z_kind, &z[o], i, i + n); \
    else if (p->columns) FOR(add_places)((double *)q->sums, x, y_kind, &y[o], z_kind, &z[o], i, i + n); \
    else FOR(sum)(&sums[o], x, y_kind, &y[o], z_kind, &z[o], i, i + n); \
    break;
        switch (y[o].kind * 4 + z[o].kind) {
        STRETCH_OF(FACTOR_NUMBER, FACTOR_NUMBER)
        STRETCH_OF(FACTOR_NUMBER, FACTOR_DENSE)
        STRETCH_OF(FACTOR_DENSE, FACTOR_NUMBER)
        STRETCH_OF(FACTOR_DENSE, FACTOR_DENSE)
        STRETCH_OF(FACTOR_I8, FACTOR_NUMBER)
        STRETCH_OF(FACTOR_U8, FACTOR_NUMBER)
        default: __builtin_trap();
        }
#undef STRETCH_OF
        if (q->sums && !p->columns && (i + n == run || (i + n) % FOR(PIECE) == 0))
            ((double *)q->sums)[k] += AT(total)(&sums[o]);
      }
    }
  }
}

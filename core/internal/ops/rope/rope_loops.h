/* The loops of rope. rope.c includes this header once per vector width. */

/* Sine and cosine of angles below ROPE_LARGEST, within an ulp of 1: the Taylor series around the
   nearest quarter of a turn. With fewer terms the error is 1e-11, nothing beside a rounding of
   float32. */
TARGET INLINE void AT(sincos)(double *restrict sine, double *restrict cosine, const double *restrict angle, long n,
                              int all) {
  for (long i = 0; i < n; i++) {
    double shifted = angle[i] * QUARTERS + NEAREST, turns = shifted - NEAREST;
    uint64_t quarter = bits_of_double(shifted);
    double x = ((angle[i] - turns * QUARTER_1) - turns * QUARTER_2) - turns * QUARTER_3, z = x * x;
    double s = -1.0 / 39916800, c = 1.0 / 479001600;
    if (all) {
      s = 1.0 / 355687428096000, c = 1.0 / 20922789888000;
      s = s * z - 1.0 / 1307674368000, c = c * z - 1.0 / 87178291200;
      s = s * z + 1.0 / 6227020800, c = c * z + 1.0 / 479001600;
      s = s * z - 1.0 / 39916800;
    }
    c = c * z - 1.0 / 3628800;
    s = s * z + 1.0 / 362880, c = c * z + 1.0 / 40320;
    s = s * z - 1.0 / 5040, c = c * z - 1.0 / 720;
    s = s * z + 1.0 / 120, c = c * z + 1.0 / 24;
    s = s * z - 1.0 / 6;
    s = x + x * z * s, c = (1 - 0.5 * z) + z * z * c;
    uint64_t odd = 0 - (quarter & 1), s_bits = bits_of_double(s), c_bits = bits_of_double(c);
    sine[i] = double_of(((s_bits & ~odd) | (c_bits & odd)) ^ (quarter & 2) << 62);
    cosine[i] = double_of(((c_bits & ~odd) | (s_bits & odd)) ^ ((quarter + 1) & 2) << 62);
  }
}

/* n numbers of a table. */
TARGET static void AT(table_row)(double *restrict out, const sw_rope_table *t, long row, long column,
                                 long pair_stride, long n) {
  long at = row * t->row + column * t->column, step = pair_stride * t->column;
  float wide[PAIRS];
  uint16_t raw[PAIRS];
  switch (t->dtype) {
  case DTYPE_f32:
    if (step == 1) for (long i = 0; i < n; i++) out[i] = ((const float *)t->data)[at + i];
    else for (long i = 0; i < n; i++) out[i] = ((const float *)t->data)[at + i * step];
    return;
  case DTYPE_f64:
    for (long i = 0; i < n; i++) out[i] = ((const double *)t->data)[at + i * step];
    return;
#define GATHER(suffix, stored) \
  case DTYPE_##suffix: \
    for (long i = 0; i < n; i++) ((stored *)raw)[i] = ((const stored *)t->data)[at + i * step]; \
    break;
  EACH_NARROW(GATHER)
#undef GATHER
  }
  sw_widen(t->dtype, wide, raw, n);
  for (long i = 0; i < n; i++) out[i] = wide[i];
}

/* The factors of n pairs, `first` of them counted over all tokens, from their cosines and sines. */
#define FACTORS(suffix, wide) \
  TARGET INLINE void AT(put_factors_##suffix)(const sw_rope_factors *f, long first, long n, const double *cos_i, \
                                              const double *sin_i, const double *cos_j, const double *sin_j) { \
    wide *restrict a = (wide *)f->factor[0] + first, *restrict b = (wide *)f->factor[1] + first; \
    wide *restrict c = (wide *)f->factor[2] + first, *restrict d = (wide *)f->factor[3] + first; \
    if (f->forward) for (long i = 0; i < n; i++) a[i] = cos_i[i], b[i] = -sin_i[i], c[i] = cos_j[i], d[i] = sin_j[i]; \
    else for (long i = 0; i < n; i++) a[i] = cos_i[i], b[i] = sin_j[i], c[i] = cos_j[i], d[i] = -sin_i[i]; \
  } \
  TARGET static void AT(compute_factors_##suffix)(const sw_rope_factors *f) { \
    double angle[PAIRS], cosine[PAIRS], sine[PAIRS]; \
    const int64_t *position = (const int64_t *)f->position; \
    const double *frequency = (const double *)f->frequency; \
    long total = f->tokens * f->pairs, t = 0, p = 0; \
    for (long first = 0, n; first < total; first += n) { \
      n = total - first < PAIRS ? total - first : PAIRS; \
      for (long at = 0, part; at < n; at += part) { /* pairs of one token */ \
        part = n - at < f->pairs - p ? n - at : f->pairs - p; \
        if (f->single) for (long i = 0; i < part; i++) angle[at + i] = (float)position[t] * (float)frequency[p + i]; \
        else for (long i = 0; i < part; i++) angle[at + i] = (double)position[t] * frequency[p + i]; \
        if ((p += part) == f->pairs) p = 0, t++; \
      } \
      AT(sincos)(sine, cosine, angle, n, sizeof(wide) == 8); \
      AT(put_factors_##suffix)(f, first, n, cosine, sine, cosine, sine); \
    } \
  } \
  TARGET static void AT(rope_factors_##suffix)(const sw_rope_factors *f) { \
    double cos_i[PAIRS], sin_i[PAIRS], cos_other[PAIRS], sin_other[PAIRS]; \
    if (f->frequency) { \
      AT(compute_factors_##suffix)(f); \
      return; \
    } \
    for (long t = 0; t < f->tokens; t++) { \
      long row = ((const int64_t *)f->position)[t]; \
      for (long p = 0, n; p < f->pairs; p += n) { \
        n = f->pairs - p < PAIRS ? f->pairs - p : PAIRS; \
        AT(table_row)(cos_i, &f->cos, row, p * f->pair_stride, f->pair_stride, n); \
        AT(table_row)(sin_i, &f->sin, row, p * f->pair_stride, f->pair_stride, n); \
        if (f->partner_offset) { \
          AT(table_row)(cos_other, &f->cos, row, p * f->pair_stride + f->partner_offset, f->pair_stride, n); \
          AT(table_row)(sin_other, &f->sin, row, p * f->pair_stride + f->partner_offset, f->pair_stride, n); \
        } \
        AT(put_factors_##suffix)(f, t * f->pairs + p, n, cos_i, sin_i, f->partner_offset ? cos_other : cos_i, \
                                 f->partner_offset ? sin_other : sin_i); \
      } \
    } \
  }
FACTORS(f32, float)
FACTORS(f64, double)
#undef FACTORS

/* rotate_adjacent: the members of a pair are adjacent. rotate_apart: the first members of pairs are
   adjacent. in may equal out. */
#define ROTATE(wide) \
  TARGET INLINE void AT(rotate_adjacent_##wide)(wide *out, const wide *in, const wide *const *f, long n) { \
    const wide *a = f[0], *b = f[1], *c = f[2], *d = f[3]; \
    INDEPENDENT for (long i = 0; i < n; i++) { \
      wide x = in[2 * i], y = in[2 * i + 1]; \
      out[2 * i] = a[i] * x + b[i] * y, out[2 * i + 1] = c[i] * y + d[i] * x; \
    } \
  } \
  TARGET INLINE void AT(rotate_apart_##wide)(wide *out_i, wide *out_j, const wide *in_i, const wide *in_j, \
                                               const wide *const *f, long n) { \
    const wide *a = f[0], *b = f[1], *c = f[2], *d = f[3]; \
    INDEPENDENT for (long i = 0; i < n; i++) { \
      wide x = in_i[i], y = in_j[i]; \
      out_i[i] = a[i] * x + b[i] * y, out_j[i] = c[i] * y + d[i] * x; \
    } \
  }
ROTATE(float)
ROTATE(double)
#undef ROTATE

/* Access to n elements of stride step: in place if possible, otherwise through the buffer
   scratch. */
#define SAME(suffix, type) \
  TARGET INLINE const type *AT(read_##suffix)(type *scratch, const type *in, long step, long n) { \
    if (step == 1) return in; \
    for (long i = 0; i < n; i++) scratch[i] = in[i * step]; \
    return scratch; \
  } \
  TARGET INLINE type *AT(place_##suffix)(type *scratch, type *out, long step) { return step == 1 ? out : scratch; } \
  TARGET INLINE void AT(write_##suffix)(type *out, const type *made, long step, long n) { \
    if (step != 1) for (long i = 0; i < n; i++) out[i * step] = made[i]; \
  }
SAME(f32, float)
SAME(f64, double)
#undef SAME

#define NARROW(suffix, stored) \
  TARGET INLINE const float *AT(read_##suffix)(float *scratch, const stored *in, long step, long n) { \
    stored raw[2 * PAIRS]; \
    if (step != 1) { \
      for (long i = 0; i < n; i++) raw[i] = in[i * step]; \
      in = raw; \
    } \
    sw_widen(DTYPE_##suffix, scratch, in, n); \
    return scratch; \
  } \
  TARGET INLINE float *AT(place_##suffix)(float *scratch, stored *out, long step) { (void)out, (void)step; \
      return scratch; } \
  TARGET INLINE void AT(write_##suffix)(stored *out, const float *made, long step, long n) { \
    stored raw[2 * PAIRS]; \
    if (step == 1) { \
      sw_narrow(DTYPE_##suffix, out, made, n); \
      return; \
    } \
    sw_narrow(DTYPE_##suffix, raw, made, n); \
    for (long i = 0; i < n; i++) out[i * step] = raw[i]; \
  }
EACH_NARROW(NARROW)
#undef NARROW

#define ROWS(suffix, stored, wide) \
  TARGET static void AT(rope_row_##suffix)(const sw_rope_rows *r, stored *out, const stored *in, \
                                           const wide *const *factor) { \
    wide scratch[4][2 * PAIRS]; \
    for (long p = 0, n; p < r->pairs; p += n) { \
      n = r->pairs - p < PAIRS ? r->pairs - p : PAIRS; \
      const wide *f[4] = {factor[0] + p, factor[1] + p, factor[2] + p, factor[3] + p}; \
      long first = r->first + p * r->pair_stride, second = first + r->partner_offset; \
      stored *out_i = out + first * r->out_step, *out_j = out + second * r->out_step; \
      const wide *in_i, *in_j; \
      wide *made_i = AT(place_##suffix)(scratch[2], out_i, r->out_step), *made_j; \
      if (r->partner_offset == 1) { \
        in_i = AT(read_##suffix)(scratch[0], in + first * r->in_step, r->in_step, 2 * n); \
        AT(rotate_adjacent_##wide)(made_i, in_i, f, n); \
        AT(write_##suffix)(out_i, made_i, r->out_step, 2 * n); \
        continue; \
      } \
      made_j = AT(place_##suffix)(scratch[3], out_j, r->out_step); \
      in_i = AT(read_##suffix)(scratch[0], in + first * r->in_step, r->in_step, n); \
      in_j = AT(read_##suffix)(scratch[1], in + second * r->in_step, r->in_step, n); \
      AT(rotate_apart_##wide)(made_i, made_j, in_i, in_j, f, n); \
      AT(write_##suffix)(out_i, made_i, r->out_step, n); \
      AT(write_##suffix)(out_j, made_j, r->out_step, n); \
    } \
    for (int k = 0; k < 2 && (const stored *)out != in; k++) \
      for (long i = r->copied[k][0]; i < r->copied[k][0] + r->copied[k][1]; i++) \
          out[i * r->out_step] = in[i * r->in_step]; \
  } \
  /* Several short dense rows with one conversion. */ \
  TARGET static void AT(rope_group_##suffix)(const sw_rope_rows *r, stored *out, const stored *in, \
                                             const wide *const *factor, long rows) { \
    wide scratch[2][2 * PAIRS]; \
    long half = r->pairs; \
    const wide *x = AT(read_##suffix)(scratch[0], in, 1, 2 * half * rows); \
    wide *y = AT(place_##suffix)(scratch[1], out, 1); \
    for (long k = 0; k < rows; k++, x += 2 * half, y += 2 * half) { \
      const wide *f[4] = {factor[0] + k * half, factor[1] + k * half, factor[2] + k * half, factor[3] + k * half}; \
      if (r->partner_offset == 1) AT(rotate_adjacent_##wide)(y, x, f, half); \
      else AT(rotate_apart_##wide)(y, y + half, x, x + half, f, half); \
    } \
    AT(write_##suffix)(out, scratch[1], 1, 2 * half * rows); \
  } \
  TARGET static void AT(rope_rows_##suffix)(const sw_rope_rows *r) { \
    long width = 2 * r->pairs, group = 1; \
    if (r->in_step == 1 && r->out_step == 1 && !r->copied[0][1] && !r->copied[1][1] && r->first == 0 \
        && r->partner_offset <= r->pairs && \
        r->in_inner == width && r->out_inner == width && r->factor_inner == r->pairs && 0 < width && width <= PAIRS) \
      group = 2 * PAIRS / width; \
    for (long o = 0; o < r->outer; o++) \
      for (long i = 0, rows; i < r->inner; i += rows) { \
        long at = o * r->factor_outer + i * r->factor_inner; \
        const wide *factor[4]; \
        for (int k = 0; k < 4; k++) factor[k] = (const wide *)r->factor[k] + at; \
        stored *out = (stored *)r->out + o * r->out_outer + i * r->out_inner; \
        const stored *in = (const stored *)r->in + o * r->in_outer + i * r->in_inner; \
        rows = r->inner - i < group ? r->inner - i : group; \
        if (group > 1) AT(rope_group_##suffix)(r, out, in, factor, rows); \
        else AT(rope_row_##suffix)(r, out, in, factor); \
      } \
  }
EACH_FLOAT(ROWS)
#undef ROWS

/* Included once for each processor by narrow.c: scans of vectors of four numbers, in which c rows
   alternate, and the loops over the segments of a lane. The arithmetic is the same on every
   processor, so that bits are. */

#if VECTOR == 64
#define ANY(mask) ((mask)[0] | (mask)[1] | (mask)[2] | (mask)[3])
#else
#define ANY(mask) _mm256_movemask_pd((__m256d)(mask))
#endif

/* Cumulative sums. A segment's blocks of 16 numbers are summed by themselves. If exact, the sums of
   blocks are compensated. */
TARGET INLINE void AT(narrow_sum)(int c, int exact, const segment *s, double *sum, double *error) {
  four high = LOAD(sum), low = LOAD(error);
  long i = 0;
  for (; i + BLOCK <= s->count; i += BLOCK) {
    four total = {0};
    _Pragma("GCC unroll 4") for (long j = 0; j < BLOCK; j += 4) {
      four v = read_four(c, s, i + j);
      if (c == 1) v += SHUFFLE(v, ((four){0}), 4, 0, 4, 2), v += SHUFFLE(v, ((four){0}), 4, 4, 1, 1);
      if (c == 2) v += SHUFFLE(v, ((four){0}), 4, 4, 0, 1);
      if (exact) {
        write_four(c, s, i + j, high + (low + (total + v)));
        total += last_of(c, v);
      } else {
        write_four(c, s, i + j, high + v);
        high += last_of(c, v);
      }
    }
    if (!exact) continue;
    four next = high + total, part = next - total;
    low += (high - part) + (total - (next - part));
    high = next;
    low = SELECT(ALL(next - next == 0), low, (four){0});
  }
  STORE(sum, high), STORE(error, low);
  for (; i < s->count; i++) {
    long j = i % c;
    sum[j] = compensated_sum(exact, s->from[place_of(c, s, i)], sum[j], &error[j]);
    write_one(c, s, i, exact ? sum[j] + error[j] : sum[j]);
  }
  repeat(c, sum), repeat(c, error);
}

/* One number at a time of a vector, or of the rest of a segment. */
TARGET INLINE void AT(narrow_product_steps)(int c, int exact, const segment *s, long i, long end, double *m, double *e) {
  for (; i < end; i++) {
    long j = i % c;
    double v = s->from[place_of(c, s, i)];
    product_step(exact, v, &m[j], &e[j]);
    write_one(c, s, i, scaled(m[j], e[j]));
  }
  repeat(c, m), repeat(c, e);
}

/* Cumulative products m 2^e. While m and the factors of a vector are bounded, no product of them
   leaves the range of float64. Other vectors are multiplied one number at a time. */
TARGET INLINE void AT(narrow_product)(int c, int exact, const segment *s, double *m, double *e) {
  const double most = exact ? 0x1p50 : 0x1p128, least = exact ? 0x1p-50 : 0;
  product_scale scale = scale_of(m, e);
  four p = LOAD(m);
  long i = 0;
  for (; i + 4 <= s->count; i += 4) {
    four v = read_four(c, s, i), size = ABS(v);
    INTS4 beyond = ~ALL(size <= most) | (ALL(size < least) & ALL(v != 0));
    if (!scale.is_finite || ANY(beyond)) {
      STORE(m, p);
      AT(narrow_product_steps)(c, exact, s, i, i + 4, m, e);
      scale = scale_of(m, e), p = LOAD(m);
      continue;
    }
    if (c == 1) v *= SHUFFLE(v, ONES, 4, 0, 4, 2), v *= SHUFFLE(v, ONES, 4, 4, 1, 1);
    if (c == 2) v *= SHUFFLE(v, ONES, 4, 4, 0, 1);
    four y = p * v;
    if (scale.is_scaled) y = y * LOAD(scale.first) * LOAD(scale.second);
    write_four(c, s, i, y);
    p *= last_of(c, v), size = ABS(p);
    if (!ANY(~ALL(size <= PRODUCT_MOST) | (ALL(size < PRODUCT_LEAST) & ALL(p != 0)))) continue;
    STORE(m, p);
    scale = scale_of(m, e), p = LOAD(m);
  }
  STORE(m, p);
  AT(narrow_product_steps)(c, exact, s, i, s->count, m, e);
}

/* The record of an older and a newer vector. */
#define NEWER_WINS(first, older, newer) \
  ((first) ? ALL((newer) > (older)) | (ALL((newer) != (newer)) & ALL((older) == (older))) \
           : ALL((newer) >= (older)) | ALL((newer) != (newer)))
#define TAKE_OLDER(...) do { \
    four older = SHUFFLE(v, v, __VA_ARGS__), older_index = SHUFFLE(index, index, __VA_ARGS__); \
    INTS4 wins = NEWER_WINS(first, older, v); \
    v = SELECT(wins, v, older); \
    if (with_index) index = SELECT(wins, index, older_index); \
  } while (0)

/* Cumulative maxima, of negated numbers if sign has the sign bit, and the bits of their indices.
   Most blocks of long rows have no record. */
TARGET INLINE void AT(narrow_records)(int c, int first, int with_index, uint64_t sign, const segment *s, double *best,
                                      double *best_index) {
  const INTS4 flip = (INTS4){0} + (int64_t)sign;
  four b = LOAD(best), b_index = LOAD(best_index);
  INTS4 here = c == 1 ? (INTS4){0, 1, 2, 3} : c == 2 ? (INTS4){0, 0, 1, 1} : (INTS4){0};
  here = here * s->delta + s->here;
  long i = 0;
  for (; i + BLOCK <= s->count; i += BLOCK, here += BLOCK / c * s->delta) {
    four values[BLOCK / 4];
    INTS4 records = {0};
    _Pragma("GCC unroll 4") for (long j = 0; j < BLOCK / 4; j++) {
      values[j] = (four)((INTS4)read_four(c, s, i + 4 * j) ^ flip);
      records |= ~(first ? ALL(values[j] <= b) : ALL(values[j] < b));
    }
    if (!ANY(records)) {
      if (s->to == NULL) continue;
      for (long j = 0; j < BLOCK; j += 4) write_four(c, s, i + j, (four)((INTS4)b ^ flip));
      if (with_index) for (long j = 0; j < BLOCK; j += 4) write_index(c, s, i + j, b_index);
      continue;
    }
    _Pragma("GCC unroll 4") for (long j = 0; j < BLOCK / 4; j++) {
      four v = values[j], index = (four)(here + 4 / c * j * s->delta);
      if (c == 1) { TAKE_OLDER(0, 0, 2, 2); TAKE_OLDER(0, 1, 1, 1); }
      if (c == 2) TAKE_OLDER(0, 1, 0, 1);
      INTS4 wins = NEWER_WINS(first, b, v);
      four y = SELECT(wins, v, b);
      write_four(c, s, i + 4 * j, (four)((INTS4)y ^ flip));
      if (with_index) {
        four y_index = SELECT(wins, index, b_index);
        write_index(c, s, i + 4 * j, y_index);
        b_index = last_of(c, y_index);
      }
      b = last_of(c, y);
    }
  }
  STORE(best, b), STORE(best_index, b_index);
  for (; i < s->count; i++) {
    long j = i % c;
    double v = number(bits(s->from[place_of(c, s, i)]) ^ sign), older = best[j];
    int wins = first ? v > older || (v != v && older == older) : v >= older || v != v;
    if (wins) best[j] = v, best_index[j] = number(s->here + i / c * s->delta);
    write_one(c, s, i, number(bits(best[j]) ^ sign));
    if (with_index && s->to) s->found[place_of(c, s, i)] = bits(best_index[j]);
  }
  repeat(c, best), repeat(c, best_index);
}
#undef NEWER_WINS
#undef TAKE_OLDER

#define WIDTHS(function, ...) switch (call->narrow) { \
    case 1: AT(function)(1, __VA_ARGS__); break; \
    case 2: AT(function)(2, __VA_ARGS__); break; \
    case 4: AT(function)(4, __VA_ARGS__); break; \
  }

TARGET static void AT(scan_narrow)(const scan_forward_call *call, const segment *s, double *a, double *b, double *index) {
  int exact = call->x.type == 1;
  int first = call->kind == SCAN_MAX_FIRST || call->kind == SCAN_MIN_FIRST;
  uint64_t sign = call->kind >= SCAN_MIN_LAST ? (uint64_t)1 << 63 : 0;
  if (call->kind == SCAN_SUM) {
    if (exact) WIDTHS(narrow_sum, 1, s, a, b) else WIDTHS(narrow_sum, 0, s, a, b)
  } else if (call->kind == SCAN_PRODUCT) {
    if (exact) WIDTHS(narrow_product, 1, s, a, b) else WIDTHS(narrow_product, 0, s, a, b)
  } else if (first) {
    if (call->with_index) WIDTHS(narrow_records, 1, 1, sign, s, a, index)
    else WIDTHS(narrow_records, 1, 0, sign, s, a, index)
  } else {
    if (call->with_index) WIDTHS(narrow_records, 0, 1, sign, s, a, index)
    else WIDTHS(narrow_records, 0, 0, sign, s, a, index)
  }
}
#undef WIDTHS
#undef ANY

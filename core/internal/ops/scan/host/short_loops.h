/* Included once for each processor by narrow.c: scans of short rows, eight at a time. Four
   positions of four rows are transposed in registers, so that a vector holds one position of four
   rows. The arithmetic is the same on every processor, so that bits are. */

#define TRANSPOSE(v) do { \
    four low01 = SHUFFLE(v[0], v[1], 0, 4, 2, 6), high01 = SHUFFLE(v[0], v[1], 1, 5, 3, 7); \
    four low23 = SHUFFLE(v[2], v[3], 0, 4, 2, 6), high23 = SHUFFLE(v[2], v[3], 1, 5, 3, 7); \
    v[0] = SHUFFLE(low01, low23, 0, 1, 4, 5), v[1] = SHUFFLE(high01, high23, 0, 1, 4, 5); \
    v[2] = SHUFFLE(low01, low23, 2, 3, 6, 7), v[3] = SHUFFLE(high01, high23, 2, 3, 6, 7); \
  } while (0)

/* Advances four rows by the position v, and replaces v by y. a is the sum, the product, or the
   running maximum, whose index is b. A sum in float64 is a + b + c: c is the sum of a block, and b
   the rounding error of a. */
TARGET INLINE void AT(short_step)(int kind, int exact, int first, INTS4 here, four *v, four *a, four *b, four *c) {
  if (kind == SCAN_SUM && exact) {
    *c += *v, *v = *a + (*b + *c);
  } else if (kind == SCAN_SUM) {
    *v = *a += *v;
  } else if (kind == SCAN_PRODUCT) {
    *v = *a *= *v;
  } else {
    INTS4 wins = NEWER_WINS(first, *a, *v);
    *v = *a = SELECT(wins, *v, *a);
    *b = SELECT(wins, (four)here, *b);
  }
}

/* Adds the sum of a block to a compensated sum. */
TARGET INLINE void AT(short_sum)(four *a, four *b, four *c) {
  four next = *a + *c, part = next - *c;
  *b += (*a - part) + (*c - (next - part));
  *b = SELECT(ALL(next - next == 0), *b, (four){0});
  *a = next, *c = (four){0};
}

/* Whether a product or one of its `count` factors is out of the range in which products are exact
   enough without an exponent of their own. Factors in float32 are bounded by their type. */
TARGET INLINE int AT(short_beyond)(int exact, const four *factors, int count, four product) {
  INTS4 beyond = ~ALL(ABS(product) <= PRODUCT_MOST) | (ALL(ABS(product) < 1 / PRODUCT_MOST) & ALL(product != 0));
  if (exact) {
    four sum = {0}, least = ONES;
    for (int k = 0; k < count; k++) sum += ABS(factors[k]), least = MIN4(least, ABS(factors[k]));
    if (ANY(~ALL(sum <= PRODUCT_FACTOR) | ALL(least < 1 / PRODUCT_FACTOR))) for (int k = 0; k < count; k++) {
      four size = ABS(factors[k]);
      beyond |= ~ALL(size <= PRODUCT_FACTOR) | (ALL(size < 1 / PRODUCT_FACTOR) & ALL(size != 0));
    }
  }
  return ANY(beyond);
}

/* Four numbers of row r of s, from a place on. */
#define SHORT_READ(p) \
  (type == NARROW_F64 ? LOAD((const double *)s[r].from + (p)) : FROM_FLOATS((const float *)s[r].from + (p)))
#define SHORT_WRITE(p, v) do { \
    if (type == NARROW_F64) STORE((double *)s[r].to + (p), v); \
    else TO_FLOATS((float *)s[r].to + (p), v); \
  } while (0)
#define EACH_ROW _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++)

/* Scans eight rows. Returns 0 if a product needs more care; then y is not complete. */
LOOP int AT(short_rows)(int kind, int type, int exact, int reverse, int first, int with_index, uint64_t sign,
                                 const segment *rows) {
  const long n = rows->count;
  const INTS4 flip = (INTS4){0} + (int64_t)sign;
  const four initial = (four){0} + (kind == SCAN_SUM ? 0 : kind == SCAN_PRODUCT ? 1 : -INFINITY);
  INTS4 here = (INTS4){0} + rows->here;
  four a[2] = {initial, initial}, b[2] = {{0}, {0}}, c[2] = {{0}, {0}};
  if (with_index) b[0] = b[1] = (four)here;
  long i = 0;
  for (; i + 4 <= n; i += 4) {
    const long low = reverse ? n - 4 - i : i;
    _Pragma("GCC unroll 2") for (int h = 0; h < 2; h++) {
      const segment *s = rows + 4 * h;
      four v[4], factors[4], index[4];
      EACH_ROW v[r] = SHORT_READ(low);
      TRANSPOSE(v);
      EACH_ROW factors[r] = v[r];
      _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) {
        const int p = reverse ? 3 - k : k;
        v[p] = (four)((INTS4)v[p] ^ flip);
        AT(short_step)(kind, exact, first, here + k * rows->delta, &v[p], &a[h], &b[h], &c[h]);
        v[p] = (four)((INTS4)v[p] ^ flip), index[p] = b[h];
      }
      if (kind == SCAN_SUM && exact) AT(short_sum)(&a[h], &b[h], &c[h]);
      if (kind == SCAN_PRODUCT && AT(short_beyond)(exact, factors, 4, a[h])) return 0;
      TRANSPOSE(v);
      EACH_ROW SHORT_WRITE(low, v[r]);
      if (!with_index) continue;
      TRANSPOSE(index);
      EACH_ROW STORE(s[r].found + low, index[r]);
    }
    if (with_index) here += 4 * rows->delta;
  }
  for (; i < n; i++, here += rows->delta) for (int h = 0; h < 2; h++) {
    const segment *s = rows + 4 * h;
    const long p = reverse ? n - 1 - i : i;
    four v;
    for (int r = 0; r < 4; r++)
      v[r] = type == NARROW_F64 ? ((const double *)s[r].from)[p] : ((const float *)s[r].from)[p];
    const four factor = v;
    v = (four)((INTS4)v ^ flip);
    AT(short_step)(kind, exact, first, here, &v, &a[h], &b[h], &c[h]);
    v = (four)((INTS4)v ^ flip);
    if (kind == SCAN_PRODUCT && AT(short_beyond)(exact, &factor, 1, a[h])) return 0;
    for (int r = 0; r < 4; r++) {
      if (type == NARROW_F64) ((double *)s[r].to)[p] = v[r];
      else ((float *)s[r].to)[p] = v[r];
      if (with_index) s[r].found[p] = bits(b[h][r]);
    }
  }
  return 1;
}

/* A product that short_rows left to be done one number at a time. */
TARGET INLINE void AT(short_products)(int type, const segment *s) {
  double m[4] = {1, 1, 1, 1}, e[4] = {0};
  AT(narrow_product_steps)(1, type, s, 0, s->count, m, e);
}

#define SHORT_ROWS(exact) (reverse ? AT(short_rows)(kind, type, exact, 1, first, with_index, sign, rows) \
                                   : AT(short_rows)(kind, type, exact, 0, first, with_index, sign, rows))

/* Scans the lanes of a call, of which there are eight or more: the last eight may overlap those
   before, whose results they repeat. */
TARGET INLINE void AT(short_lanes)(int kind, int first, int with_index, uint64_t sign,
                                   const scan_forward_call *call, int type) {
  const int exact = type == NARROW_F64 && (kind != SCAN_SUM || call->n > SCAN_SHORT_MAX);
  const long size = type == NARROW_F64 ? 8 : 4, reverse = call->x.step < 0;
  segment rows[8];
  for (long from = 0; from < call->lanes; from += 8) {
    long lane = from + 8 <= call->lanes ? from : call->lanes - 8;
    for (long r = 0; r < 8; r++) {
      long low = reverse ? 1 - call->n : 0; /* from the first position in scan order to the lowest address */
      rows[r] = (segment){.from = call->x.data + size * (lane_offset(&call->x, lane + r) + low),
                          .to = call->y.data + size * (lane_offset(&call->y, lane + r) + low),
                          .count = call->n, .reverse = reverse, .here = call->origin, .delta = call->delta};
      if (with_index)
        rows[r].found = (int64_t *)(uintptr_t)call->indices.data + lane_offset(&call->indices, lane + r) + low;
    }
    int done = exact ? SHORT_ROWS(1) : SHORT_ROWS(0);
    if (!done) for (long r = 0; r < 8; r++) AT(short_products)(type, rows + r);
  }
}

#define TYPES(...) { \
    if (call->x.type == 0) AT(short_lanes)(__VA_ARGS__, call, NARROW_F32); \
    else AT(short_lanes)(__VA_ARGS__, call, NARROW_F64); \
  }

TARGET static void AT(scan_short)(const scan_forward_call *call) {
  const int is_min = call->kind >= SCAN_MIN_LAST;
  const uint64_t sign = (uint64_t)is_min << 63;
  const int first = call->kind == SCAN_MAX_FIRST || call->kind == SCAN_MIN_FIRST;
  if (call->kind == SCAN_SUM) TYPES(SCAN_SUM, 0, 0, 0)
  else if (call->kind == SCAN_PRODUCT) TYPES(SCAN_PRODUCT, 0, 0, 0)
  else if (first && call->with_index) TYPES(SCAN_MAX_LAST, 1, 1, sign)
  else if (first) TYPES(SCAN_MAX_LAST, 1, 0, sign)
  else if (call->with_index) TYPES(SCAN_MAX_LAST, 0, 1, sign)
  else TYPES(SCAN_MAX_LAST, 0, 0, sign)
}
#undef TYPES
#undef TRANSPOSE
#undef SHORT_ROWS
#undef SHORT_READ
#undef SHORT_WRITE
#undef EACH_ROW

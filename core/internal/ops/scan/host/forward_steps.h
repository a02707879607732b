/* The recurrences of forward scans on the CPU, one function for each step over a block of
   SCAN_LANES lanes of a tile. Each replaces x by y, which upsweeps ignore. Each is one expression
   for each lane without a branch, so that the loop over lanes becomes vector code. */
#ifndef STERNWAY_SCAN_FORWARD_STEPS_H
#define STERNWAY_SCAN_FORWARD_STEPS_H
#include "steps.h"

/* A state is a prefix of three numbers:

     sum            the sum and its rounding error
     product        m and e of m 2^e
     max, min       the value, negated for a minimum; whether there is one; the bits of its index
     logcumsumexp   m, t and the rounding error of t, where y = m + log(1 + t)

   initial_prefix is the first number before the first position of a row; the others are 0. */
INLINE double initial_prefix(enum scan_kind kind) {
  return kind == SCAN_PRODUCT ? 1 : kind == SCAN_LOG_SUM ? -INFINITY : 0;
}

/* If exact, the sum is compensated. */
INLINE void sum_scan(int exact, double *restrict sum, double *restrict error, double *restrict x, long width, long n) {
  for (long k = 0; k < n; k++) EACH_LANE {
    sum[l] = compensated_sum(exact, x[k * width + l], sum[l], &error[l]);
    x[k * width + l] = exact ? sum[l] + error[l] : sum[l];
  }
}

/* 2^e as two factors in range, so that m first is exact for an |m| from 2^-500 to 2^500. For an e
   so small that every |m| up to 2^1000 becomes 0, one factor is 0: an underflow takes longer. */
INLINE void powers_of(double e, double *first, double *second) {
  double small = e < -500 ? -500 : e;
  small = small > 500 ? 500 : small;
  double rest = e - small < -1000 ? -1000 : e - small;
  *first = power(small), *second = e < -2200 ? 0 : power(rest > 1000 ? 1000 : rest);
}

/* m 2^e, rounded once. */
INLINE double scaled(double m, double e) {
  double first, second;
  powers_of(e, &first, &second);
  return m * first * second;
}

/* Multiplies m 2^e by v. A subnormal v is made normal first. */
INLINE void product_step(int exact, double v, double *m, double *e) {
  double grow = exact && fabs(v) < 0x1p-900 ? 200 : 0;
  *m = zero_product(*m, v * power(grow));
  *e -= grow;
  scale(m, e);
}

/* Products within these bounds, or 0, are multiplied by factors within these bounds without a look
   at the result; 16-bit and float32 factors are bounded by their dtype. */
#define PRODUCT_MOST 0x1p200
#define PRODUCT_FACTOR 0x1p50
#define IS_BEYOND(v, most) ((!(fabs(v) <= (most))) | ((fabs(v) < 1 / (most)) & ((v) != 0)))

/* The products of a block whose running products and factors are bounded. Returns 0 and leaves the
   states alone otherwise. */
INLINE int bounded_products(int exact, double *restrict m, const double *restrict e, const double *restrict x,
                            double *restrict y, long width, long n) {
  double p[SCAN_LANES];
  int64_t beyond[SCAN_LANES], all = 0;
  EACH_LANE {
    p[l] = m[l];
    beyond[l] = ((e[l] != 0) & (m[l] != 0)) | IS_BEYOND(m[l], PRODUCT_MOST);
  }
  for (long k = 0; k < n; k++) {
    EACH_LANE y[k * width + l] = p[l] *= x[k * width + l];
    if (exact) EACH_LANE beyond[l] |= IS_BEYOND(x[k * width + l], PRODUCT_FACTOR);
    if (k % 4 == 3 || k == n - 1) EACH_LANE beyond[l] |= IS_BEYOND(p[l], PRODUCT_MOST);
  }
  EACH_LANE all |= beyond[l];
  if (all) return 0;
  EACH_LANE m[l] = p[l];
  return 1;
}

/* The products m 2^e of a block whose factors are bounded; m is normalized every four positions.
   Returns 0 and leaves the states alone if a factor is not bounded, or zero_product is needed. */
INLINE int scaled_products(int exact, double *restrict m, double *restrict e, const double *restrict x,
                           double *restrict y, long width, long n) {
  double p[SCAN_LANES], power_of_p[SCAN_LANES], first[SCAN_LANES], second[SCAN_LANES];
  int64_t beyond[SCAN_LANES] = {0}, all = 0;
  EACH_LANE {
    p[l] = m[l];
    power_of_p[l] = e[l];
  }
  for (long k = 0; k < n; k++) {
    if (k % 4 == 0) EACH_LANE {
      scale(&p[l], &power_of_p[l]);
      powers_of(power_of_p[l], &first[l], &second[l]);
    }
    EACH_LANE {
      p[l] *= x[k * width + l];
      y[k * width + l] = p[l] * first[l] * second[l];
    }
    if (exact) EACH_LANE beyond[l] |= IS_BEYOND(x[k * width + l], PRODUCT_FACTOR);
  }
  EACH_LANE beyond[l] |= !(p[l] - p[l] == 0);
  EACH_LANE all |= beyond[l];
  if (all) return 0;
  EACH_LANE {
    scale(&p[l], &power_of_p[l]);
    double near = fabs(power_of_p[l]) < 150 ? power_of_p[l] : 0;
    m[l] = p[l] * power(near), e[l] = power_of_p[l] - near;
  }
  return 1;
}

/* The running product is m 2^e, so that it may leave the range of float64 and come back. */
INLINE void product_scan(int exact, double *restrict m, double *restrict e, const double *restrict x,
                         double *restrict y, long width, long n) {
  if (bounded_products(exact, m, e, x, y, width, n) || scaled_products(exact, m, e, x, y, width, n)) return;
  for (long k = 0; k < n; k++) EACH_LANE {
    product_step(exact, x[k * width + l], &m[l], &e[l]);
    y[k * width + l] = scaled(m[l], e[l]);
  }
}

/* best is the running maximum, of the negated numbers for a minimum, and index the position that
   holds it. The first position of a row is a record, and NaN is a record over every number. here is
   the index of the first position of the tile. If with_index, the indices are stored in found. */
INLINE void record_scan(int is_min, int first, int with_index, double *restrict best, double *restrict seen,
                        uint64_t *restrict index, uint64_t *restrict here, double *restrict x, double *restrict found,
                        int64_t delta, long width, long n) {
  EACH_LANE {
    double v = is_min ? -x[l] : x[l];
    best[l] = seen[l] != 0 ? best[l] : v;
    index[l] = seen[l] != 0 ? index[l] : here[l];
    seen[l] = 1;
  }
  for (long k = 0; k < n; k++) EACH_LANE {
    double v = is_min ? -x[k * width + l] : x[k * width + l], b = best[l];
    int64_t over = first ? -(int64_t)(v > b) : -(int64_t)(v >= b), is_nan = -(int64_t)(v != v);
    int64_t is_record = over | (first ? is_nan & -(int64_t)(b == b) : is_nan);
    best[l] = number((bits(v) & is_record) | (bits(b) & ~is_record));
    x[k * width + l] = is_min ? -best[l] : best[l];
    if (!with_index) continue;
    index[l] = (here[l] & is_record) | (index[l] & ~is_record);
    here[l] += delta;
    found[k * width + l] = number(index[l]);
  }
}

/* The running sum of exponentials is exp(m) (1 + t), where m is the largest x so far and its own
   term is the 1. A larger x multiplies the sum by e. error is the rounding error of t. -inf adds
   nothing, and equal infinities have equal terms. */
INLINE void log_sum_scan(int exact, int is_upsweep, double *restrict m, double *restrict t, double *restrict error,
                         double *restrict x, long width, long n) {
  for (long k = 0; k < n; k++) {
    EACH_LANE {
      double v = x[k * width + l], top = m[l], e = exp_of_gap(exact, v, top);
      double gain = v == -INFINITY ? 0 : e, link = v > top ? e : 1;
      m[l] = v > top ? v : top;
      error[l] *= link;
      t[l] = compensated_sum(exact, gain, t[l] * link, &error[l]);
    }
    if (!is_upsweep) EACH_LANE x[k * width + l] = m[l] + log_of_one_plus(exact ? t[l] + error[l] : t[l]);
  }
}

/* Scans a block of a tile; a, b and c are the numbers of its states. other receives indices, or
   products. */
INLINE void scan_block(enum scan_kind kind, int exact, int is_upsweep, int with_index, double *a, double *b, double *c,
                       uint64_t *index, uint64_t *here, double *x, double *other, int64_t delta, long width, long n) {
  switch (kind) {
    case SCAN_SUM: sum_scan(exact, a, b, x, width, n); break;
    case SCAN_PRODUCT: product_scan(exact, a, b, x, other, width, n); break;
    case SCAN_LOG_SUM: log_sum_scan(exact, is_upsweep, a, b, c, x, width, n); break;
    default:
      record_scan(kind >= SCAN_MIN_LAST, kind == SCAN_MAX_FIRST || kind == SCAN_MIN_FIRST, with_index, a, b, index,
                  here, x, other, delta, width, n);
  }
}
#endif

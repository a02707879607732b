/* The recurrences of the gradients of scans on the CPU, one function for each step over a tile.
   Each is one expression for each lane without a branch, so that the loop over lanes becomes
   vector code. */
#ifndef STERNWAY_SCAN_STEPS_H
#define STERNWAY_SCAN_STEPS_H
#include <math.h>
#include <string.h>

#include "scan.h"
#include "../../../cpu/exponential.h"

/* A gradient has a forward recurrence and a backward recurrence. The forward one carries a prefix
   over x; it gives position k a weight w[k] and a link c[k]. The backward one is affine, and dx is
   a product:

     R[k] = dy[k] + c[k+1] R[k+1],  dx[k] = w[k] R[k]

                    prefix before k          w                   c
     sum            none                     1                   1
     product        product                  prefix              x[k]
     max, min       last record              1 if k is a record  0 if k is a record, else 1
     logcumsumexp   m, s: y = m + log s      exp(x[k] - m)       exp(m' - m), m' is m before k

   For logcumsumexp, dy[k] / s replaces dy[k].

   A long row is processed tile by tile from its end. The prefix before each tile is a checkpoint
   that was stored before. */

/* Loops process a block of SCAN_LANES lanes, whose states stay in registers. width is the number of
   lanes of a tile. */
#define EACH_LANE for (long l = 0; l < SCAN_LANES; l++)

/* The record flags of a block at one position are the bits of a word; the word of the next position
   is WORDS later. */
#define WORDS (width / SCAN_LANES)

/* a b, but 0 for zero times infinity. The vector code computes a b, and uses zero_product only if a
   result is NaN. */
INLINE double zero_product(double a, double b) {
  double p = a * b, otherwise = isunordered(a, b) ? p : 0;
  return p == p ? p : otherwise;
}

/* The forward functions compute the prefix after n positions. If w is given they store the weights
   in w, and the links in x if a link is not x itself. */

INLINE void product_forward(double *restrict before, const double *restrict x, double *restrict w, long width, long n) {
  for (long k = 0; k < n; k++) EACH_LANE {
    if (w) w[k * width + l] = before[l];
    before[l] = zero_product(before[l], x[k * width + l]);
  }
}

/* a + b. If exact, the rounding error is added to `error` (Knuth's TwoSum, as in Neumaier's
   summation). Only float64 results need it. */
INLINE double compensated_sum(int exact, double a, double b, double *error) {
  double sum = a + b, part = sum - b, all = *error + ((a - part) + (b - (sum - part)));
  if (exact) *error = all - all == 0 ? all : 0;
  return sum;
}

/* exp(-|a - b|). If exact, it is corrected for the rounding error of the difference, which is large
   relative to the exponential if the numbers are far apart. */
INLINE double exp_of_gap(int exact, double a, double b) {
  double difference = a - b, gap = a == b ? 0 : -fabs(difference);
  if (!exact) return exponential(gap, 0);
  double part = difference - a, error = (a - (difference - part)) - (b + part);
  error = a > b ? -error : error;
  return exponential(gap, a == b ? 0 : error);
}

/* The functions by index read x as the bits of the indices that a scan returned. Position i of lane
   l is a record if its index is expected[l] + i delta. Any other index must equal the index before
   it. */

/* The integer value of a float64. */
INLINE uint64_t integer(double x) { return bits(x + 0x1p52) - bits(0x1p52); }

/* Sets bits of mismatch if a tile has indices that no scan returns. last is the index before the
   tile, and then the last index of the tile. */
INLINE void check_indices(const uint64_t *restrict expected, double *restrict last, uint64_t *restrict mismatch,
                          const double *restrict x, long k, long delta, long width, long n) {
  for (long i = 0; i < n; i++) EACH_LANE {
    uint64_t index = bits(x[i * width + l]);
    mismatch[l] |= index == expected[l] + (k + i) * delta ? 0 : index ^ bits(last[l]);
    last[l] = x[i * width + l];
  }
}

/* The suffix of a lane is the sum of dy before its first record. */
INLINE void index_suffix(int exact, const uint64_t *expected, double *restrict has_record, double *restrict suffix,
                         double *restrict error, const double *restrict x, const double *restrict dy, long k,
                         long delta, long width, long n) {
  for (long i = 0; i < n; i++) EACH_LANE {
    has_record[l] = bits(x[i * width + l]) == expected[l] + (k + i) * delta ? 1 : has_record[l];
    suffix[l] = compensated_sum(exact, has_record[l] != 0 ? 0 : dy[i * width + l], suffix[l], &error[l]);
  }
}

/* dx of short rows by any indices: for each position, the sum of dy whose index is the position. */
INLINE void gather(double *restrict dx, const double *restrict dy, const double *restrict x, uint64_t expected,
                   long delta, long width, long n) {
  for (long k = 0; k < n; k++, expected += delta) for (long l = 0; l < width; l++) {
    double sum = 0;
    for (long i = n - 1; i >= 0; i--) sum += bits(x[i * width + l]) == expected ? dy[i * width + l] : 0;
    dx[k * width + l] = sum;
  }
}

/* m is the largest x so far, s the sum of exp(x - m). A larger x multiplies the earlier terms by e,
   which is the link; dy is divided by the sum. -inf adds nothing, and equal infinities have equal
   weights. */
INLINE void log_sum_forward(int exact, double *restrict m, double *restrict s, double *restrict x, double *restrict w,
                            double *restrict dy, long width, long n) {
  double error[SCAN_LANES] = {0}, gain[SCAN_LANES], link[SCAN_LANES];
  EACH_LANE m[l] = s[l] == 0 ? -INFINITY : m[l];
  for (long k = 0; k < n; k++) {
    EACH_LANE {
      double v = x[k * width + l], top = m[l], e = exp_of_gap(exact, v, top), more = v > top ? 1 : e;
      gain[l] = v == -INFINITY ? 0 : more;
      link[l] = v > top ? e : 1;
      m[l] = v > top ? v : top;
    }
    EACH_LANE {
      error[l] *= link[l];
      s[l] = compensated_sum(exact, gain[l], s[l] * link[l], &error[l]);
    }
    if (w) EACH_LANE {
      double total = s[l] + (exact ? error[l] : 0);
      w[k * width + l] = gain[l], x[k * width + l] = link[l];
      dy[k * width + l] /= total == 0 ? INFINITY : total;
    }
  }
  EACH_LANE s[l] += exact ? error[l] : 0;
}

/* The backward recurrence stores dx in place of dy. carry_in is c R of the position on the
   right. */
INLINE void backward(enum scan_kind kind, int exact, double *restrict carry_in, double *restrict error,
                     const double *restrict c, const double *restrict w, double *restrict dy, long width, long n) {
  for (long k = n - 1; k >= 0; k--) EACH_LANE {
    long i = k * width + l;
    double next_error = error[l], next = compensated_sum(exact, dy[i], carry_in[l], &next_error);
    double r = exact ? next + next_error : next;
    switch (kind) {
      case SCAN_SUM: dy[i] = r, carry_in[l] = next; break;
      case SCAN_PRODUCT: dy[i] = zero_product(w[i], r), carry_in[l] = zero_product(c[i], next), next_error *= c[i];
      break;
      default: dy[i] = w[i] * r, carry_in[l] = c[i] * next, next_error *= c[i];
    }
    if (exact) error[l] = next_error;
  }
}

/* The suffix of a lane of cumsum: the sum of dy. */
INLINE void sum_upsweep(int exact, double *suffix, double *error, const double *dy, long width, long n) {
  for (long k = n - 1; k >= 0; k--) EACH_LANE suffix[l] =
      compensated_sum(exact, dy[k * width + l], suffix[l], &error[l]);
}

/* Normalizes p 2^e, so that p is in [0.5, 1). Zero, infinity and NaN stay themselves. */
INLINE void scale(double *p, double *e) {
  const uint64_t exponent = (uint64_t)0x7ff << 52, half = (uint64_t)1022 << 52;
  double fraction = number((bits(*p) & ~exponent) | half);
  double whole = number((bits(*p) & exponent) >> 52 | bits(0x1p52)) - 0x1p52;
  fraction = *p == 0 ? *p : fraction;
  *p = *p - *p == 0 ? fraction : *p;
  *e += whole - 1022;
}

/* The product m 2^e of a lane, m in [0.5, 1), and its suffix, both from the last position to the
   first. Products of four factors of other types than float64 stay in the range of float64, so m is
   normalized every four positions. */
INLINE void product_upsweep(int exact, double *m, double *e, double *suffix, double *error, const double *x,
                            const double *dy, long width, long n) {
  for (long k = n - 1; k >= 0; k--) {
    EACH_LANE {
      double v = x[k * width + l], grow = exact && fabs(v) < 0x1p-900 ? 200 : 0, next_error = error[l];
      m[l] = zero_product(m[l], exact ? v * power(grow) : v);
      e[l] -= grow;
      suffix[l] = zero_product(v, compensated_sum(exact, dy[k * width + l], suffix[l], &next_error));
      next_error *= v;
      if (exact) error[l] = next_error - next_error == 0 ? next_error : 0;
    }
    if (exact || k % 4 == 0) EACH_LANE scale(&m[l], &e[l]);
  }
}
#endif

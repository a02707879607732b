#ifndef STERNWAY_SCAN_STEPS_H
#define STERNWAY_SCAN_STEPS_H
#include <math.h>
#include <string.h>

#include "scan.h"
#include "vector.h"

/* Every scan is two walks over a row. The forward one carries a state over x; position k turns the state before it into a weight
   w[k] and a link c[k]. The backward one is an affine recurrence, and dx is a product:

     R[k] = dy[k] + c[k+1] R[k+1],  dx[k] = w[k] R[k]

                    state                  w              c
     sum            nothing                1              1
     product        product before k       state          x[k]
     max, min       the winner before k    x[k] wins      x[k] does not win
     logcumsumexp   m, s: y = m + log s    exp(x[k] - m)  exp(m' - m), m' before k; with dy[k] / s for dy[k]

   A row that is long is walked tile by tile from its end, with the state before each tile found beforehand. Everything here is one
   expression for each lane without a branch, so that lanes become vectors. */

/* Loops work on strips of lanes whose states stay in registers; width is that of a tile. */
#define EACH_LANE for (long l = 0; l < SCAN_LANES; l++)

INLINE uint64_t bits(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
INLINE double number(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

/* The winners of a strip at one position are the bits of a word; that of the next position is WORDS behind it. */
#define WORDS (width / SCAN_LANES)

/* a b, where zero cuts infinity, but not NaN. It is a b itself where that is a number: products are found without a cut first, and again
   if some are none. */
INLINE double cut(double a, double b) {
  double p = a * b, lost = isunordered(a, b) ? p : 0;
  return p == p ? p : lost;
}

/* 2^k for a whole k from -1022 to 1023: a number this large keeps its last bits whole. */
INLINE double power(double k) { return number(bits(k + (0x1.8p52 + 1023)) << 52); }

/* exp(t + rest) for t <= 0 and a far smaller rest: exp(k log 2 + r), |r| <= log(2)/2, with the series of exp(r) - 1 - r up to what is below 2^-56. The power of
   two goes in two steps, so that results below the normal range are rounded once. */
INLINE double exponential(double t, double rest) {
  rest = t < -746 ? 0 : rest;
  t = t < -746 ? -746 : t;
  double k = (t * 0x1.71547652b82fep0 + 0x1.8p52) - 0x1.8p52;
  double r = (t - k * 0x1.62e42feep-1) - (k * 0x1.a39ef35793c76p-33 - rest);
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = 1 + (r + r * r * p);
  double normal = k < -1000 ? -1000 : k;
  return p * power(normal) * power(k - normal);
}

/* Forward: the state after n positions; with w, the weights, and the links in place of x where these are not x itself. */

INLINE void product_forward(double *restrict before, const double *restrict x, double *restrict w, long width, long n) {
  for (long k = 0; k < n; k++) EACH_LANE {
    if (w) w[k * width + l] = before[l];
    before[l] = cut(before[l], x[k * width + l]);
  }
}

/* a + b, where lost gathers what rounding takes from float64 sums: the results of other types are rounded far above it. */
INLINE double added(int exact, double a, double b, double *lost) {
  double sum = a + b, part = sum - b, all = *lost + ((a - part) + (b - (sum - part)));
  if (exact) *lost = all - all == 0 ? all : 0;
  return sum;
}

/* exp(-|a - b|). Where numbers are far apart the difference is rounded by many places of its exponential: exact gives them back. */
INLINE double shrunk(int exact, double a, double b) {
  double difference = a - b, gap = a == b ? 0 : -fabs(difference);
  if (!exact) return exponential(gap, 0);
  double part = difference - a, lost = (a - (difference - part)) - (b + part);
  lost = a > b ? -lost : lost;
  return exponential(gap, a == b ? 0 : lost);
}

/* The indices that a scan returned, as the bits of x: position k won where its index is k itself, want[l] being that of the first in lane
   l, and any other index is the one before. Whether they are such stands in odd, which is 0 then. */

/* A whole number of float64 as an integer. */
INLINE uint64_t integer(double x) { return bits(x + 0x1p52) - bits(0x1p52); }

/* Of a tile and the border to the one on its left, whose last index last holds. */
INLINE void chosen_check(const uint64_t *restrict want, double *restrict last, uint64_t *restrict odd, const double *restrict x, long k,
                         long delta, long width, long n) {
  for (long i = 0; i < n; i++) EACH_LANE {
    uint64_t index = bits(x[i * width + l]);
    odd[l] |= index == want[l] + (k + i) * delta ? 0 : index ^ bits(last[l]);
    last[l] = x[i * width + l];
  }
}

/* What leaves the lanes is dy from before their first winner. */
INLINE void chosen_fold(int exact, const uint64_t *want, double *restrict won, double *restrict leaving, double *restrict lost,
                        const double *restrict x, const double *restrict dy, long k, long delta, long width, long n) {
  for (long i = 0; i < n; i++) EACH_LANE {
    won[l] = bits(x[i * width + l]) == want[l] + (k + i) * delta ? 1 : won[l];
    leaving[l] = added(exact, won[l] != 0 ? 0 : dy[i * width + l], leaving[l], &lost[l]);
  }
}

/* What each of a few positions has of dy. */
INLINE void gather(double *restrict dx, const double *restrict dy, const double *restrict x, uint64_t want, long delta, long width, long n) {
  for (long k = 0; k < n; k++, want += delta) for (long l = 0; l < width; l++) {
    double sum = 0;
    for (long i = n - 1; i >= 0; i--) sum += bits(x[i * width + l]) == want ? dy[i * width + l] : 0;
    dx[k * width + l] = sum;
  }
}

/* m is the largest x so far, s the sum of exp(x - m). A larger x shrinks what came before by e, which is the link; dy is divided by the
   sum. -inf adds nothing, and equal infinities share equally. */
INLINE void soft_forward(int exact, double *restrict m, double *restrict s, double *restrict x, double *restrict w, double *restrict dy,
                         long width, long n) {
  double lost[SCAN_LANES] = {0}, gain[SCAN_LANES], link[SCAN_LANES];
  EACH_LANE m[l] = s[l] == 0 ? -INFINITY : m[l];
  for (long k = 0; k < n; k++) {
    EACH_LANE {
      double v = x[k * width + l], top = m[l], e = shrunk(exact, v, top), more = v > top ? 1 : e;
      gain[l] = v == -INFINITY ? 0 : more;
      link[l] = v > top ? e : 1;
      m[l] = v > top ? v : top;
    }
    EACH_LANE {
      lost[l] *= link[l];
      s[l] = added(exact, gain[l], s[l] * link[l], &lost[l]);
    }
    if (w) EACH_LANE {
      double total = s[l] + (exact ? lost[l] : 0);
      w[k * width + l] = gain[l], x[k * width + l] = link[l];
      dy[k * width + l] /= total == 0 ? INFINITY : total;
    }
  }
  EACH_LANE s[l] += exact ? lost[l] : 0;
}

/* Backward: dx in place of dy. entering is c R from the right. Where winners are chosen, they select, so that an infinity
   or a NaN stays in its run. */
INLINE void backward(enum scan_kind kind, int exact, double *restrict entering, double *restrict lost, const double *restrict c,
                     const double *restrict w, double *restrict dy, long width, long n) {
  for (long k = n - 1; k >= 0; k--) EACH_LANE {
    long i = k * width + l;
    double less = lost[l], next = added(exact, dy[i], entering[l], &less), r = exact ? next + less : next;
    switch (kind) {
      case SCAN_SUM: dy[i] = r, entering[l] = next; break;
      case SCAN_PRODUCT: dy[i] = cut(w[i], r), entering[l] = cut(c[i], next), less *= c[i]; break;
      default: dy[i] = w[i] * r, entering[l] = c[i] * next, less *= c[i];
    }
    if (exact) lost[l] = less;
  }
}

INLINE void sum_fold(int exact, double *leaving, double *lost, const double *dy, long width, long n) {
  for (long k = n - 1; k >= 0; k--) EACH_LANE leaving[l] = added(exact, dy[k * width + l], leaving[l], &lost[l]);
}

/* p 2^e, with p in [0.5, 1). Zero, infinity and NaN stay themselves. */
INLINE void scale(double *p, double *e) {
  const uint64_t exponent = (uint64_t)0x7ff << 52, half = (uint64_t)1022 << 52;
  double fraction = number((bits(*p) & ~exponent) | half), whole = number((bits(*p) & exponent) >> 52 | bits(0x1p52)) - 0x1p52;
  fraction = *p == 0 ? *p : fraction;
  *p = *p - *p == 0 ? fraction : *p;
  *e += whole - 1022;
}

/* The product of a lane as m 2^e with m in [0.5, 1), which leaves the range of float64 only where the product of a whole row does,
   and what leaves the lane; both from the last position on. Four factors of other types than float64 stay in range. */
INLINE void product_fold(int exact, double *m, double *e, double *leaving, double *lost, const double *x, const double *dy, long width,
                         long n) {
  for (long k = n - 1; k >= 0; k--) {
    EACH_LANE {
      double v = x[k * width + l], grow = exact && fabs(v) < 0x1p-900 ? 200 : 0, less = lost[l];
      m[l] = cut(m[l], exact ? v * power(grow) : v);
      e[l] -= grow;
      leaving[l] = cut(v, added(exact, dy[k * width + l], leaving[l], &less));
      less *= v;
      if (exact) lost[l] = less - less == 0 ? less : 0;
    }
    if (exact || k % 4 == 0) EACH_LANE scale(&m[l], &e[l]);
  }
}
#endif

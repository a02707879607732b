/* Nobody reads the floating-point exception flags; while the compiler keeps them right, it makes branches of what selects. */
#ifdef __GNUC__
#pragma GCC optimize("no-trapping-math", "no-math-errno")
#endif

#include <math.h>
#include <stddef.h>
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
     logcumsumexp   m, s: y = m + log s    exp(x[k] - y)  exp(y' - y), y' before k

   A row that is long is walked tile by tile from its end, with the state before each tile found beforehand. Everything here is one
   expression for each lane without a branch, so that lanes become vectors. */

typedef double lanes_of[SCAN_LANES];

#define EACH_LANE for (long l = 0; l < SCAN_LANES; l++)

INLINE uint64_t bits(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
INLINE double number(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

/* a b, where zero cuts infinity, but not NaN. */
INLINE double cut(double a, double b) {
  double p = a * b, lost = isunordered(a, b) ? p : 0;
  return p == p ? p : lost;
}

/* 2^k for a whole k from -1022 to 1023: a number this large keeps its last bits whole. */
INLINE double power(double k) { return number(bits(k + (0x1.8p52 + 1023)) << 52); }

/* exp(t) for t <= 0: exp(k log 2 + r), |r| <= log(2)/2, with the series of exp(r) - 1 - r up to what is below 2^-56. The power of
   two goes in two steps, so that results below the normal range are rounded once. */
INLINE double exponential(double t) {
  t = t < -746 ? -746 : t;
  double k = (t * 0x1.71547652b82fep0 + 0x1.8p52) - 0x1.8p52;
  double r = (t - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
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

INLINE void product_forward(double *before, scan_tile x, double (*w)[SCAN_LANES], long n) {
  for (long k = 0; k < n; k++) EACH_LANE {
    if (w) w[k][l] = before[l];
    before[l] = cut(before[l], x[k][l]);
  }
}

/* NaN beats everything. Where nothing stands before the first position, that one wins. */
INLINE void record_forward(double sign, int first, double *best, double *seen, scan_tile x, double (*w)[SCAN_LANES], long n) {
  EACH_LANE best[l] = seen[l] != 0 ? best[l] : sign * x[0][l];
  for (long k = 0; k < n; k++) EACH_LANE {
    double v = sign * x[k][l], b = best[l];
    double win = first ? (b >= v ? 0 : 1) : (v >= b ? 1 : 0);
    if (first) win = b == b ? win : 0;
    else win = v == v ? win : 1;
    best[l] = win != 0 ? v : b;
    if (w) w[k][l] = win;
  }
  EACH_LANE {
    if (w) w[0][l] = seen[l] != 0 ? w[0][l] : 1;
    seen[l] = 1;
  }
}

/* The indices that a scan returned, as the bits of x: position k won when its index is k itself, counted from lane l's want[l] on. */
INLINE uint64_t wanted(double want, long k) { return bits(want + k + 0x1p52) - bits(0x1p52); }

INLINE void chosen_forward(const double *want, scan_tile x, double (*w)[SCAN_LANES], long k, long delta, long n) {
  for (long i = 0; i < n; i++) EACH_LANE w[i][l] = bits(x[i][l]) == wanted(want[l], (k + i) * delta) ? 1 : 0;
}

/* Whether every index is its position's own or the one before, which last holds the bits of: a scan returns no other. */
INLINE void chosen_check(const double *want, double *last, double *scans, scan_tile x, long k, long delta, long n) {
  for (long i = 0; i < n; i++) EACH_LANE {
    uint64_t index = bits(x[i][l]);
    double fine = index == bits(last[l]) ? scans[l] : 0;
    scans[l] = index == wanted(want[l], (k + i) * delta) ? scans[l] : fine;
    last[l] = x[i][l];
  }
}

/* What leaves the lanes is dy from before their first winner. */
INLINE void chosen_fold(const double *want, double *won, double *leaving, scan_tile x, scan_tile dy, long k, long delta, long n) {
  for (long i = 0; i < n; i++) EACH_LANE {
    won[l] = bits(x[i][l]) == wanted(want[l], (k + i) * delta) ? 1 : won[l];
    leaving[l] += won[l] != 0 ? 0 : dy[i][l];
  }
}

/* kept and gain are the shares of y' and x in the new sum; -inf adds nothing, and equal infinities share equally. */
INLINE void soft_forward(double *m, double *s, scan_tile x, double (*w)[SCAN_LANES], long n) {
  EACH_LANE m[l] = s[l] == 0 ? -INFINITY : m[l];
  for (long k = 0; k < n; k++) EACH_LANE {
    double v = x[k][l], top = m[l], gap = v == top ? 0 : -fabs(v - top), e = exponential(gap);
    double kept = v > top ? s[l] * e : s[l], gain = v > top ? 1 : e;
    gain = v == -INFINITY ? 0 : gain;
    double sum = kept + gain, divisor = sum == 0 ? 1 : sum;
    m[l] = v > top ? v : top;
    s[l] = sum;
    if (w) {
      w[k][l] = gain / divisor;
      x[k][l] = sum == 0 ? 1 : kept / divisor;
    }
  }
}

INLINE void forward(enum scan_kind kind, double *a, double *b, scan_tile x, double (*w)[SCAN_LANES], long n) {
  switch (kind) {
    case SCAN_PRODUCT: product_forward(a, x, w, n); break;
    case SCAN_MAX_LAST: record_forward(1, 0, a, b, x, w, n); break;
    case SCAN_MAX_FIRST: record_forward(1, 1, a, b, x, w, n); break;
    case SCAN_MIN_LAST: record_forward(-1, 0, a, b, x, w, n); break;
    case SCAN_MIN_FIRST: record_forward(-1, 1, a, b, x, w, n); break;
    case SCAN_SOFT: soft_forward(a, b, x, w, n); break;
    default: break;
  }
}

/* Backward: dx in place of dy. entering is c R from the right. A maximum selects, so that an infinity or a NaN stays in its run. */
INLINE void backward(enum scan_kind kind, double *restrict entering, scan_tile c, scan_tile w, scan_tile dy, long n) {
  for (long k = n - 1; k >= 0; k--) EACH_LANE {
    double r = dy[k][l] + entering[l];
    switch (kind) {
      case SCAN_SUM: dy[k][l] = entering[l] = r; break;
      case SCAN_PRODUCT: dy[k][l] = cut(w[k][l], r), entering[l] = cut(c[k][l], r); break;
      case SCAN_SOFT: dy[k][l] = w[k][l] * r, entering[l] = c[k][l] * r; break;
      default: dy[k][l] = w[k][l] != 0 ? r : 0, entering[l] = w[k][l] != 0 ? 0 : r;
    }
  }
}

INLINE void sum_fold(double *leaving, scan_tile dy, long n) {
  for (long k = n - 1; k >= 0; k--) EACH_LANE leaving[l] += dy[k][l];
}

/* The product of a lane as m 2^e with m in [0.5, 1), which leaves the range of float64 only where the product of a whole row does,
   and what leaves the lane; both from the last position on. */
INLINE void product_fold(double *m, double *e, double *leaving, scan_tile x, scan_tile dy, long n) {
  const uint64_t exponent = (uint64_t)0x7ff << 52, half = (uint64_t)1022 << 52;
  for (long k = n - 1; k >= 0; k--) EACH_LANE {
    double v = x[k][l], grow = fabs(v) < 0x1p-900 ? 200 : 0, p = cut(m[l], v * power(grow));
    double fraction = number((bits(p) & ~exponent) | half), whole = number((bits(p) & exponent) >> 52 | bits(0x1p52)) - 0x1p52;
    fraction = p == 0 ? p : fraction;
    m[l] = p - p == 0 ? fraction : p;
    e[l] += whole - 1022 - grow;
    leaving[l] = cut(v, dy[k][l] + leaving[l]);
  }
}

#define POSITIONS(k) (call->n - (k) < SCAN_POSITIONS ? call->n - (k) : SCAN_POSITIONS)

#define BY_INDEX(kind) ((kind) == SCAN_CHOSEN || (kind) == SCAN_CHOSEN_DOWN)
#define DELTA(kind) ((kind) == SCAN_CHOSEN ? 1 : -1)

INLINE void fold(enum scan_kind kind, const scan_call *call, long lane, long lanes, double *states, double *carries) {
  scan_tile x, dy;
  lanes_of a = {0}, b = {0}, scans, won = {0}, leaving = {0};
  int leaves = (kind == SCAN_SUM || kind == SCAN_PRODUCT || BY_INDEX(kind)) && carries;
  EACH_LANE scans[l] = 1;
  if (kind == SCAN_PRODUCT) EACH_LANE a[l] = 1;
  if (BY_INDEX(kind)) for (long l = 0; l < lanes; l++) a[l] = states[2 * l], b[l] = states[2 * l + 1];
  for (long l = 0; leaves && l < lanes; l++) leaving[l] = carries[l];
  for (long last = (call->n - 1) / SCAN_POSITIONS, i = 0; i <= last; i++) {
    long k = (kind == SCAN_SUM || kind == SCAN_PRODUCT ? last - i : i) * SCAN_POSITIONS, n = POSITIONS(k);
    if (kind != SCAN_SUM) sw_scan_load(x, &call->x, lane, lanes, k, n);
    if (leaves) sw_scan_load(dy, &call->dy, lane, lanes, k, n);
    if (BY_INDEX(kind)) chosen_check(a, b, scans, x, k, DELTA(kind), n);
    if (BY_INDEX(kind) && leaves) chosen_fold(a, won, leaving, x, dy, k, DELTA(kind), n);
    if (kind == SCAN_SUM) sum_fold(leaving, dy, n);
    if (kind == SCAN_PRODUCT) product_fold(a, b, leaving, x, dy, n);
    forward(kind == SCAN_PRODUCT ? SCAN_SUM : kind, a, b, x, NULL, n);
  }
  for (long l = 0; l < lanes; l++) {
    states[2 * l] = BY_INDEX(kind) ? scans[l] : a[l];
    states[2 * l + 1] = BY_INDEX(kind) ? won[l] : b[l];
    if (leaves) carries[l] = leaving[l];
  }
}

/* The states before the tiles of the lanes. */
INLINE void mark(enum scan_kind kind, const scan_call *call, long lane, long lanes, const double *states, lanes_of (*checkpoint)[2]) {
  scan_tile x;
  lanes_of a = {0}, b = {0};
  for (long l = 0; l < lanes; l++) a[l] = states[2 * l], b[l] = states[2 * l + 1];
  for (long k = 0; k < call->n; k += SCAN_POSITIONS, checkpoint++) {
    memcpy(checkpoint[0][0], a, sizeof a), memcpy(checkpoint[0][1], b, sizeof b);
    if (k + SCAN_POSITIONS >= call->n) break;
    sw_scan_load(x, &call->x, lane, lanes, k, SCAN_POSITIONS);
    forward(kind, a, b, x, NULL, SCAN_POSITIONS);
  }
}

/* The same, and what leaves the lanes: dy with its links back to their first position. */
INLINE void leave(enum scan_kind kind, const scan_call *call, long lane, long lanes, const double *states, double *carries,
                  lanes_of (*checkpoint)[2]) {
  scan_tile x, w, dy;
  lanes_of a = {0}, b = {0}, link, leaving = {0};
  EACH_LANE link[l] = 1;
  for (long l = 0; l < lanes; l++) a[l] = states[2 * l], b[l] = states[2 * l + 1];
  for (long first = 0; first < call->n; first += SCAN_POSITIONS, checkpoint++) {
    long n = POSITIONS(first);
    memcpy(checkpoint[0][0], a, sizeof a), memcpy(checkpoint[0][1], b, sizeof b);
    sw_scan_load(x, &call->x, lane, lanes, first, n);
    sw_scan_load(dy, &call->dy, lane, lanes, first, n);
    forward(kind, a, b, x, w, n);
    for (long k = 0; kind == SCAN_SOFT && k < n; k++) EACH_LANE {
      link[l] *= x[k][l];
      leaving[l] += link[l] * dy[k][l];
    }
    for (long k = 0; kind != SCAN_SOFT && k < n; k++) EACH_LANE {
      link[l] *= 1 - w[k][l];
      leaving[l] += link[l] != 0 ? dy[k][l] : 0;
    }
  }
  for (long l = 0; l < lanes; l++) carries[l] = leaving[l];
}

INLINE void walk(enum scan_kind kind, const scan_call *call, long lane, long lanes, const double *states, double *carries,
                 lanes_of (*checkpoint)[2]) {
  scan_tile x, w, dy;
  lanes_of want = {0}, entering = {0};
  for (long l = 0; l < lanes; l++) entering[l] = carries[l];
  if (BY_INDEX(kind)) for (long l = 0; l < lanes; l++) want[l] = states[2 * l];
  for (long i = (call->n - 1) / SCAN_POSITIONS; i >= 0; i--) {
    long k = i * SCAN_POSITIONS, n = POSITIONS(k);
    if (kind != SCAN_SUM) sw_scan_load(x, &call->x, lane, lanes, k, n);
    if (BY_INDEX(kind)) chosen_forward(want, x, w, k, DELTA(kind), n);
    else forward(kind, checkpoint[i][0], checkpoint[i][1], x, w, n);
    sw_scan_load(dy, &call->dy, lane, lanes, k, n);
    backward(kind, entering, x, w, dy, n);
    sw_scan_store(&call->dx, dy, lane, lanes, k, n);
  }
  for (long l = 0; l < lanes; l++) carries[l] = entering[l];
}

/* Of the 32 lanes from one on: how many there are, and their checkpoints. */
#define LANES_FROM(lane) (call->lanes - (lane) < SCAN_LANES ? call->lanes - (lane) : SCAN_LANES)
#define CHECKPOINTS(lane) ((lanes_of (*)[2])checkpoints + (lane) / SCAN_LANES * ((call->n + SCAN_POSITIONS - 1) / SCAN_POSITIONS))
#define EACH_GROUP for (long lane = 0; lane < call->lanes; lane += SCAN_LANES)

#define LOOPS "scan_kinds_loops.h"
#include "each_processor.h"

#define EACH_KIND(function, arguments) \
  switch (call->kind) { \
    case SCAN_SUM: CHOSEN(scan_##function##_sum) arguments; break; \
    case SCAN_PRODUCT: CHOSEN(scan_##function##_product) arguments; break; \
    case SCAN_MAX_LAST: CHOSEN(scan_##function##_max_last) arguments; break; \
    case SCAN_MAX_FIRST: CHOSEN(scan_##function##_max_first) arguments; break; \
    case SCAN_MIN_LAST: CHOSEN(scan_##function##_min_last) arguments; break; \
    case SCAN_MIN_FIRST: CHOSEN(scan_##function##_min_first) arguments; break; \
    case SCAN_SOFT: CHOSEN(scan_##function##_soft) arguments; break; \
    case SCAN_CHOSEN: CHOSEN(scan_##function##_chosen) arguments; break; \
    case SCAN_CHOSEN_DOWN: CHOSEN(scan_##function##_chosen_down) arguments; break; \
  }

void sw_scan_fold(const scan_call *call, double *states, double *carries) { EACH_KIND(fold, (call, states, carries)) }

void sw_scan_leave(const scan_call *call, const double *states, double *carries, double *checkpoints) {
  EACH_KIND(leave, (call, states, carries, checkpoints))
}

void sw_scan_walk(const scan_call *call, const double *states, double *carries, double *checkpoints) {
  EACH_KIND(walk, (call, states, carries, checkpoints))
}

int sw_scan_outside(const scan_call *call) {
  scan_tile x;
  int outside = 0;
  EACH_GROUP for (long k = 0; k < call->n; k += SCAN_POSITIONS) {
    sw_scan_load(x, &call->x, lane, LANES_FROM(lane), k, POSITIONS(k));
    for (long i = 0; i < POSITIONS(k); i++) for (long l = 0; l < LANES_FROM(lane); l++) outside |= bits(x[i][l]) >= (uint64_t)call->row;
  }
  return outside;
}

/* Indices of any order: dy is added where they say, from the last position on, into sums[positions][lanes]. */
void sw_scan_add(const scan_call *call, int64_t origin, int64_t delta, double *sums) {
  scan_tile tile;
  long lanes = call->lanes;
  const int64_t *indices = (const int64_t *)(uintptr_t)call->x.data;
  memset(sums, 0, sizeof(double) * call->n * lanes);
  for (long i = (call->n - 1) / SCAN_POSITIONS; i >= 0; i--) {
    long first = i * SCAN_POSITIONS;
    sw_scan_load(tile, &call->dy, 0, lanes, first, POSITIONS(first));
    for (long k = POSITIONS(first) - 1; k >= 0; k--)
      for (long l = 0; l < lanes; l++)
        sums[(origin + delta * indices[call->x.at[l] + (first + k) * call->x.step]) * lanes + l] += tile[k][l];
  }
  for (long first = 0; first < call->n; first += SCAN_POSITIONS) {
    for (long k = 0; k < POSITIONS(first); k++) memcpy(tile[k], sums + (first + k) * lanes, sizeof(double) * lanes);
    sw_scan_store(&call->dx, tile, 0, lanes, first, POSITIONS(first));
  }
}

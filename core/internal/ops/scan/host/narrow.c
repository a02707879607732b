/* Forward scans of contiguous rows, or of two or four rows that alternate in memory, which
   need no tiles: vectors hold four numbers that are adjacent in memory. */
#ifndef __clang__
#pragma GCC optimize("no-trapping-math", "no-math-errno")
#endif

#include <stddef.h>

#include "forward.h"
#include "forward_steps.h"

#ifdef VECTOR_256
#include <immintrin.h>
#endif

typedef double four __attribute__((vector_size(32), may_alias));
typedef double loose_four __attribute__((vector_size(32), aligned(8), may_alias));
typedef int64_t INTS4 __attribute__((vector_size(32), may_alias));
enum { BLOCK = 16 };

#define ONES ((four){1, 1, 1, 1})
#define LOAD(p) ((four)*(const loose_four *)(p))
#define STORE(p, v) (*(loose_four *)(p) = (v))
#define SHUFFLE __builtin_shufflevector
#define ALL(condition) ((INTS4)(condition)) /* all bits, or none */
#define SELECT(mask, a, b) ((four)(((INTS4)(a) & (mask)) | ((INTS4)(b) & ~(mask))))
#define ABS(v) ((four)((INTS4)(v) & INT64_MAX))

/* A part of a lane: `count` numbers of c alternating rows, which are adjacent in memory. In reverse
   the scan begins at the end. here is the index of the first position, and delta the distance to
   the next. to is NULL in an upsweep. */
typedef struct {
  const double *from;
  double *to;
  int64_t *found;
  long count, reverse;
  int64_t here, delta;
} segment;

/* The place of number i in scan order. */
INLINE long place_of(int c, const segment *s, long i) {
  return s->reverse ? s->count - c - i / c * c + i % c : i;
}

/* Four numbers in scan order. */
INLINE four turned(int c, four v) {
  if (c == 1) return SHUFFLE(v, v, 3, 2, 1, 0);
  if (c == 2) return SHUFFLE(v, v, 2, 3, 0, 1);
  return v;
}

INLINE four read_four(int c, const segment *s, long i) {
  return s->reverse ? turned(c, LOAD(s->from + s->count - 4 - i)) : LOAD(s->from + i);
}

INLINE void write_four(int c, const segment *s, long i, four v) {
  if (s->to == NULL) return;
  if (s->reverse) STORE(s->to + s->count - 4 - i, turned(c, v));
  else STORE(s->to + i, v);
}

INLINE void write_index(int c, const segment *s, long i, four v) {
  if (s->to == NULL) return;
  if (s->reverse) STORE(s->found + s->count - 4 - i, turned(c, v));
  else STORE(s->found + i, v);
}

INLINE void write_one(int c, const segment *s, long i, double v) {
  if (s->to) s->to[place_of(c, s, i)] = v;
}

/* The last number of each of c alternating rows, repeated. */
INLINE four last_of(int c, four v) {
  if (c == 1) return SHUFFLE(v, v, 3, 3, 3, 3);
  if (c == 2) return SHUFFLE(v, v, 2, 3, 2, 3);
  return v;
}

/* Repeats the states of c rows in a vector. */
INLINE void repeat(int c, double *state) {
  for (long j = c; j < 4; j++) state[j] = state[j - c];
}

#define PRODUCT_MOST 0x1p200
#define PRODUCT_LEAST 0x1p-200

/* How products m 2^e become numbers: m first second if is_scaled, else m. */
typedef struct {
  double first[4], second[4];
  int is_scaled, is_finite;
} product_scale;

/* Normalizes m, with an e of 0 if that is possible. */
static product_scale scale_of(double *m, double *e) {
  product_scale s = {.is_scaled = 0, .is_finite = 1};
  for (long j = 0; j < 4; j++) {
    if (m[j] == 0 || m[j] - m[j] != 0) e[j] = 0;
    else scale(&m[j], &e[j]);
    if (fabs(e[j]) < 150) m[j] *= power(e[j]), e[j] = 0;
    s.is_scaled |= e[j] != 0, s.is_finite &= m[j] - m[j] == 0;
    powers_of(e[j], &s.first[j], &s.second[j]);
  }
  return s;
}

#define LOOPS "narrow_loops.h"
#include "each_processor.h"

/* Describes `count` adjacent numbers of an operand as lanes of one position. */
INLINE void adjacent(scan_operand *o, const scan_operand *from, int64_t offset) {
  o->data = from->data, o->type = from->type, o->step = 0, o->regular = o->pitch = 1, o->offset[0] = offset;
}

INLINE int64_t lane_offset(const scan_operand *o, long lane) {
  return o->regular ? o->offset[0] + lane * o->pitch : o->offset[lane];
}

/* Scans one lane, in segments that are converted to float64; float64 needs no conversion. */
static void scan_lane(const scan_forward_call *call, int is_upsweep, long lane, double *a, double *b, double *index) {
  double buffer[SCAN_TILE];
  scan_operand x, y;
  long c = call->narrow, all = call->n * c, reverse = call->x.step < 0, exact = call->x.type == 1;
  int64_t low = reverse ? c - all : 0; /* from the first position in scan order to the lowest address */
  segment s = {.reverse = reverse, .delta = call->delta, .here = call->origin};
  if (call->with_index && call->split_length < call->row_length)
    s.here += call->delta * ((call->first_lane + lane) / call->rows * call->split_length);
  int64_t from = lane_offset(&call->x, lane) + low, to = is_upsweep ? 0 : lane_offset(&call->y, lane) + low;
  int64_t *found = call->with_index && !is_upsweep
    ? (int64_t *)(uintptr_t)call->indices.data + lane_offset(&call->indices, lane) + low : NULL;
  long most = exact ? all : SCAN_TILE;
  for (long done = 0; done < all; done += s.count) {
    s.count = all - done < most ? all - done : most;
    long at = reverse ? all - done - s.count : done;
    if (exact) {
      s.from = (const double *)(uintptr_t)call->x.data + from + at;
      s.to = is_upsweep ? NULL : (double *)(uintptr_t)call->y.data + to + at;
    } else {
      scan_window window = {0, s.count, s.count, 0, 1, 0};
      adjacent(&x, &call->x, from + at);
      sw_scan_load(buffer, &x, &window);
      s.from = buffer, s.to = is_upsweep ? NULL : buffer;
    }
    s.found = found ? found + at : NULL;
    if (done == 0 && index && b[0] == 0) { /* the first position of a row is a record */
      for (long j = 0; j < 4; j++) {
        double v = s.from[place_of(c, &s, j % c)];
        a[j] = call->kind >= SCAN_MIN_LAST ? -v : v, index[j] = number(s.here), b[j] = 1;
      }
    }
    CHOSEN(scan_narrow)(call, &s, a, b, index);
    s.here += call->delta * (s.count / c);
    if (exact || is_upsweep) continue;
    scan_window window = {0, s.count, s.count, 0, 1, 0};
    adjacent(&y, &call->y, to + at);
    sw_scan_store(&y, buffer, &window);
  }
}

void sw_scan_forward_narrow(const scan_forward_call *call, int is_upsweep, double *states) {
  long c = call->narrow, is_record = call->kind != SCAN_SUM && call->kind != SCAN_PRODUCT;
  for (long lane = 0; lane < call->lanes; lane++) {
    double a[4], b[4] = {0}, index[4] = {0}, *state = states ? states + 3 * lane * c : NULL;
    for (long j = 0; j < 4; j++) a[j] = call->kind == SCAN_PRODUCT;
    if (state && !is_upsweep) for (long j = 0; j < 4; j++)
        a[j] = state[3 * (j % c)], b[j] = state[3 * (j % c) + 1], index[j] = state[3 * (j % c) + 2];
    scan_lane(call, is_upsweep, lane, a, b, is_record ? index : NULL);
    if (is_upsweep) for (long j = 0; j < c; j++) state[3 * j] = a[j], state[3 * j + 1] = b[j], state[3 * j + 2] = index[j];
  }
}

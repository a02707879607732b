/* Forward scans that need no tiles. Narrow ones are of a contiguous row, or of two or four rows
   that alternate in contiguous memory, as the columns of a matrix with so few columns do: a vector
   holds four numbers that are adjacent in memory. Short ones are of many contiguous rows, eight at
   a time: a vector holds one position of four rows.

   Floating-point exception flags are not read. With correct flags, compilers would turn selections
   into branches. */
#ifndef __clang__
#pragma GCC optimize("no-trapping-math", "no-math-errno")
#endif

#include <stddef.h>

#include "forward.h"
#include "forward_steps.h"

#ifdef VECTOR_256
#include <immintrin.h>
#endif

/* Vectors are written out here, so that O3 would only make the portable code longer. */
#undef TARGET_PORTABLE
#define TARGET_PORTABLE

typedef double four __attribute__((vector_size(32), may_alias));
typedef double loose_four __attribute__((vector_size(32), aligned(8), may_alias));
typedef float loose_floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef int64_t INTS4 __attribute__((vector_size(32), may_alias));
enum { BLOCK = 16 };

/* The numbers of a segment: rows of the table of dtypes, or the float64 that 16 bits were converted
   to. */
enum { NARROW_F32, NARROW_F64, NARROW_F16, NARROW_BF16, NARROW_CONVERTED };

#define ONES ((four){1, 1, 1, 1})
#define LOAD(p) ((four)*(const loose_four *)(p))
#define STORE(p, v) (*(loose_four *)(p) = (v))
#define SHUFFLE __builtin_shufflevector
#define ALL(condition) ((INTS4)(condition)) /* all bits, or none */
#define SELECT(mask, a, b) ((four)(((INTS4)(a) & (mask)) | ((INTS4)(b) & ~(mask))))
#define ABS(v) ((four)((INTS4)(v) & INT64_MAX))

/* A part of a lane: `count` numbers of c alternating rows, which are adjacent in memory. In reverse
   the scan begins at the end. here is the index of the first position, and delta the distance to
   the next. to is 0 in an upsweep and where y is left out; found is NULL unless indices are
   stored. */
typedef struct {
  uintptr_t from, to;
  int64_t *found;
  long count, reverse;
  int64_t here, delta;
} segment;

/* The place of number i in scan order. */
INLINE long place_of(int c, const segment *s, long i) {
  return s->reverse ? s->count - c - i / c * c + i % c : i;
}

/* Four numbers in scan order. A macro, as compilers refuse to pass vectors to a function that is
   compiled for less than AVX. */
#define TURNED(c, v) \
  ((c) == 1 ? (four)SHUFFLE(v, v, 3, 2, 1, 0) : (c) == 2 ? (four)SHUFFLE(v, v, 2, 3, 0, 1) : (four)(v))

/* The last number of each of c alternating rows, repeated. */
#define LAST_OF(c, v) \
  ((c) == 1 ? (four)SHUFFLE(v, v, 3, 3, 3, 3) : (c) == 2 ? (four)SHUFFLE(v, v, 2, 3, 2, 3) : (four)(v))

/* Repeats the states of c rows in a vector. */
INLINE void repeat(int c, double *state) {
  for (long j = c; j < 4; j++) state[j] = state[j - c];
}

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

INLINE int64_t lane_offset(const scan_operand *o, long lane) {
  return o->regular ? o->offset[0] + lane * o->pitch : o->offset[lane];
}

#define LOOPS "narrow_loops.h"
#define NO_512 /* vectors of four float64 numbers */
#include "../../../cpu/each_processor.h"

/* Describes `count` adjacent numbers of an operand as lanes of one position. */
INLINE void adjacent(scan_operand *o, const scan_operand *from, int64_t offset) {
  o->data = from->data, o->lengths = 0, o->type = from->type, o->step = 0;
  o->regular = o->pitch = 1, o->offset[0] = offset;
}

/* Combines the states of four alternating sequences to those of c rows. */
static void fold(const scan_forward_call *call, double *a, double *b) {
  for (long c = call->narrow, j = c; j < 4; j++) {
    if (call->kind == SCAN_PRODUCT) {
      b[j % c] += b[j];
      product_step(1, a[j], &a[j % c], &b[j % c]);
    } else {
      a[j % c] = compensated_sum(1, a[j], a[j % c], &b[j % c]);
      b[j % c] += b[j];
    }
  }
}

/* Scans one lane. Narrow numbers are converted to float64 in segments, except for maxima of
   bfloat16, which are not rounded. Sums and products of an upsweep do not depend on the order, so
   that four sequences of a lane alternate. */
static void scan_lane(const scan_forward_call *call, int is_upsweep, long lane, double *a, double *b, double *index) {
  double buffer[SCAN_TILE];
  scan_operand x, y;
  long c = call->narrow, all = call->n * c, reverse = call->x.step < 0;
  long has_loops = call->x.type == DTYPE_bf16 || (call->x.type == DTYPE_f16 && !index);
  long converts = call->x.type > DTYPE_f64 && (!has_loops || (!index && !is_upsweep));
  long size = DTYPE_SIZE[call->x.type];
  long width = is_upsweep && !index ? 4 : c, rest = all % width, stores = !is_upsweep && call->y.data;
  int64_t low = reverse ? c - all : 0; /* from the first position in scan order to the lowest address */
  segment s = {.reverse = reverse, .delta = call->delta, .here = call->origin};
  if (call->with_index && call->split_length < call->row_length)
    s.here += call->delta * ((call->first_lane + lane) / call->rows * call->split_length);
  if (call->firsts) s.here += ((const int64_t *)(uintptr_t)call->firsts)[(call->first_lane + lane) % call->rows];
  int64_t from = lane_offset(&call->x, lane) + low, to = stores ? lane_offset(&call->y, lane) + low : 0;
  int64_t *found = call->with_index && !is_upsweep && call->indices.data
    ? (int64_t *)(uintptr_t)call->indices.data + lane_offset(&call->indices, lane) + low : NULL;
  for (long done = 0; done < all; done += s.count) {
    s.count = all - rest - done;
    if (s.count == 0) s.count = rest, width = c, fold(call, a, b);
    else if (converts && s.count > SCAN_TILE) s.count = SCAN_TILE;
    long at = reverse ? all - done - s.count : done;
    if (converts) {
      scan_window window = {0, s.count, s.count, 0, 1, 0};
      adjacent(&x, &call->x, from + at);
      sw_scan_load(buffer, &x, &window);
      s.from = (uintptr_t)buffer, s.to = is_upsweep ? 0 : s.from;
    } else {
      s.from = call->x.data + size * (from + at);
      s.to = stores ? call->y.data + size * (to + at) : 0;
    }
    s.found = found ? found + at : NULL;
    if (done == 0 && index) { /* the first position of a row is a record */
      for (long j = 0; j < 4; j++) if (b[j] == 0) {
        long place = place_of(c, &s, j % c);
        double v = converts ? ((const double *)s.from)[place]
                 : call->x.type == DTYPE_f32 ? ((const float *)s.from)[place]
                 : call->x.type == DTYPE_bf16 ? widen_bf16_one(((const uint16_t *)s.from)[place])
                                     : ((const double *)s.from)[place];
        a[j] = call->kind >= SCAN_MIN_LAST ? -v : v, index[j] = number(s.here), b[j] = 1;
      }
    }
    CHOSEN_256(scan_narrow)(call, width, &s, a, b, index);
    s.here += call->delta * (s.count / c);
    if (!converts || !stores) continue;
    scan_window window = {0, s.count, s.count, 0, 1, 0};
    adjacent(&y, &call->y, to + at);
    sw_scan_store(&y, buffer, &window);
  }
  if (width != c) fold(call, a, b);
}

void sw_scan_forward_narrow(const scan_forward_call *call, int is_upsweep, double *states) {
  long c = call->narrow, is_record = call->kind != SCAN_SUM && call->kind != SCAN_PRODUCT;
  for (long lane = 0; lane < call->lanes; lane++) {
    double a[4], b[4] = {0}, index[4] = {0}, *state = states ? states + 3 * lane * c : NULL;
    for (long j = 0; j < 4; j++) a[j] = call->kind == SCAN_PRODUCT;
    if (state && !is_upsweep) for (long j = 0; j < 4; j++)
        a[j] = state[3 * (j % c)], b[j] = state[3 * (j % c) + 1], index[j] = state[3 * (j % c) + 2];
    scan_lane(call, is_upsweep, lane, a, b, is_record ? index : NULL);
    for (long j = 0; state && j < c; j++)
      state[3 * j] = a[j], state[3 * j + 1] = b[j], state[3 * j + 2] = index[j];
  }
}

int sw_scan_forward_short(const scan_forward_call *call) {
  const scan_operand *x = &call->x, *y = &call->y, *found = call->with_index ? &call->indices : y;
  if (x->type > DTYPE_f64 || call->lanes < 8 || call->n == 1) return 0;
  if (x->lengths || (call->with_index && call->firsts)) return 0;
  if ((x->step != 1 && x->step != -1) || y->step != x->step || found->step != x->step) return 0;
  CHOSEN_256(scan_short)(call);
  return 1;
}

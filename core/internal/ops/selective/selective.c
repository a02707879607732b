/* Selective scans and their gradients on the CPU: selective.h.

   Floating-point exception flags are not read. With correct flags, compilers would turn selections
   into branches. */
#ifndef __clang__
#pragma GCC optimize("no-trapping-math", "no-math-errno")
#endif

#include "selective.h"

#include <math.h>
#include <stddef.h>

#include "../../cpu/exponential.h"

#define LANES SELECTIVE_LANES
#define CHUNK SELECTIVE_CHUNK
#define EACH_LANE for (long l = 0; l < LANES; l++)

/* Copies positions of lanes from memory to a tile, and back: position by position if lanes are
   adjacent, and else in blocks of positions, so that whole cache lines of a tile are written. */
#define COPIES(type, suffix) \
  static void copy_in_##suffix(type *restrict to, const selective_operand *o, long lanes, long n) { \
    const type *from = (const type *)o->data; \
    if (lanes < LANES) memset(to, 0, sizeof(type) * LANES * n); \
    if (o->lane == 1 && lanes == LANES) { \
      for (long t = 0; t < n; t++) memcpy(to + t * LANES, from + t * o->step, sizeof(type) * LANES); \
      return; \
    } \
    for (long first = 0; first < n; first += LANES) { \
      long end = first + LANES < n ? first + LANES : n; \
      for (long l = 0; l < lanes; l++) for (long t = first; t < end; t++) \
        to[t * LANES + l] = from[l * o->lane + t * o->step]; \
    } \
  } \
  static void copy_out_##suffix(const selective_operand *o, const type *restrict from, long lanes, long n) { \
    type *to = (type *)o->data; \
    if (o->lane == 1 && lanes == LANES) { \
      for (long t = 0; t < n; t++) memcpy(to + t * o->step, from + t * LANES, sizeof(type) * LANES); \
      return; \
    } \
    for (long first = 0; first < n; first += LANES) { \
      long end = first + LANES < n ? first + LANES : n; \
      for (long l = 0; l < lanes; l++) for (long t = first; t < end; t++) \
        to[l * o->lane + t * o->step] = from[t * LANES + l]; \
    } \
  }
COPIES(uint16_t, 16)
COPIES(uint32_t, 32)
COPIES(uint64_t, 64)
#undef COPIES

static void load_tile(void *to, const selective_operand *from, long dtype, long lanes, long n) {
  uint16_t raw[CHUNK * LANES];
  if (dtype == DTYPE_f64) copy_in_64(to, from, lanes, n);
  else if (dtype == DTYPE_f32) copy_in_32(to, from, lanes, n);
  else {
    copy_in_16(raw, from, lanes, n);
    sw_widen(dtype, to, raw, n * LANES);
  }
}

static void store_tile(const selective_operand *to, const void *from, long dtype, long lanes, long n) {
  uint16_t raw[CHUNK * LANES];
  if (dtype == DTYPE_f64) copy_out_64(to, from, lanes, n);
  else if (dtype == DTYPE_f32) copy_out_32(to, from, lanes, n);
  else {
    sw_narrow(dtype, raw, from, n * LANES);
    copy_out_16(to, raw, lanes, n);
  }
}

#define ROWS(type) \
  for (long s = 0; s < states; s++) for (long t = 0; t < n; t++) \
    ((type *)to)[s * CHUNK + t] = ((const type *)from->data)[s * from->lane + t * from->step];

void sw_selective_load_rows(uintptr_t to, const selective_operand *from, int64_t dtype, int64_t states, int64_t n) {
  uint16_t raw[CHUNK];
  if (dtype == DTYPE_f64) ROWS(double)
  else if (dtype == DTYPE_f32) ROWS(float)
  else for (long s = 0; s < states; s++) {
    const uint16_t *row = (const uint16_t *)from->data + s * from->lane;
    for (long t = 0; t < n; t++) raw[t] = row[t * from->step];
    sw_widen(dtype, (float *)to + s * CHUNK, raw, n);
  }
}
#undef ROWS

#define NUMBERS(type) \
  for (long s = 0; s < states; s++) for (long l = 0; l < LANES; l++) \
    ((type *)to)[s * LANES + l] = l < lanes ? ((const type *)from->data)[l * from->lane + s * from->step] : 0;

void sw_selective_load_lanes(uintptr_t to, const selective_operand *from, int64_t dtype, int64_t states,
                             int64_t lanes) {
  if (dtype == DTYPE_f64) NUMBERS(double)
  else NUMBERS(float)
}
#undef NUMBERS

/* log(1 + exp(x)), without overflow and with the digits of a small result. */
INLINE double softplus_of(double x) { return (x > 0 ? x : 0) + log_of_one_plus(exponential(-fabs(x), 0)); }

/* 1 / (1 + exp(-x)) */
INLINE double sigmoid_of(double x) {
  double e = exponential(-fabs(x), 0);
  return (x >= 0 ? 1 : e) / (1 + e);
}

/* The coefficients of (exp(r) - 1 - r) / r^2, from the highest power down: a minimax fit of error
   3e-9, and the Taylor series. */
static const float EXP_SERIES_F32[] = {0x1.6a2350p-10f, 0x1.123a6cp-7f, 0x1.5558f4p-5f, 0x1.555490p-3f, 0x1.fffffcp-2f};
static const double EXP_SERIES_F64[] = {
  1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
  1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5,
};

/* The derivative of x / (1 + exp(-x)), which is s (1 + x (1 - s)) with s = 1 / (1 + exp(-x)).
   Around its root, -1.278, its factor 1 + x + exp(x) loses digits. There it is
   d + exp(root) (exp(d) - 1), where d = x - root. The root is the sum of two constants, so that d
   keeps its digits. */
INLINE double silu_slope_of(double x) {
  const double root = -1.278464542761073795, rest = -1.0946994183093437e-16;
  double e = exponential(-fabs(x), 0), whole = 1 + e, d = (x - root) - rest, p = 0;
  for (unsigned i = 0; i < sizeof EXP_SERIES_F64 / sizeof(double); i++) p = p * d + EXP_SERIES_F64[i];
  double factor = fabs(d) < 0.0625 ? d + 0.2784645427610738 * (d + d * d * p) : (1 + x) + e;
  return (x >= 0 ? whole + x * e : e * factor) / (whole * whole);
}

#ifdef VECTOR_256
#include <immintrin.h>
#endif

#define LOOPS "selective_widths.h"
#include "../../cpu/each_processor.h"

static void *tile_of(const selective_call *c, long tile) {
  return (char *)c->tiles + tile * CHUNK * LANES * (c->dtype == DTYPE_f64 ? 8 : 4);
}

static void load(const selective_call *c, long tile, const selective_operand *from) {
  if (from->data) load_tile(tile_of(c, tile), from, c->dtype, c->lanes, c->positions);
}

static void store(const selective_call *c, const selective_operand *to, long tile) {
  if (to->data) store_tile(to, tile_of(c, tile), c->dtype, c->lanes, c->positions);
}

void sw_selective_forward(const selective_call *c) {
  load(c, TILE_U, &c->u), load(c, TILE_DELTA, &c->delta), load(c, TILE_Z, &c->z);
  if (c->dtype == DTYPE_f64) CHOSEN(selective_forward_f64)(c);
  else CHOSEN(selective_forward_f32)(c);
  store(c, &c->y, TILE_Y);
}

void sw_selective_backward(const selective_call *c) {
  load(c, TILE_U, &c->u), load(c, TILE_DELTA, &c->delta), load(c, TILE_Z, &c->z), load(c, TILE_DY, &c->dy);
  if (c->dtype == DTYPE_f64) CHOSEN(selective_backward_f64)(c);
  else CHOSEN(selective_backward_f32)(c);
  store(c, &c->du, TILE_DINPUT), store(c, &c->ddelta, TILE_DSTEP), store(c, &c->dz, TILE_Z);
}

void sw_selective_add_rows(const selective_operand *to, int64_t dtype, uintptr_t from, int64_t rows,
                           int64_t distance, int64_t n) {
  double sums[CHUNK], lost[CHUNK]; /* rounding errors, as in add_lanes */
  float wide[CHUNK];
  uint16_t raw[CHUNK];
  for (long first = 0; first < n; first += CHUNK) {
    long count = n - first < CHUNK ? n - first : CHUNK;
    memset(sums, 0, sizeof sums), memset(lost, 0, sizeof lost);
    for (long row = 0; row < rows; row++) {
      long at = row * distance + first;
      for (long t = 0; t < count; t++) {
        double x = dtype == DTYPE_f64 ? ((const double *)from)[at + t] : ((const float *)from)[at + t];
        double before = sums[t], sum = before + x, added = sum - before;
        double error = (before - (sum - added)) + (x - added);
        sums[t] = sum, lost[t] += error - error == 0 ? error : 0;
      }
    }
    for (long t = 0; t < count; t++) sums[t] += lost[t];
    uintptr_t data = to->data + first * to->step * DTYPE_SIZE[dtype];
    if (dtype == DTYPE_f64) for (long t = 0; t < count; t++) ((double *)data)[t * to->step] = sums[t];
    else if (dtype == DTYPE_f32) for (long t = 0; t < count; t++) ((float *)data)[t * to->step] = (float)sums[t];
    else {
      for (long t = 0; t < count; t++) wide[t] = (float)odd_of(sums[t]);
      sw_narrow(dtype, raw, wide, count);
      for (long t = 0; t < count; t++) ((uint16_t *)data)[t * to->step] = raw[t];
    }
  }
}

void sw_selective_copy_states(const selective_operand *to, const selective_operand *from, int64_t size,
                              int64_t channels, int64_t states) {
  static const char zero[8];
  for (long c = 0; c < channels; c++) for (long s = 0; s < states; s++) {
    const char *source = from->data ? (const char *)from->data + (c * from->lane + s * from->step) * size : zero;
    memcpy((char *)to->data + (c * to->lane + s * to->step) * size, source, size);
  }
}

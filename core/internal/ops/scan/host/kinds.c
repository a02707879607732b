/* Upsweeps and downsweeps of the gradients of scans on the CPU, tile by tile (scan.h).

   Floating-point exception flags are not read. With correct flags, compilers would turn selections
   into branches. */
#ifndef __clang__
#pragma GCC optimize("no-trapping-math", "no-math-errno")
#endif

#include <stddef.h>

#include "group.h"
#include "steps.h"

#ifdef VECTOR_256
#include <immintrin.h>
#endif

#define BY_INDEX(kind) ((kind) == SCAN_BY_INDEX || (kind) == SCAN_BY_INDEX_REVERSED)
#define DELTA(kind) ((kind) == SCAN_BY_INDEX ? 1 : -1)

#define CHECKPOINT(k) (checkpoint + 2 * ((k) / positions) * width) /* of the tile that begins at position k */

INLINE void unpack(const group *g, const double *restrict states, double *restrict a, double *restrict b) {
  for (long l = 0; l < g->lanes; l++) a[l] = states[2 * l], b[l] = states[2 * l + 1];
  for (long l = g->lanes; l < g->width; l++) a[l] = b[l] = 0;
}

INLINE void copy(const group *g, const double *restrict from, double *restrict to) {
  for (long l = 0; l < g->lanes; l++) to[l] = from[l];
  for (long l = g->lanes; l < g->width; l++) to[l] = 0;
}

/* Sets the index that makes the first position a record, and the bits of the index before it. */
INLINE void init_expected(const scan_call *call, const group *g, const double *restrict states,
                          uint64_t *restrict expected, double *restrict before) {
  uint64_t first = call->kind == SCAN_BY_INDEX ? 0 : call->n - 1;
  if (call->whole) for (long l = 0; l < g->width; l++) expected[l] = first, before[l] = number(first);
  else for (long l = 0; l < g->lanes; l++) expected[l] = integer(states[2 * l]), before[l] = states[2 * l + 1];
}

/* Stores the prefix before a tile as a checkpoint. */
INLINE void store_checkpoint(double *checkpoint, const double *a, const double *b, long width) {
  memcpy(checkpoint, a, sizeof *a * width);
  memcpy(checkpoint + width, b, sizeof *b * width);
}

INLINE void upsweep(enum scan_kind kind, int exact, const scan_call *call, const group *g, double *states,
                    double *carries) {
  SIZES;
  double x[SCAN_TILE], dy[SCAN_TILE], a[SCAN_WIDEST], b[SCAN_WIDEST];
  double has_record[SCAN_WIDEST], suffix[SCAN_WIDEST], error[SCAN_WIDEST];
  uint64_t expected[SCAN_WIDEST], mismatch[SCAN_WIDEST];
  /* A sum walks from the last tile to the first. */
  int from_end = kind == SCAN_SUM, wants_suffix = (from_end || BY_INDEX(kind)) && carries;
  for (long l = 0; l < width; l++) {
    a[l] = b[l] = has_record[l] = error[l] = suffix[l] = 0;
    expected[l] = mismatch[l] = 0;
  }
  if (wants_suffix) copy(g, carries, suffix);
  if (BY_INDEX(kind)) init_expected(call, g, states, expected, b);
  for (long last = (call->n - 1) / positions, i = 0; i <= last; i++) {
    long k = (from_end ? last - i : i) * positions, n = POSITIONS(k);
    const scan_window *window = from_end ? WINDOW_BACK(k, n) : WINDOW(k, n);
    if (kind != SCAN_SUM) sw_scan_load(x, &call->x, window);
    if (wants_suffix) sw_scan_load(dy, &call->dy, window);
    EACH_BLOCK {
      if (BY_INDEX(kind)) check_indices(expected + s, b + s, mismatch + s, x + s, k, DELTA(kind), width, n);
      if (BY_INDEX(kind) && wants_suffix)
        index_suffix(exact, expected + s, has_record + s, suffix + s, error + s, x + s, dy + s, k, DELTA(kind),
                     width, n);
      if (kind == SCAN_SUM) sum_upsweep(exact, suffix + s, error + s, dy + s, width, n);
      if (kind == SCAN_LOG_SUM) log_sum_forward(exact, a + s, b + s, x + s, NULL, NULL, width, n);
    }
  }
  for (long l = 0; l < g->lanes; l++) {
    states[2 * l] = BY_INDEX(kind) ? mismatch[l] == 0 : a[l];
    states[2 * l + 1] = BY_INDEX(kind) ? has_record[l] : b[l];
    if (wants_suffix) carries[l] = suffix[l] + error[l];
  }
}

/* Stores the checkpoints of logcumsumexp. */
INLINE void log_sum_checkpoints(int exact, const scan_call *call, const group *g, const double *states,
                                double *checkpoint) {
  SIZES;
  double x[SCAN_TILE], a[SCAN_WIDEST] = {0}, b[SCAN_WIDEST] = {0};
  if (states) unpack(g, states, a, b);
  for (long k = 0; k < call->n; k += positions, checkpoint += 2 * width) {
    long n = POSITIONS(k);
    store_checkpoint(checkpoint, a, b, width);
    if (k + n == call->n) break;
    sw_scan_load(x, &call->x, WINDOW(k, n));
    EACH_BLOCK log_sum_forward(exact, a + s, b + s, x + s, NULL, NULL, width, n);
  }
}

/* Adds dy to the suffixes, multiplied by its link to the first position of the lane. */
INLINE void add_linked(enum scan_kind kind, int exact, double *restrict link, double *restrict suffix,
                       double *restrict error, const double *restrict x, const uint32_t *restrict record_flags,
                       const double *restrict dy, long width, long n) {
  for (long k = 0; k < n; k++) EACH_LANE {
    long i = k * width + l;
    link[l] = kind == SCAN_LOG_SUM ? link[l] * x[i] : record_flags[k * WORDS] >> l & 1 ? 0 : link[l];
    double part = kind == SCAN_LOG_SUM ? link[l] * dy[i] : link[l] != 0 ? dy[i] : 0;
    suffix[l] = compensated_sum(exact, part, suffix[l], &error[l]);
  }
}

/* Computes the suffixes and stores the checkpoints of logcumsumexp. */
INLINE void log_sum_suffix_upsweep(int exact, const scan_call *call, const group *g, const double *states,
                                   double *carries, double *checkpoint) {
  SIZES;
  double x[SCAN_TILE], w[SCAN_TILE], dy[SCAN_TILE], a[SCAN_WIDEST], b[SCAN_WIDEST];
  double link[SCAN_WIDEST], suffix[SCAN_WIDEST], error[SCAN_WIDEST];
  for (long l = 0; l < width; l++) link[l] = 1, suffix[l] = error[l] = 0;
  unpack(g, states, a, b);
  for (long first = 0; first < call->n; first += positions, checkpoint += 2 * width) {
    long n = POSITIONS(first);
    store_checkpoint(checkpoint, a, b, width);
    sw_scan_load(x, &call->x, WINDOW(first, n));
    sw_scan_load(dy, &call->dy, WINDOW(first, n));
    EACH_BLOCK {
      log_sum_forward(exact, a + s, b + s, x + s, w + s, dy + s, width, n);
      add_linked(SCAN_LOG_SUM, exact, link + s, suffix + s, error + s, x + s, NULL, dy + s, width, n);
    }
  }
  for (long l = 0; l < g->lanes; l++) carries[l] = suffix[l] + error[l];
}

INLINE void sum_suffixes(int exact, const scan_call *call, const group *g, double *carries) {
  SIZES;
  double dy[SCAN_TILE], suffix[SCAN_WIDEST] = {0}, error[SCAN_WIDEST] = {0};
  for (long first = 0; first < call->n; first += positions) {
    long n = POSITIONS(first);
    sw_scan_load(dy, &call->dy, WINDOW(first, n));
    EACH_BLOCK for (long k = 0; k < n; k++) EACH_LANE
      suffix[s + l] = compensated_sum(exact, dy[k * width + s + l], suffix[s + l], &error[s + l]);
  }
  for (long l = 0; l < g->lanes; l++) carries[l] = suffix[l] + error[l];
}

/* Recomputes a block of products, which begins at a lane of the window, with arithmetic for all
   inputs. dy is loaded again, because dx was written over it. */
static void product_fallback(int exact, const scan_operand *from, const scan_window *window, long lane, double *before,
                             double *carry_in, double *error, const double *x, double *w, double *dx) {
  double dy[SCAN_TILE];
  long width = window->width, n = window->n;
  sw_scan_load(dy, from, window);
  product_forward(before, x, w, width, n);
  backward(SCAN_PRODUCT, exact, carry_in, error, x, w, dy + lane, width, n);
  for (long k = 0; k < n; k++) memcpy(dx + k * width, dy + lane + k * width, sizeof *dx * SCAN_LANES);
}

/* Sets carries to the suffixes of the lanes of a group; NULL: they are not needed. */
INLINE void store_suffixes(const group *g, double *carries, const double *carry_in, const double *error) {
  if (carries) for (long l = 0; l < g->lanes; l++)
    carries[l] = carry_in[l] + (error[l] - error[l] == 0 ? error[l] : 0);
}

INLINE void downsweep(enum scan_kind kind, int exact, const scan_call *call, const group *g, double *carries,
                      double *checkpoint) {
  SIZES;
  double x[SCAN_TILE], w[SCAN_TILE], dy[SCAN_TILE], carry_in[SCAN_WIDEST] = {0}, error[SCAN_WIDEST] = {0};
  if (carries) copy(g, carries, carry_in);
  EACH_TILE_BACK {
    double *before = CHECKPOINT(k);
    if (kind == SCAN_LOG_SUM) sw_scan_load(x, &call->x, WINDOW_BACK(k, n));
    sw_scan_load(dy, &call->dy, WINDOW_BACK(k, n));
    EACH_BLOCK {
      if (kind == SCAN_LOG_SUM) log_sum_forward(exact, before + s, before + width + s, x + s, w + s, dy + s, width, n);
      backward(kind, exact, carry_in + s, error + s, x + s, w + s, dy + s, width, n);
    }
    if (call->dx.data) sw_scan_store(&call->dx, dy, WINDOW_BACK(k, n));
  }
  store_suffixes(g, carries, carry_in, error);
}

/* Checkpoints of a group. */
#define CHECKPOINTS(g) (checkpoints + 2 * (g)->lane * ((call->n + (g)->positions - 1) / (g)->positions))

#define LOOPS "kinds_loops.h"
#include "../../../cpu/each_processor.h"

void sw_scan_upsweep(const scan_call *call, double *states, double *carries) {
#define CASE(name, kind) case kind: CHOSEN(scan_upsweep_##name)(call, states, carries); break;
  switch (call->kind) { EACH_ARITHMETIC_KIND(CASE) EACH_RECORD_KIND(CASE) EACH_INDEX_KIND(CASE) }
#undef CASE
}

void sw_scan_suffix_upsweep(const scan_call *call, const double *states, double *carries, double *checkpoints) {
#define CASE(name, kind) case kind: CHOSEN(scan_suffix_upsweep_##name)(call, states, carries, checkpoints); break;
  switch (call->kind) { EACH_DEPENDENT_KIND(CASE) }
#undef CASE
}

int sw_scan_downsweep(const scan_call *call, const double *states, double *carries, double *checkpoints) {
  int valid = 1;
#define CASE(name, kind) case kind: CHOSEN(scan_downsweep_##name)(call, states, carries, checkpoints, &valid); break;
  switch (call->kind) { EACH_ARITHMETIC_KIND(CASE) EACH_RECORD_KIND(CASE) EACH_INDEX_KIND(CASE) }
#undef CASE
  return valid;
}

void sw_scan_sum_suffixes(const scan_call *call, double *carries) { CHOSEN(scan_sum_suffixes)(call, carries); }

void sw_scan_fill(const scan_call *call, double value) {
  double values[SCAN_TILE];
  for (long i = 0; i < SCAN_TILE; i++) values[i] = value;
  EACH_GROUP for (long k = 0, positions = g->positions; k < call->n; k += positions)
      sw_scan_store(&call->dx, values, WINDOW(k, POSITIONS(k)));
}

int sw_scan_out_of_range(uint64_t data, long n, int64_t row) {
  return CHOSEN(scan_out_of_range)((const double *)(uintptr_t)data, n, row);
}

int sw_scan_indices_out_of_range(const scan_call *call, int64_t row) {
  double x[SCAN_TILE];
  int outside = 0;
  EACH_GROUP for (long k = 0, positions = g->positions; k < call->n; k += positions) {
    long n = POSITIONS(k);
    sw_scan_load(x, &call->x, WINDOW(k, n));
    outside |= CHOSEN(scan_out_of_range)(x, n * g->width, row);
  }
  return outside;
}

/* Describes rows that lie end to end, from a lane on, as one lane. */
INLINE void end_to_end(scan_operand *o, const scan_operand *from, long lane, long n) {
  o->data = from->data, o->lengths = 0, o->type = from->type, o->step = 0, o->regular = o->pitch = 1;
  o->offset[0] = from->offset[0] + lane * n - (from->step < 0 ? n - 1 : 0);
}

/* Scatters interleaved rows, so that consecutive sums do not depend on each other. */
INLINE void scatter(long rows, long n, const int64_t *indices, const double *values, double *sums) {
  for (long k = 0; k < n; k++) for (long r = 0; r < rows * n; r += n)
    /* The caller may have changed an index since the check. */
    if ((uint64_t)indices[r + k] < (uint64_t)n) sums[r + indices[r + k]] += values[r + k];
}

void sw_scan_scatter(const scan_call *call) {
  scan_operand dy, x, dx;
  double loaded[SCAN_WIDEST], found[SCAN_WIDEST];
  long n = call->n, rows = SCAN_WIDEST / n, in_place = call->dy.type == DTYPE_f64; /* float64: nothing is widened */
  for (long lane = 0; lane < call->lanes; lane += rows) {
    long count = (rows < call->lanes - lane ? rows : call->lanes - lane) * n, row = 0;
    scan_window window = {0, count, count, 0, 1, 0};
    end_to_end(&dy, &call->dy, lane, n), end_to_end(&x, &call->x, lane, n), end_to_end(&dx, &call->dx, lane, n);
    const int64_t *indices = (const int64_t *)(uintptr_t)x.data + x.offset[0];
    const double *values = in_place ? (const double *)(uintptr_t)dy.data + dy.offset[0] : loaded;
    double *sums = in_place ? (double *)(uintptr_t)dx.data + dx.offset[0] : found;
    if (!in_place) sw_scan_load(loaded, &dy, &window);
    memset(sums, 0, sizeof *sums * count);
    for (; row + 8 * n <= count; row += 8 * n) scatter(8, n, indices + row, values + row, sums + row);
    for (; row < count; row += n) scatter(1, n, indices + row, values + row, sums + row);
    if (!in_place) sw_scan_store(&dx, sums, &window);
  }
}

void sw_scan_gather(const scan_call *call) {
  double dx[SCAN_TILE], dy[SCAN_TILE], x[SCAN_TILE];
  long delta = DELTA(call->kind), origin = delta < 0 ? call->n - 1 : 0;
  EACH_GROUP {
    sw_scan_load(dy, &call->dy, WINDOW(0, call->n));
    sw_scan_load(x, &call->x, WINDOW(0, call->n));
    CHOSEN(scan_gather)(dx, dy, x, origin, delta, g->width, call->n);
    sw_scan_store(&call->dx, dx, WINDOW(0, call->n));
  }
}

/* Scatters dy by any indices, from the last position to the first, into sums[positions][lanes]. The
   rounding errors follow the sums. */
void sw_scan_add(const scan_call *call, int64_t origin, int64_t delta, double *sums) {
  double tile[SCAN_TILE];
  const int64_t *indices = (const int64_t *)(uintptr_t)call->x.data;
  group all = {0, call->lanes, SCAN_LANES, SCAN_POSITIONS}, *g = &all;
  long lanes = call->lanes, width = g->width, positions = g->positions, exact = call->dy.type == DTYPE_f64;
  double *error = sums + call->n * lanes;
  memset(sums, 0, sizeof(double) * (exact ? 2 : 1) * call->n * lanes);
  for (long i = (call->n - 1) / positions; i >= 0; i--) {
    long first = i * positions, n = POSITIONS(first);
    sw_scan_load(tile, &call->dy, WINDOW(first, n));
    for (long k = n - 1; k >= 0; k--)
      for (long l = 0; l < lanes; l++) {
        int64_t offset = call->x.regular ? call->x.offset[0] + l * call->x.pitch : call->x.offset[l];
        int64_t position = origin + delta * indices[offset + (first + k) * call->x.step], to = position * lanes + l;
        /* The caller may have changed an index since the check. */
        if ((uint64_t)position >= (uint64_t)call->n) continue;
        double value = tile[k * width + l];
        sums[to] = exact ? compensated_sum(1, value, sums[to], &error[to]) : sums[to] + value;
      }
  }
  for (long i = 0; exact && i < call->n * lanes; i++) sums[i] += error[i];
  for (long first = 0; first < call->n; first += positions) {
    long n = POSITIONS(first);
    for (long k = 0; k < n; k++) memcpy(tile + k * width, sums + (first + k) * lanes, sizeof(double) * lanes);
    sw_scan_store(&call->dx, tile, WINDOW(first, n));
  }
}

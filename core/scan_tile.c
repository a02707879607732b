#include <string.h>

#include "scan.h"
#include "vector.h"

/* Tiles are read and written in one of two ways. Lanes whose positions are adjacent are turned, four lanes by four positions.
   Otherwise lanes go in runs that lie side by side, which a scan along an outer dimension has and one of a few columns has not. */

typedef double four __attribute__((vector_size(32)));
typedef double loose_f64 __attribute__((vector_size(32), aligned(8), may_alias));
typedef float loose_f32 __attribute__((vector_size(16), aligned(4), may_alias));

#define TURN(a, b, c, d) do { \
    four even = __builtin_shufflevector(a, b, 0, 4, 2, 6), even2 = __builtin_shufflevector(c, d, 0, 4, 2, 6); \
    four odd = __builtin_shufflevector(a, b, 1, 5, 3, 7), odd2 = __builtin_shufflevector(c, d, 1, 5, 3, 7); \
    a = __builtin_shufflevector(even, even2, 0, 1, 4, 5), b = __builtin_shufflevector(odd, odd2, 0, 1, 4, 5); \
    c = __builtin_shufflevector(even, even2, 2, 3, 6, 7), d = __builtin_shufflevector(odd, odd2, 2, 3, 6, 7); \
  } while (0)

#define WIDE(p) (four){(p)[0], (p)[1], (p)[2], (p)[3]}

/* The lanes from the first on that lie side by side. */
INLINE long run_of(const int64_t *at, long lanes) {
  long run = 1;
  while (run < lanes && at[run] == at[0] + run) run++;
  return run;
}

/* MOVE copies n positions of lanes between a tile and memory, whose types convert. Lanes that lie
   side by side go together; others in blocks of eight positions, so that a tile fills line by line. */
#define MOVE(out, in, at, lanes, n) do { \
    if (run_of(at, lanes) >= 8) { \
      for (long l = 0, run; l < lanes; l += run) { \
        run = run_of(at + l, lanes - l); \
        if (run == SCAN_LANES) for (long k = 0; k < n; k++) for (long i = 0; i < SCAN_LANES; i++) out(l, k)[i] = in(l, k)[i]; \
        else for (long k = 0; k < n; k++) for (long i = 0; i < run; i++) out(l, k)[i] = in(l, k)[i]; \
      } \
      return; \
    } \
    for (long first = 0; first < n; first += 8) { \
      long end = first + 8 < n ? first + 8 : n; \
      for (long l = 0; l < lanes; l++) for (long k = first; k < end; k++) *out(l, k) = *in(l, k); \
    } \
  } while (0)

#define TILE(l, k) (tile + (k) * SCAN_LANES + (l))
#define MEMORY(l, k) (data + at[l] + (k) * step)

#define LOOPS "scan_tile_loops.h"
#include "each_processor.h"

/* 16-bit floats go through float32: whole lanes where their positions are adjacent, else whole tiles. */
typedef struct {
  int64_t at[SCAN_LANES], step;
  float wide[SCAN_POSITIONS * SCAN_LANES];
  uint16_t raw[SCAN_POSITIONS * SCAN_LANES];
} room;

/* lay says where the lanes lie in wide, and how far before at[l] the memory of a lane begins. */
static long lay(room *r, long step, long n) {
  int along = step == 1 || step == -1;
  long before = step == -1 ? n - 1 : 0;
  r->step = along ? step : SCAN_LANES;
  for (long l = 0; l < SCAN_LANES; l++) r->at[l] = along ? l * SCAN_POSITIONS + before : l;
  return before;
}

INLINE void collect(uint16_t *restrict tile, const uint16_t *restrict data, const int64_t *at, long step, long lanes, long n) {
  MOVE(TILE, MEMORY, at, lanes, n);
}

INLINE void spread(uint16_t *restrict data, const uint16_t *restrict tile, const int64_t *at, long step, long lanes, long n) {
  MOVE(MEMORY, TILE, at, lanes, n);
}

static void load_half(double *tile, const uint16_t *data, const int64_t *at, long step, long lanes, long n,
                      void (*widen)(float *, const uint16_t *, long)) {
  room r;
  long before = lay(&r, step, n);
  if (r.step == step) {
    for (long l = 0; l < lanes; l++) widen(r.wide + l * SCAN_POSITIONS, data + at[l] - before, n);
  } else {
    if (lanes < SCAN_LANES) memset(r.raw, 0, sizeof r.raw);
    collect(r.raw, data, at, step, lanes, n);
    widen(r.wide, r.raw, n * SCAN_LANES);
  }
  CHOSEN(scan_load_f32)(tile, r.wide, r.at, r.step, lanes, n);
}

static void store_half(uint16_t *data, const double *tile, const int64_t *at, long step, long lanes, long n,
                       void (*narrow)(uint16_t *, const float *, long)) {
  room r;
  long before = lay(&r, step, n);
  if (r.step != step && lanes < SCAN_LANES) memset(r.wide, 0, sizeof r.wide);
  CHOSEN(scan_store_f32)(r.wide, tile, r.at, r.step, lanes, n);
  if (r.step == step) {
    for (long l = 0; l < lanes; l++) narrow(data + at[l] - before, r.wide + l * SCAN_POSITIONS, n);
  } else {
    narrow(r.raw, r.wide, n * SCAN_LANES);
    spread(data, r.raw, at, step, lanes, n);
  }
}

void sw_scan_load(scan_tile tile, const scan_operand *from, long lane, long lanes, long k, long n) {
  const int64_t *at = from->at + lane;
  long step = from->step;
  void *data = (void *)(uintptr_t)from->data;
  if (lanes < SCAN_LANES) memset(tile, 0, sizeof(scan_tile));
  switch (from->type) {
    case 0: CHOSEN(scan_load_f32)(tile[0], (float *)data + k * step, at, step, lanes, n); break;
    case 1: CHOSEN(scan_load_f64)(tile[0], (double *)data + k * step, at, step, lanes, n); break;
    case 2: load_half(tile[0], (uint16_t *)data + k * step, at, step, lanes, n, sw_widen_f16); break;
    case 3: load_half(tile[0], (uint16_t *)data + k * step, at, step, lanes, n, sw_widen_bf16); break;
  }
}

void sw_scan_store(const scan_operand *to, scan_tile tile, long lane, long lanes, long k, long n) {
  const int64_t *at = to->at + lane;
  long step = to->step;
  void *data = (void *)(uintptr_t)to->data;
  switch (to->type) {
    case 0: CHOSEN(scan_store_f32)((float *)data + k * step, tile[0], at, step, lanes, n); break;
    case 1: CHOSEN(scan_store_f64)((double *)data + k * step, tile[0], at, step, lanes, n); break;
    case 2: store_half((uint16_t *)data + k * step, tile[0], at, step, lanes, n, sw_narrow_f16); break;
    case 3: store_half((uint16_t *)data + k * step, tile[0], at, step, lanes, n, sw_narrow_bf16); break;
  }
}

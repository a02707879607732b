#include <string.h>

#include "scan.h"
#include "vector.h"

/* Tiles are read and written in one of three ways. Lanes that lie side by side, as those of a scan along an outer dimension, go row by
   row. Lanes whose positions are adjacent are turned, where there is AVX2. Others go one by one. */

typedef double four __attribute__((vector_size(32)));
typedef double loose_f64 __attribute__((vector_size(32), aligned(8), may_alias));
typedef float loose_f32 __attribute__((vector_size(16), aligned(4), may_alias));

#ifdef VECTOR_256
#include <immintrin.h>

/* Four positions are turned, of eight lanes in float32 and of four in float64. Of eight, lanes i and i + 4 are a vector, whose halves are
   turned alike. */
enum { TURNED_f32 = 8, TURNED_f64 = 4, TURNED_f16 = 8, TURNED_bf16 = 8 };
typedef __m256 turned_f32, turned_f16, turned_bf16;
typedef __m256d turned_f64;

#define READ_f32(at, i) _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(at(i))), _mm_loadu_ps(at(i + 4)), 1)
#define READ_f64(at, i) _mm256_loadu_pd(at(i))
#define HALVES(p, q) _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(p)), _mm_loadl_epi64((const __m128i *)(q)))
#define WIDE_bf16(half) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))
#define READ_f16(at, i) _mm256_cvtph_ps(HALVES(at(i), at(i + 4)))
#define READ_bf16(at, i) WIDE_bf16(HALVES(at(i), at(i + 4)))
#define WRITE_f32(at, i, v) (_mm_storeu_ps(at(i), _mm256_castps256_ps128(v)), _mm_storeu_ps(at(i + 4), _mm256_extractf128_ps(v, 1)))
#define WRITE_f64(at, i, v) _mm256_storeu_pd(at(i), v)

#define UNPACKED(half, a, b) _mm256_castpd_ps(_mm256_unpack##half##_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)))
#define TURN_f32(v) do { \
    __m256 a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]); \
    __m256 c = _mm256_unpacklo_ps(v[2], v[3]), d = _mm256_unpackhi_ps(v[2], v[3]); \
    v[0] = UNPACKED(lo, a, c), v[1] = UNPACKED(hi, a, c), v[2] = UNPACKED(lo, b, d), v[3] = UNPACKED(hi, b, d); \
  } while (0)
#define TURN_f16 TURN_f32
#define TURN_bf16 TURN_f32
#define TURN_f64(v) do { \
    __m256d a = _mm256_unpacklo_pd(v[0], v[1]), b = _mm256_unpackhi_pd(v[0], v[1]); \
    __m256d c = _mm256_unpacklo_pd(v[2], v[3]), d = _mm256_unpackhi_pd(v[2], v[3]); \
    v[0] = _mm256_permute2f128_pd(a, c, 0x20), v[1] = _mm256_permute2f128_pd(b, d, 0x20); \
    v[2] = _mm256_permute2f128_pd(a, c, 0x31), v[3] = _mm256_permute2f128_pd(b, d, 0x31); \
  } while (0)
#endif

/* The lanes from the first on that lie side by side. */
INLINE long run_of(const int64_t *at, long lanes) {
  long run = 1;
  while (run < lanes && at[run] == at[0] + run) run++;
  return run;
}

/* Whether the lanes go in runs of so many side by side. */
INLINE int runs_of(long run, const int64_t *at, long lanes) {
  if (lanes % run) return 0;
  int64_t odd = 0;
  for (long l = 0; l < lanes; l += run) for (long i = 1; i < run; i++) odd |= at[l + i] ^ (at[l] + i);
  return odd == 0;
}

/* MOVE copies n positions of lanes between a tile and memory, whose types convert. Lanes that lie side by side go together; others
   in blocks of eight positions, so that a tile fills line by line, in pairs where two rows alternate. */
#define MOVE(out, in, lanes, n) do { \
    if (run_of(at, lanes) >= 8) { \
      for (long l = 0, run; l < lanes; l += run) { \
        run = run_of(at + l, lanes - l); \
        if (run == SCAN_LANES) for (long k = 0; k < n; k++) for (long i = 0; i < SCAN_LANES; i++) out(l, k)[i] = in(l, k)[i]; \
        else for (long k = 0; k < n; k++) for (long i = 0; i < run; i++) out(l, k)[i] = in(l, k)[i]; \
      } \
    } else if (runs_of(2, at, lanes)) { \
      BLOCKS(2, out, in, lanes, n); \
    } else { \
      BLOCKS(1, out, in, lanes, n); \
    } \
  } while (0)

#define BLOCKS(run, out, in, lanes, n) \
  for (long first = 0; first < n; first += 8) { \
    long end = first + 8 < n ? first + 8 : n; \
    for (long l = 0; l < lanes; l += run) for (long k = first; k < end; k++) for (long i = 0; i < run; i++) out(l, k)[i] = in(l, k)[i]; \
  }

/* Asks for a line, and for the lines of so many numbers, to be read or written. They go to the second level of cache: the first is full
   of tiles, and would lose them before their time. */
#define FETCH(p, write) __builtin_prefetch(p, write, 2)
#define ASK(p, count, write) for (long line = 0; line < (count); line += (long)(64 / sizeof *(p))) FETCH((p) + line, write)

#define TILE(l, k) (tile + (k) * width + (l))
#define MEMORY(l, k) (data + at[l] + (k) * step)

/* How float32 numbers of a tile lie between memory and the tile: as they do in memory, where positions of a lane are adjacent, or
   those of two lanes that alternate. */
typedef struct {
  int64_t at[SCAN_WIDEST], step, before;
  int run, dense; /* lanes that alternate, 0: other orders; lanes are one piece of memory */
  float wide[SCAN_TILE];
  uint16_t raw[SCAN_TILE];
} room;

#define LOOPS "scan_tile_loops.h"
#include "each_processor.h"

/* 16-bit floats go through float32, in room where they are not turned. */
typedef void (*widener)(float *, const uint16_t *, long);
typedef long (*loader)(double *, const uint16_t *, const int64_t *, long, long, long, long, long);
typedef void (*narrower)(uint16_t *, const float *, long);

static void load_half(double *tile, const uint16_t *data, const int64_t *at, long step, long next, const scan_window *w, loader load,
                      widener widen) {
  if (w->lanes % 8 == 0 && load(tile, data, at, step, next, w->lanes, w->width, w->n) == w->lanes) return;
  room r;
  CHOSEN(scan_lay)(&r, at, step, w);
  if (r.dense) {
    ASK(data + at[0] - r.before + next, w->lanes * w->n, 0);
    widen(r.wide, data + at[0] - r.before, w->lanes * w->n);
  } else if (r.run) {
    for (long l = 0; l < w->lanes; l += r.run) {
      ASK(data + at[l] - r.before + next, r.run * w->n, 0);
      widen(r.wide + l * w->n, data + at[l] - r.before, r.run * w->n);
    }
  } else {
    if (w->lanes < w->width) memset(r.raw, 0, sizeof *r.raw * w->n * w->width);
    CHOSEN(scan_collect)(r.raw, data, at, step, w->lanes, w->width, w->n);
    widen(r.wide, r.raw, w->n * w->width);
  }
  CHOSEN(scan_load_f32)(tile, r.wide, r.at, r.step, 0, w->lanes, w->width, w->n);
}

static void store_half(uint16_t *data, const double *tile, const int64_t *at, long step, long next, const scan_window *w,
                       narrower narrow) {
  room r;
  CHOSEN(scan_lay)(&r, at, step, w);
  if (!r.run && w->lanes < w->width) memset(r.wide, 0, sizeof *r.wide * w->n * w->width);
  double odd[SCAN_TILE];
  CHOSEN(scan_odd)(odd, tile, w->n * w->width);
  CHOSEN(scan_store_f32)(r.wide, odd, r.at, r.step, 0, w->lanes, w->width, w->n);
  if (r.dense) {
    ASK(data + at[0] - r.before + next, w->lanes * w->n, 1);
    narrow(data + at[0] - r.before, r.wide, w->lanes * w->n);
  } else if (r.run) {
    for (long l = 0; l < w->lanes; l += r.run) {
      ASK(data + at[l] - r.before + next, r.run * w->n, 1);
      narrow(data + at[l] - r.before, r.wide + l * w->n, r.run * w->n);
    }
  } else {
    narrow(r.raw, r.wide, w->n * w->width);
    CHOSEN(scan_spread)(data, r.raw, at, step, w->lanes, w->width, w->n);
  }
}

/* Lanes side by side, and so many that each row is converted by itself. */
enum { SIDE = 128 };

static void load_half_rows(double *tile, const uint16_t *data, long step, long next, const scan_window *w, widener widen) {
  float wide[SCAN_WIDEST];
  for (long k = 0; k < w->n; k++) {
    ASK(data + k * step + next, w->lanes, 0);
    widen(wide, data + k * step, w->lanes);
    CHOSEN(scan_load_rows_f32)(tile + k * w->width, wide, 0, 0, w->lanes, w->width, 1);
  }
}

static void store_half_rows(uint16_t *data, const double *tile, long step, long next, const scan_window *w, narrower narrow) {
  double odd[SCAN_WIDEST];
  float wide[SCAN_WIDEST];
  for (long k = 0; k < w->n; k++) {
    CHOSEN(scan_odd)(odd, tile + k * w->width, w->lanes);
    CHOSEN(scan_store_rows_f32)(wide, odd, 0, 0, w->lanes, w->width, 1);
    ASK(data + k * step + next, w->lanes, 1);
    narrow(data + k * step, wide, w->lanes);
  }
}

/* How far from a window the one after it lies. */
INLINE long distance(const scan_operand *o, const scan_window *w) { return w->on ? w->on * o->step : o->regular ? w->width * o->pitch : 0; }

/* Where the lanes of a window begin. */
static const int64_t *lanes_at(int64_t *room, const scan_operand *o, const scan_window *w) {
  if (!o->regular) return o->at + w->lane;
  int64_t first = o->at[0] + w->lane * o->pitch;
  for (long l = 0; l < w->lanes; l++) room[l] = first + l * o->pitch;
  return room;
}

void sw_scan_load(double *tile, const scan_operand *from, const scan_window *w) {
  long step = from->step, lanes = w->lanes, width = w->width, n = w->n;
  if (lanes < width) memset(tile, 0, sizeof(double) * n * width);
  if (from->regular && from->pitch == 1 && (from->type < 2 || lanes >= SIDE)) {
    long offset = from->at[0] + w->lane + w->k * step, next = distance(from, w);
    switch (from->type) {
      case 0: CHOSEN(scan_load_rows_f32)(tile, (float *)(uintptr_t)from->data + offset, step, next, lanes, width, n); break;
      case 1: CHOSEN(scan_load_rows_f64)(tile, (double *)(uintptr_t)from->data + offset, step, next, lanes, width, n); break;
      case 2: load_half_rows(tile, (uint16_t *)(uintptr_t)from->data + offset, step, next, w, sw_widen_f16); break;
      case 3: load_half_rows(tile, (uint16_t *)(uintptr_t)from->data + offset, step, next, w, sw_widen_bf16); break;
    }
    return;
  }
  int64_t room[SCAN_WIDEST];
  const int64_t *at = lanes_at(room, from, w);
  long offset = w->k * step, next = distance(from, w);
  switch (from->type) {
    case 0: CHOSEN(scan_load_f32)(tile, (float *)(uintptr_t)from->data + offset, at, step, next, lanes, width, n); break;
    case 1: CHOSEN(scan_load_f64)(tile, (double *)(uintptr_t)from->data + offset, at, step, next, lanes, width, n); break;
    case 2: load_half(tile, (uint16_t *)(uintptr_t)from->data + offset, at, step, next, w, CHOSEN(scan_load_f16), sw_widen_f16); break;
    case 3: load_half(tile, (uint16_t *)(uintptr_t)from->data + offset, at, step, next, w, CHOSEN(scan_load_bf16), sw_widen_bf16); break;
  }
}

void sw_scan_store(const scan_operand *to, const double *tile, const scan_window *w) {
  long step = to->step, lanes = w->lanes, width = w->width, n = w->n;
  if (to->regular && to->pitch == 1 && (to->type < 2 || lanes >= SIDE)) {
    long offset = to->at[0] + w->lane + w->k * step, next = distance(to, w);
    switch (to->type) {
      case 0: CHOSEN(scan_store_rows_f32)((float *)(uintptr_t)to->data + offset, tile, step, next, lanes, width, n); break;
      case 1: CHOSEN(scan_store_rows_f64)((double *)(uintptr_t)to->data + offset, tile, step, next, lanes, width, n); break;
      case 2: store_half_rows((uint16_t *)(uintptr_t)to->data + offset, tile, step, next, w, sw_narrow_f16); break;
      case 3: store_half_rows((uint16_t *)(uintptr_t)to->data + offset, tile, step, next, w, sw_narrow_bf16); break;
    }
    return;
  }
  int64_t room[SCAN_WIDEST];
  const int64_t *at = lanes_at(room, to, w);
  long offset = w->k * step, next = distance(to, w);
  switch (to->type) {
    case 0: CHOSEN(scan_store_f32)((float *)(uintptr_t)to->data + offset, tile, at, step, next, lanes, width, n); break;
    case 1: CHOSEN(scan_store_f64)((double *)(uintptr_t)to->data + offset, tile, at, step, next, lanes, width, n); break;
    case 2: store_half((uint16_t *)(uintptr_t)to->data + offset, tile, at, step, next, w, sw_narrow_f16); break;
    case 3: store_half((uint16_t *)(uintptr_t)to->data + offset, tile, at, step, next, w, sw_narrow_bf16); break;
  }
}

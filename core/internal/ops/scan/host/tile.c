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
   turned alike. 16-bit floats are float32 meanwhile. */
enum { TURNED_f32 = 8, TURNED_f64 = 4, TURNED_f16 = 8, TURNED_bf16 = 8 };
enum { AT_ONCE_f32 = 4, AT_ONCE_f64 = 2, AT_ONCE_f16 = 2, AT_ONCE_bf16 = 2 }; /* so many times four positions */
typedef __m256 turned_f32, turned_f16, turned_bf16;
typedef __m256d turned_f64;
typedef uint64_t odd_256 __attribute__((vector_size(32)));
typedef uint64_t odd_512 __attribute__((vector_size(64)));

#define READ_f32(at, i) _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(at(i))), _mm_loadu_ps(at(i + 4)), 1)
#define READ_f64(at, i) _mm256_loadu_pd(at(i))
#define HALVES(p, q) _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(p)), _mm_loadl_epi64((const __m128i *)(q)))
#define WIDE_f16(halves) _mm256_cvtph_ps(halves)
#define WIDE_bf16(halves) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))
#define READ_f16(at, i) WIDE_f16(HALVES(at(i), at(i + 4)))
#define READ_bf16(at, i) WIDE_bf16(HALVES(at(i), at(i + 4)))
#define WRITE_f32(at, i, v) (_mm_storeu_ps(at(i), _mm256_castps256_ps128(v)), _mm_storeu_ps(at(i + 4), _mm256_extractf128_ps(v, 1)))
#define WRITE_f64(at, i, v) _mm256_storeu_pd(at(i), v)
#define WRITE_HALVES(p, q, v) (_mm_storel_epi64((__m128i *)(p), v), _mm_storel_epi64((__m128i *)(q), _mm_unpackhi_epi64(v, v)))
#define NARROW_f16(v) _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)
#define WRITE_f16(at, i, v) WRITE_HALVES(at(i), at(i + 4), NARROW_f16(v))
#define WRITE_bf16(at, i, v) WRITE_HALVES(at(i), at(i + 4), NARROW_bf16(v))

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

/* Copies n positions of lanes between a tile and memory, whose types convert, in blocks of eight positions, so that a tile fills line by
   line, and in pairs where two rows alternate. */
#define MOVE(out, in, convert, lanes, n) do { \
    if (runs_of(2, at, lanes)) BLOCKS(2, out, in, convert, lanes, n) \
    else BLOCKS(1, out, in, convert, lanes, n) \
  } while (0)

#define BLOCKS(run, out, in, convert, lanes, n) \
  for (long first = 0; first < n; first += 8) { \
    long end = first + 8 < n ? first + 8 : n; \
    for (long l = 0; l < lanes; l += run) for (long k = first; k < end; k++) for (long i = 0; i < run; i++) out(l, k)[i] = convert(in(l, k) + i); \
  }

/* Asks for a line, and for the lines of so many numbers, to be read or written. They go to the second level of cache: the first is full
   of tiles, and would lose them before their time. */
#define FETCH(p, write) __builtin_prefetch(p, write, 2)
#define ASK(p, count, write) for (long line = 0; line < (count); line += (long)(64 / sizeof *(p))) FETCH((p) + line, write)

#define TILE(l, k) (tile + (k) * width + (l))
#define MEMORY(l, k) (data + at[l] + (k) * step)

#define LOOPS "tile_loops.h"
#include "each_processor.h"

/* How far from a window the one after it lies. */
INLINE long distance(const scan_operand *o, const scan_window *w) { return w->on ? w->on * o->step : o->regular ? w->width * o->pitch : 0; }

/* Where the lanes of a window begin. */
static const int64_t *lanes_at(int64_t *room, const scan_operand *o, const scan_window *w) {
  if (!o->regular) return o->at + w->lane;
  int64_t first = o->at[0] + w->lane * o->pitch;
  for (long l = 0; l < w->lanes; l++) room[l] = first + l * o->pitch;
  return room;
}

#define EACH_TYPE(data, function) \
  switch (type) { \
    case 0: function(f32, (float *)(uintptr_t)data); break; \
    case 1: function(f64, (double *)(uintptr_t)data); break; \
    case 2: function(f16, (uint16_t *)(uintptr_t)data); break; \
    case 3: function(bf16, (uint16_t *)(uintptr_t)data); break; \
  }

#define LOAD_ROWS(suffix, data) CHOSEN(scan_load_rows_##suffix)(tile, data + offset, step, next, lanes, width, n)
#define LOAD(suffix, data) CHOSEN(scan_load_##suffix)(tile, data + offset, at, step, next, lanes, width, n)
#define STORE_ROWS(suffix, data) CHOSEN(scan_store_rows_##suffix)(data + offset, tile, step, next, lanes, width, n)
#define STORE(suffix, data) CHOSEN(scan_store_##suffix)(data + offset, tile, at, step, next, lanes, width, n)

void sw_scan_load(double *tile, const scan_operand *from, const scan_window *w) {
  long type = from->type, step = from->step, lanes = w->lanes, width = w->width, n = w->n, next = distance(from, w), offset = w->k * step;
  if (lanes < width) memset(tile, 0, sizeof(double) * n * width);
  if (from->regular && from->pitch == 1) {
    offset += from->at[0] + w->lane;
    EACH_TYPE(from->data, LOAD_ROWS)
    return;
  }
  int64_t room[SCAN_WIDEST];
  const int64_t *at = lanes_at(room, from, w);
  EACH_TYPE(from->data, LOAD)
}

void sw_scan_store(const scan_operand *to, const double *tile, const scan_window *w) {
  long type = to->type, step = to->step, lanes = w->lanes, width = w->width, n = w->n, next = distance(to, w), offset = w->k * step;
  if (to->regular && to->pitch == 1) {
    offset += to->at[0] + w->lane;
    EACH_TYPE(to->data, STORE_ROWS)
    return;
  }
  int64_t room[SCAN_WIDEST];
  const int64_t *at = lanes_at(room, to, w);
  EACH_TYPE(to->data, STORE)
}

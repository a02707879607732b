/* Loads and stores of tiles, which convert between float64 and the dtype of an operand. There are
   three ways. Adjacent lanes, as of a scan along an outer dimension, are copied row by row. Lanes
   with adjacent positions are transposed in registers, on processors with AVX2. Other lanes are
   copied one by one. */
#include <string.h>

#include "scan.h"
#include "../../../cpu/vector.h"

typedef double four __attribute__((vector_size(32)));
typedef double loose_f64 __attribute__((vector_size(32), aligned(8), may_alias));
typedef float loose_f32 __attribute__((vector_size(16), aligned(4), may_alias));

#ifdef VECTOR_256
#include <immintrin.h>

/* A transposition takes four positions of eight lanes in float32, and of four lanes in float64.
   With eight lanes, lanes i and i + 4 share a vector, whose halves are transposed in the same way.
   16-bit floats are transposed as float32. */
enum { TRANSPOSED_f32 = 8, TRANSPOSED_f64 = 4, TRANSPOSED_f16 = 8, TRANSPOSED_bf16 = 8 };
enum { FOURS_f32 = 4, FOURS_f64 = 2, FOURS_f16 = 2, FOURS_bf16 = 2 }; /* groups of four positions in flight */
typedef __m256 vector_f32, vector_f16, vector_bf16;
typedef __m256d vector_f64;
typedef uint64_t odd_256 __attribute__((vector_size(32)));
typedef uint64_t odd_512 __attribute__((vector_size(64)));

#define READ_f32(address, i) _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(address(i))), \
                                                  _mm_loadu_ps(address(i + 4)), 1)
#define READ_f64(address, i) _mm256_loadu_pd(address(i))
#define HALVES(p, q) _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(p)), _mm_loadl_epi64((const __m128i *)(q)))
#define WIDE_f16(halves) _mm256_cvtph_ps(halves)
#define WIDE_bf16(halves) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))
#define READ_f16(address, i) WIDE_f16(HALVES(address(i), address(i + 4)))
#define READ_bf16(address, i) WIDE_bf16(HALVES(address(i), address(i + 4)))
#define WRITE_f32(address, i, v) (_mm_storeu_ps(address(i), _mm256_castps256_ps128(v)), \
                                  _mm_storeu_ps(address(i + 4), _mm256_extractf128_ps(v, 1)))
#define WRITE_f64(address, i, v) _mm256_storeu_pd(address(i), v)
#define WRITE_HALVES(p, q, v) (_mm_storel_epi64((__m128i *)(p), v), \
                               _mm_storel_epi64((__m128i *)(q), _mm_unpackhi_epi64(v, v)))
#define NARROW_f16(v) _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)
#define WRITE_f16(address, i, v) WRITE_HALVES(address(i), address(i + 4), NARROW_f16(v))
#define WRITE_bf16(address, i, v) WRITE_HALVES(address(i), address(i + 4), NARROW_bf16(v))

#define UNPACKED(half, a, b) _mm256_castpd_ps(_mm256_unpack##half##_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)))
#define TRANSPOSE_f32(v) do { \
    __m256 a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]); \
    __m256 c = _mm256_unpacklo_ps(v[2], v[3]), d = _mm256_unpackhi_ps(v[2], v[3]); \
    v[0] = UNPACKED(lo, a, c), v[1] = UNPACKED(hi, a, c), v[2] = UNPACKED(lo, b, d), v[3] = UNPACKED(hi, b, d); \
  } while (0)
#define TRANSPOSE_f16 TRANSPOSE_f32
#define TRANSPOSE_bf16 TRANSPOSE_f32
#define TRANSPOSE_f64(v) do { \
    __m256d a = _mm256_unpacklo_pd(v[0], v[1]), b = _mm256_unpackhi_pd(v[0], v[1]); \
    __m256d c = _mm256_unpacklo_pd(v[2], v[3]), d = _mm256_unpackhi_pd(v[2], v[3]); \
    v[0] = _mm256_permute2f128_pd(a, c, 0x20), v[1] = _mm256_permute2f128_pd(b, d, 0x20); \
    v[2] = _mm256_permute2f128_pd(a, c, 0x31), v[3] = _mm256_permute2f128_pd(b, d, 0x31); \
  } while (0)
#endif

/* The number of lanes, from the first on, that are adjacent. */
INLINE long run_of(const int64_t *offsets, long lanes) {
  long run = 1;
  while (run < lanes && offsets[run] == offsets[0] + run) run++;
  return run;
}

/* Whether the lanes are runs of `run` adjacent ones. */
INLINE int runs_of(long run, const int64_t *offsets, long lanes) {
  if (lanes % run) return 0;
  int64_t mismatch = 0;
  for (long l = 0; l < lanes; l += run) for (long i = 1; i < run; i++) mismatch |= offsets[l + i] ^ (offsets[l] + i);
  return mismatch == 0;
}

/* Copies and converts n positions of lanes between a tile and memory: in blocks of eight positions,
   so that whole cache lines of the tile are written, and in pairs of lanes if two rows
   alternate. */
#define COPY_TILE(out, in, convert, lanes, n) do { \
    if (runs_of(2, offsets, lanes)) BLOCKS(2, out, in, convert, lanes, n) \
    else BLOCKS(1, out, in, convert, lanes, n) \
  } while (0)

#define BLOCKS(run, out, in, convert, lanes, n) \
  for (long first = 0; first < n; first += 8) { \
    long end = first + 8 < n ? first + 8 : n; \
    for (long l = 0; l < lanes; l += run) for (long k = first; k < end; k++) for (long i = 0; i < run; i++) \
      out(l, k)[i] = convert(in(l, k) + i); \
  }

/* Prefetch a cache line, or the lines of `count` numbers, to the L2 cache. Tiles fill the L1 cache
   and would evict them before use. */
#define PREFETCH(p, write) __builtin_prefetch(p, write, 2)
#define PREFETCH_ROW(p, count, write) \
  for (long line = 0; line < (count); line += (long)(64 / sizeof *(p))) PREFETCH((p) + line, write)

#define TILE(l, k) (tile + (k) * width + (l))
#define MEMORY(l, k) (data + offsets[l] + (k) * step)

#define LOOPS "tile_loops.h"
#include "../../../cpu/each_processor.h"

/* The distance from a window to the one that is prefetched [elements]. */
INLINE long distance(const scan_operand *o, const scan_window *w) {
  return w->prefetch ? w->prefetch * o->step : o->regular ? w->width * o->pitch : 0;
}

/* The positions of a window that each of its lanes has. */
INLINE long shared_positions(const scan_operand *o, const scan_window *w) {
  if (!o->lengths) return w->n;
  long n = ((const int64_t *)(uintptr_t)o->lengths)[w->lane + w->lanes - 1] - w->k;
  return n < 0 ? 0 : n < w->n ? n : w->n;
}

/* The offsets of the lanes of a window. */
static const int64_t *lane_offsets(int64_t *scratch, const scan_operand *o, const scan_window *w) {
  if (!o->regular) return o->offset + w->lane;
  int64_t first = o->offset[0] + w->lane * o->pitch;
  for (long l = 0; l < w->lanes; l++) scratch[l] = first + l * o->pitch;
  return scratch;
}

/* Calls the function of a dtype: CASE(suffix, type, wide) is LOAD, for example. */
#define OF_TYPE(CASE) switch (type) { EACH_FLOAT(CASE) }
#define LOAD_ROWS(suffix, type, wide) \
  case DTYPE_##suffix: \
    CHOSEN(scan_load_rows_##suffix)(tile, (const type *)data + offset, step, next, lanes, width, n); \
    break;
#define LOAD(suffix, type, wide) \
  case DTYPE_##suffix: \
    CHOSEN(scan_load_##suffix)(tile, (const type *)data + offset, offsets, step, next, lanes, width, n); \
    break;
#define STORE_ROWS(suffix, type, wide) \
  case DTYPE_##suffix: \
    CHOSEN(scan_store_rows_##suffix)((type *)data + offset, tile, step, next, lanes, width, n); \
    break;
#define STORE(suffix, type, wide) \
  case DTYPE_##suffix: \
    CHOSEN(scan_store_##suffix)((type *)data + offset, tile, offsets, step, next, lanes, width, n); \
    break;

#define LOAD_ENDS(suffix, type, wide) \
  case DTYPE_##suffix: \
    CHOSEN(scan_load_ends_##suffix)(tile, (const type *)data + w->k * step, offsets, ends, step, lanes, width, n); \
    break;
#define STORE_ENDS(suffix, type, wide) \
  case DTYPE_##suffix: \
    CHOSEN(scan_store_ends_##suffix)((type *)data + w->k * step, tile, offsets, ends, step, lanes, width, n); \
    break;

/* Loads or stores the positions after the first n of a window, up to the end of each lane. */
#define ENDS(CASE, o) \
  if (n < w->n) { \
    int64_t ends[SCAN_WIDEST], some[SCAN_WIDEST]; \
    const int64_t *offsets = lane_offsets(some, o, w), *lengths = (const int64_t *)(uintptr_t)(o)->lengths + w->lane; \
    for (long l = 0; l < lanes; l++) ends[l] = lengths[l] - w->k < w->n ? lengths[l] - w->k : w->n; \
    OF_TYPE(CASE) \
    if (n == 0) return; \
  }

void sw_scan_load(double *tile, const scan_operand *from, const scan_window *w) {
  long type = from->type, step = from->step, lanes = w->lanes, width = w->width, n = shared_positions(from, w);
  long next = distance(from, w), offset = w->k * step;
  uintptr_t data = from->data;
  if (lanes < width) memset(tile, 0, sizeof(double) * n * width);
  memset(tile + n * width, 0, sizeof(double) * (w->n - n) * width);
  ENDS(LOAD_ENDS, from)
  if (from->regular && from->pitch == 1) {
    offset += from->offset[0] + w->lane;
    OF_TYPE(LOAD_ROWS)
    return;
  }
  int64_t scratch[SCAN_WIDEST];
  const int64_t *offsets = lane_offsets(scratch, from, w);
  OF_TYPE(LOAD)
}

void sw_scan_store(const scan_operand *to, const double *tile, const scan_window *w) {
  long type = to->type, step = to->step, lanes = w->lanes, width = w->width, n = shared_positions(to, w);
  long next = distance(to, w), offset = w->k * step;
  uintptr_t data = to->data;
  ENDS(STORE_ENDS, to)
  if (to->regular && to->pitch == 1) {
    offset += to->offset[0] + w->lane;
    OF_TYPE(STORE_ROWS)
    return;
  }
  int64_t scratch[SCAN_WIDEST];
  const int64_t *offsets = lane_offsets(scratch, to, w);
  OF_TYPE(STORE)
}

/* Included once for each processor by tile.c: conversion between tiles and memory. GET and FROM
   macros read float64 from a type, PUT and TO macros write a type from float64. */

#define LINE_ELEMENTS(type) (long)(64 / sizeof(type)) /* numbers of a cache line */
#define EACH(lanes) for (long l = 0; l < lanes; l++)

/* One number. */
#define GET_f32(p) *(p)
#define GET_f64(p) *(p)
#define GET_bf16(p) widen_bf16_one(*(p))
#define PUT_f32(p) *(p)
#define PUT_f64(p) *(p)
#define PUT_bf16(p) narrow_bf16_one(odd_of(*(p)))
#if VECTOR < 256
#define GET_f16(p) widen_f16_one(*(p))
#define PUT_f16(p) narrow_f16_one(odd_of(*(p)))
#else
#define GET_f16(p) _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(*(p))))
#define PUT_f16(p) _mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(odd_of(*(p))), _MM_FROUND_TO_NEAREST_INT), 0)
#endif

/* Four numbers, and vectors of lanes. Compilers generate longer code for these conversions. */
#if VECTOR < 256
#define FOUR_f32(p) __builtin_convertvector(*(const loose_f32 *)(p), four)
#define PUT_FOUR_f32(p, v) (*(loose_f32 *)(p) = __builtin_convertvector(v, loose_f32))
#else
#define FOUR_f32(p) (four)_mm256_cvtps_pd(_mm_loadu_ps(p))
#define PUT_FOUR_f32(p, v) _mm_storeu_ps(p, _mm256_cvtpd_ps((__m256d)(v)))
#endif
#define FOUR_f64(p) (*(const loose_f64 *)(p))
#define FOUR_f16(p) (four)_mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(p))))
#define FOUR_bf16(p) (four)_mm256_cvtps_pd(_mm256_castps256_ps128(WIDE_bf16(_mm_loadl_epi64((const __m128i *)(p)))))
#define PUT_FOUR_f64(p, v) (*(loose_f64 *)(p) = v)
#define FROM_f64(p) _mm256_loadu_pd(p)
#define TO_f64(p, v) _mm256_storeu_pd(p, v)
#define TO_f16 TO_f32
#define TO_bf16 TO_f32
#define FROM_bf16 FROM_f16
#if VECTOR == 512
#define FROM_f32(p) _mm512_cvtpd_ps(_mm512_loadu_pd(p))
#define FROM_f16(p) _mm512_cvtpd_ps(ODD(512, _mm512_loadu_pd(p)))
#define TO_f32(p, v) _mm512_storeu_pd(p, _mm512_cvtps_pd(v))
#elif VECTOR == 256
#define PAIR(low, high) _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1)
#define FROM_f32(p) PAIR(_mm256_cvtpd_ps(_mm256_loadu_pd(p)), _mm256_cvtpd_ps(_mm256_loadu_pd((p) + 4)))
#define FROM_f16(p) PAIR(_mm256_cvtpd_ps(ODD(256, _mm256_loadu_pd(p))), \
                         _mm256_cvtpd_ps(ODD(256, _mm256_loadu_pd((p) + 4))))
#define TO_f32(p, v) \
  (_mm256_storeu_pd(p, _mm256_cvtps_pd(_mm256_castps256_ps128(v))), \
   _mm256_storeu_pd((p) + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))))
#endif

#if VECTOR >= 256
/* odd_of (rounding to odd) and narrow_bf16_one of vectors. */
#define ODD(size, v) ((__m##size##d)AT(scan_odd_##size)((odd_##size)(v)))
#define ODD_OF(size) \
  TARGET INLINE odd_##size AT(scan_odd_##size)(odd_##size u) { \
    const uint64_t error = ((uint64_t)1 << 29) - 1; \
    return (u | ((u & error) + error)) & ~error; \
  }
ODD_OF(256)
#if VECTOR == 512
ODD_OF(512)
#endif
#undef ODD_OF

#define NARROW_bf16(v) AT(scan_narrow_bf16)(v)
TARGET INLINE __m128i AT(scan_narrow_bf16)(__m256 v) {
  __m256i u = _mm256_castps_si256(v), even = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), even), 16);
  rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0),
                               _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}
#define ODD_FOUR(v) _mm256_castps128_ps256(_mm256_cvtpd_ps(ODD(256, v)))
#define PUT_FOUR_f16(p, v) _mm_storel_epi64((__m128i *)(p), NARROW_f16(ODD_FOUR(v)))
#define PUT_FOUR_bf16(p, v) _mm_storel_epi64((__m128i *)(p), NARROW_bf16(ODD_FOUR(v)))
#endif

/* Adjacent lanes of 16 bits, eight at a time. The compiler vectorizes the other types by itself. */
#define EIGHTS_IN_f32(lanes)
#define EIGHTS_IN_f64(lanes)
#define EIGHTS_OUT_f32(lanes)
#define EIGHTS_OUT_f64(lanes)
#if VECTOR < 256
#define EIGHTS_IN_f16(lanes)
#define EIGHTS_IN_bf16(lanes)
#define EIGHTS_OUT_f16(lanes)
#define EIGHTS_OUT_bf16(lanes)
#else
#define EIGHTS_IN(suffix, lanes) for (; l + 8 <= lanes; l += 8) \
    TO_f32(row + l, WIDE_##suffix(_mm_loadu_si128((const __m128i *)(from + l))));
#define EIGHTS_OUT(suffix, lanes) for (; l + 8 <= lanes; l += 8) \
    _mm_storeu_si128((__m128i *)(to + l), NARROW_##suffix(FROM_f16(row + l)));
#define EIGHTS_IN_f16(lanes) EIGHTS_IN(f16, lanes)
#define EIGHTS_IN_bf16(lanes) EIGHTS_IN(bf16, lanes)
#define EIGHTS_OUT_f16(lanes) EIGHTS_OUT(f16, lanes)
#define EIGHTS_OUT_bf16(lanes) EIGHTS_OUT(bf16, lanes)
#endif

/* LANE(i) is position k + 4 p of lane i. With a step of -1, memory is read upwards too, and the
   tile is filled from its end. As much of a cache line as registers hold is moved at once: lanes a
   power of two apart map to the same cache sets. */
#define LANE(i) (lane[i] + k + 4 * p)
#if VECTOR < 256
#define TRANSPOSED_IN(type, suffix)
#define TRANSPOSED_OUT(type, suffix)
#else
#define FOURS(type, suffix, fours, write, positions) \
    for (; k + 4 * (fours) <= n; k += 4 * (fours)) { \
      if (k % LINE_ELEMENTS(type) == 0) for (int i = 0, p = 0; i < TRANSPOSED_##suffix; i++) \
          PREFETCH(LANE(i) + next, write); \
      vector_##suffix v[fours][4]; \
      positions(suffix, fours) \
    }
#define TRANSPOSED_LANES(type, suffix, write, positions, one_position) \
  for (; (step == 1 || step == -1) && l + TRANSPOSED_##suffix <= lanes; l += TRANSPOSED_##suffix) { \
    long k = 0, pitch = step * width, low = step < 0 ? n - 1 : 0; \
    __typeof__(data) lane[TRANSPOSED_##suffix]; \
    for (int i = 0; i < TRANSPOSED_##suffix; i++) lane[i] = data + offsets[l + i] - low; \
    __typeof__(tile) row = tile + l + low * width; \
    FOURS(type, suffix, FOURS_##suffix, write, positions) \
    FOURS(type, suffix, 1, write, positions) \
    for (; k < n; k++, row += pitch) for (int i = 0, p = 0; i < TRANSPOSED_##suffix; i++) one_position; \
  }
#define POSITIONS_IN(suffix, fours) \
  _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) \
    _Pragma("GCC unroll 4") for (int p = 0; p < (fours); p++) v[p][i] = READ_##suffix(LANE, i); \
  _Pragma("GCC unroll 4") for (int p = 0; p < (fours); p++) { \
    TRANSPOSE_##suffix(v[p]); \
    for (int i = 0; i < 4; i++, row += pitch) TO_##suffix(row, v[p][i]); \
  }
#define POSITIONS_OUT(suffix, fours) \
  _Pragma("GCC unroll 4") for (int p = 0; p < (fours); p++) { \
    for (int i = 0; i < 4; i++, row += pitch) v[p][i] = FROM_##suffix(row); \
    TRANSPOSE_##suffix(v[p]); \
  } \
  _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) \
    _Pragma("GCC unroll 4") for (int p = 0; p < (fours); p++) WRITE_##suffix(LANE, i, v[p][i]);
#define TRANSPOSED_IN(type, suffix) TRANSPOSED_LANES(type, suffix, 0, POSITIONS_IN, row[i] = GET_##suffix(LANE(i)))
#define TRANSPOSED_OUT(type, suffix) TRANSPOSED_LANES(type, suffix, 1, POSITIONS_OUT, *LANE(i) = PUT_##suffix(row + i))
#endif

/* Two rows whose elements alternate in memory. */
#define PAIRS(type, p, q, at_tile, write, two_positions, one_position) \
  for (int pairs = (step == 2 || step == -2) && lanes >= 4 && runs_of(2, offsets, lanes); pairs && l + 4 <= lanes; \
       l += 4) { \
    long k = 0, pitch = step / 2 * width, low = step < 0 ? 2 * (n - 1) : 0; \
    __typeof__(data) p = data + offsets[l] - low, q = data + offsets[l + 2] - low; \
    __typeof__(tile) at_tile = tile + l + (step < 0 ? (n - 1) * width : 0); \
    for (; k + 2 <= n; k += 2, p += 4, q += 4, at_tile += 2 * pitch) { \
      if (2 * k % LINE_ELEMENTS(type) == 0) PREFETCH(p + next, write), PREFETCH(q + next, write); \
      two_positions \
    } \
    if (k < n) one_position; \
  }
#if VECTOR < 256
#define PAIRS_IN_f16
#define PAIRS_IN_bf16
#define PAIRS_OUT_f16
#define PAIRS_OUT_bf16
#else
#define PAIRS_IN_f16 PAIRS_IN(uint16_t, f16)
#define PAIRS_IN_bf16 PAIRS_IN(uint16_t, bf16)
#define PAIRS_OUT_f16 PAIRS_OUT(uint16_t, f16)
#define PAIRS_OUT_bf16 PAIRS_OUT(uint16_t, bf16)
#endif
#define PAIRS_IN_f32 PAIRS_IN(float, f32)
#define PAIRS_IN_f64 PAIRS_IN(double, f64)
#define PAIRS_OUT_f32 PAIRS_OUT(float, f32)
#define PAIRS_OUT_f64 PAIRS_OUT(double, f64)
#define PAIRS_IN(type, suffix) PAIRS(type, p, q, out, 0, \
  four a = FOUR_##suffix(p); \
  four b = FOUR_##suffix(q); \
  *(loose_f64 *)out = __builtin_shufflevector(a, b, 0, 1, 4, 5); \
  *(loose_f64 *)(out + pitch) = __builtin_shufflevector(a, b, 2, 3, 6, 7);, \
  (out[0] = GET_##suffix(p), out[1] = GET_##suffix(p + 1), out[2] = GET_##suffix(q), out[3] = GET_##suffix(q + 1)))
#define PAIRS_OUT(type, suffix) PAIRS(type, p, q, in, 1, \
  four a = FOUR_f64(in); \
  four b = FOUR_f64(in + pitch); \
  PUT_FOUR_##suffix(p, (four)__builtin_shufflevector(a, b, 0, 1, 4, 5)); \
  PUT_FOUR_##suffix(q, (four)__builtin_shufflevector(a, b, 2, 3, 6, 7));, \
  (p[0] = PUT_##suffix(in), p[1] = PUT_##suffix(in + 1), q[0] = PUT_##suffix(in + 2), q[1] = PUT_##suffix(in + 3)))

#define ROWS_IN(suffix, lanes) for (long k = 0; k < n; k++) { \
    long l = 0; \
    double *restrict row = tile + k * width; \
    __typeof__(data) from = data + k * step; \
    EIGHTS_IN_##suffix(lanes) \
    for (; l < lanes; l++) row[l] = GET_##suffix(from + l); \
  }
#define ROWS_OUT(suffix, lanes) for (long k = 0; k < n; k++) { \
    long l = 0; \
    const double *row = tile + k * width; \
    __typeof__(data) to = data + k * step; \
    EIGHTS_OUT_##suffix(lanes) \
    for (; l < lanes; l++) to[l] = PUT_##suffix(row + l); \
  }

/* Lanes in other orders: long runs of adjacent ones first. */
#define OTHER_LANES(call, out, in, convert) \
  for (long run; l < lanes && (run = run_of(offsets + l, lanes - l)) >= 8; l += run) call; \
  if (l == lanes) return; \
  offsets += l, tile += l, lanes -= l; \
  COPY_TILE(out, in, convert, lanes, n);

#define TILE_LOOPS(suffix, type, wide) \
  TARGET static void AT(scan_load_rows_##suffix)(double *restrict tile, const type *restrict data, long step, \
                                                 long next, long lanes, long width, long n) { \
    for (long k = 0; k < n; k++) PREFETCH_ROW(data + k * step + next, lanes, 0); \
    if (lanes == SCAN_LANES) ROWS_IN(suffix, SCAN_LANES) else ROWS_IN(suffix, lanes) \
  } \
  TARGET static void AT(scan_store_rows_##suffix)(type *restrict data, const double *restrict tile, long step, \
                                                  long next, long lanes, long width, long n) { \
    for (long k = 0; k < n; k++) PREFETCH_ROW(data + k * step + next, lanes, 1); \
    if (lanes == SCAN_LANES) ROWS_OUT(suffix, SCAN_LANES) else ROWS_OUT(suffix, lanes) \
  } \
  TARGET static void AT(scan_load_##suffix)(double *restrict tile, const type *restrict data, const int64_t *offsets, \
                                            long step, long next, long lanes, long width, long n) { \
    long l = 0; \
    TRANSPOSED_IN(type, suffix) \
    PAIRS_IN_##suffix \
    OTHER_LANES(AT(scan_load_rows_##suffix)(tile + l, data + offsets[l], step, next, run, width, n), TILE, MEMORY, \
                GET_##suffix) \
  } \
  TARGET static void AT(scan_store_##suffix)(type *restrict data, const double *restrict tile, \
                                             const int64_t *offsets, long step, long next, long lanes, long width, \
                                             long n) { \
    long l = 0; \
    TRANSPOSED_OUT(type, suffix) \
    PAIRS_OUT_##suffix \
    OTHER_LANES(AT(scan_store_rows_##suffix)(data + offsets[l], tile + l, step, next, run, width, n), MEMORY, TILE, \
                PUT_##suffix) \
  } \
  TARGET static void AT(scan_load_ends_##suffix)(double *restrict tile, const type *restrict data, \
                                                 const int64_t *offsets, const int64_t *ends, long step, long lanes, \
                                                 long width, long from) { \
    for (long l = 0; l < lanes && ends[l] > from; l++) for (long k = from; k < ends[l]; k++) \
      *TILE(l, k) = GET_##suffix(MEMORY(l, k)); \
  } \
  TARGET static void AT(scan_store_ends_##suffix)(type *restrict data, const double *restrict tile, \
                                                  const int64_t *offsets, const int64_t *ends, long step, long lanes, \
                                                  long width, long from) { \
    for (long l = 0; l < lanes && ends[l] > from; l++) for (long k = from; k < ends[l]; k++) \
      *MEMORY(l, k) = PUT_##suffix(TILE(l, k)); \
  }

EACH_FLOAT(TILE_LOOPS)
#undef LINE_ELEMENTS
#undef EACH
#undef GET_f32
#undef GET_f64
#undef GET_bf16
#undef PUT_f32
#undef PUT_f64
#undef PUT_bf16
#undef GET_f16
#undef PUT_f16
#undef FOUR_f32
#undef PUT_FOUR_f32
#undef FOUR_f64
#undef FOUR_f16
#undef FOUR_bf16
#undef PUT_FOUR_f64
#undef FROM_f64
#undef TO_f64
#undef TO_f16
#undef TO_bf16
#undef FROM_bf16
#undef FROM_f32
#undef FROM_f16
#undef TO_f32
#undef PAIR
#undef ODD
#undef ODD_OF
#undef NARROW_bf16
#undef ODD_FOUR
#undef PUT_FOUR_f16
#undef PUT_FOUR_bf16
#undef EIGHTS_IN_f32
#undef EIGHTS_IN_f64
#undef EIGHTS_OUT_f32
#undef EIGHTS_OUT_f64
#undef EIGHTS_IN_f16
#undef EIGHTS_IN_bf16
#undef EIGHTS_OUT_f16
#undef EIGHTS_OUT_bf16
#undef EIGHTS_IN
#undef EIGHTS_OUT
#undef LANE
#undef TRANSPOSED_IN
#undef TRANSPOSED_OUT
#undef FOURS
#undef TRANSPOSED_LANES
#undef POSITIONS_IN
#undef POSITIONS_OUT
#undef PAIRS
#undef PAIRS_IN_f16
#undef PAIRS_IN_bf16
#undef PAIRS_OUT_f16
#undef PAIRS_OUT_bf16
#undef PAIRS_IN_f32
#undef PAIRS_IN_f64
#undef PAIRS_OUT_f32
#undef PAIRS_OUT_f64
#undef PAIRS_IN
#undef PAIRS_OUT
#undef ROWS_IN
#undef ROWS_OUT
#undef OTHER_LANES
#undef TILE_LOOPS

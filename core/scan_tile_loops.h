/* Included once for each processor by scan_tile.c. */

#define LINE(type) (long)(64 / sizeof(type)) /* numbers of a line of cache */
#define EACH(lanes) for (long l = 0; l < lanes; l++)

/* Four numbers of a type in float64; vectors of lanes to a tile and from it. Compilers make more of these conversions than there is. */
#if VECTOR == 64
#define FOUR_f32(p) __builtin_convertvector(*(const loose_f32 *)(p), four)
#else
#define FOUR_f32(p) (four)_mm256_cvtps_pd(_mm_loadu_ps(p))
#endif
#define FOUR_f16(p) (four)_mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(p))))
#define FOUR_bf16(p) (four)_mm256_cvtps_pd(_mm256_castps256_ps128(WIDE_bf16(_mm_loadl_epi64((const __m128i *)(p)))))
#define FOUR_f64(p) (*(const loose_f64 *)(p))
#if VECTOR == 512
#define FROM_f32(p) _mm512_cvtpd_ps(_mm512_loadu_pd(p))
#define TO_f32(p, v) _mm512_storeu_pd(p, _mm512_cvtps_pd(v))
#else
#define FROM_f32(p) \
  _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(_mm256_loadu_pd(p))), _mm256_cvtpd_ps(_mm256_loadu_pd((p) + 4)), 1)
#define TO_f32(p, v) \
  (_mm256_storeu_pd(p, _mm256_cvtps_pd(_mm256_castps256_ps128(v))), _mm256_storeu_pd((p) + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))))
#endif
#define FROM_f64(p) _mm256_loadu_pd(p)
#define TO_f64(p, v) _mm256_storeu_pd(p, v)
#define TO_f16 TO_f32
#define TO_bf16 TO_f32
#define ONE_f32(p) *(p)
#define ONE_f64(p) *(p)
#define ONE_f16(p) _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(*(p))))
#define ONE_bf16(p) _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((uint32_t)*(p) << 16)))

/* Lane i has position k at LANE(i). A step of -1 reads upwards as well, and fills the tile from its end. */
#define LANE(i) (lane[i] + k)
#if VECTOR == 64
#define TURN_IN(type, suffix)
#define TURN_OUT(type, suffix)
#else
#define TURNING(type, suffix, p, write, four_positions, one_position) \
  for (; (step == 1 || step == -1) && l + TURNED_##suffix <= lanes; l += TURNED_##suffix) { \
    long k = 0, pitch = step * width, low = step < 0 ? n - 1 : 0; \
    __typeof__(data) lane[TURNED_##suffix]; \
    for (int i = 0; i < TURNED_##suffix; i++) lane[i] = data + at[l + i] - low; \
    __typeof__(tile) p = tile + l + low * width; \
    for (; k + 4 <= n; k += 4) { \
      if (k % LINE(type) == 0) for (int i = 0; i < TURNED_##suffix; i++) FETCH(LANE(i) + next, write); \
      turned_##suffix v[4]; \
      four_positions \
    } \
    for (; k < n; k++, p += pitch) for (int i = 0; i < TURNED_##suffix; i++) one_position; \
  }
#define TURN_IN(type, suffix) TURNING(type, suffix, out, 0, \
  for (int i = 0; i < 4; i++) v[i] = READ_##suffix(LANE, i); \
  TURN_##suffix(v); \
  for (int i = 0; i < 4; i++, out += pitch) TO_##suffix(out, v[i]);, out[i] = ONE_##suffix(LANE(i)))
#define TURN_OUT(type, suffix) TURNING(type, suffix, in, 1, \
  for (int i = 0; i < 4; i++, in += pitch) v[i] = FROM_##suffix(in); \
  TURN_##suffix(v); \
  for (int i = 0; i < 4; i++) WRITE_##suffix(LANE, i, v[i]);, *LANE(i) = in[i])
#endif

#define PAIRS_IN(type, suffix) \
  int pairs = (step == 2 || step == -2) && lanes >= 4 && runs_of(2, at, lanes); \
  for (; pairs && l + 4 <= lanes; l += 4) { \
    long k = 0, pitch = step / 2 * width, low = step < 0 ? 2 * (n - 1) : 0; \
    const type *p = data + at[l] - low, *q = data + at[l + 2] - low; \
    double *out = tile + l + (step < 0 ? (n - 1) * width : 0); \
    for (; k + 2 <= n; k += 2, p += 4, q += 4, out += 2 * pitch) { \
      if (2 * k % LINE(type) == 0) FETCH(p + next, 0), FETCH(q + next, 0); \
      four a = FOUR_##suffix(p), b = FOUR_##suffix(q); \
      *(loose_f64 *)out = __builtin_shufflevector(a, b, 0, 1, 4, 5); \
      *(loose_f64 *)(out + pitch) = __builtin_shufflevector(a, b, 2, 3, 6, 7); \
    } \
    if (k < n) out[0] = ONE_##suffix(p), out[1] = ONE_##suffix(p + 1), out[2] = ONE_##suffix(q), out[3] = ONE_##suffix(q + 1); \
  }

/* The lanes that are turned, or in pairs: all or the first. */
#if VECTOR == 64
#define HALVES_IN(suffix)
#else
#define HALVES_IN(suffix) TURN_IN(uint16_t, suffix) PAIRS_IN(uint16_t, suffix)
#endif
#define HALF_TILES(suffix) \
  TARGET static long AT(scan_load_##suffix)(double *restrict tile, const uint16_t *restrict data, const int64_t *at, long step, long next, \
                                            long lanes, long width, long n) { \
    long l = 0; \
    HALVES_IN(suffix) \
    return l; \
  }

#define TILES(type, suffix) \
  TARGET static void AT(scan_load_rows_##suffix)(double *restrict tile, const type *restrict data, long step, long next, long lanes, \
                                                 long width, long n) { \
    for (long k = 0; k < n; k++) ASK(data + k * step + next, lanes, 0); \
    if (lanes == SCAN_LANES) for (long k = 0; k < n; k++) EACH(SCAN_LANES) tile[k * width + l] = data[k * step + l]; \
    else for (long k = 0; k < n; k++) EACH(lanes) tile[k * width + l] = data[k * step + l]; \
  } \
  TARGET static void AT(scan_store_rows_##suffix)(type *restrict data, const double *restrict tile, long step, long next, long lanes, \
                                                  long width, long n) { \
    for (long k = 0; k < n; k++) ASK(data + k * step + next, lanes, 1); \
    if (lanes == SCAN_LANES) for (long k = 0; k < n; k++) EACH(SCAN_LANES) data[k * step + l] = tile[k * width + l]; \
    else for (long k = 0; k < n; k++) EACH(lanes) data[k * step + l] = tile[k * width + l]; \
  } \
  TARGET static void AT(scan_load_##suffix)(double *restrict tile, const type *restrict data, const int64_t *at, long step, long next, \
                                            long lanes, long width, long n) { \
    long l = 0; \
    TURN_IN(type, suffix) \
    PAIRS_IN(type, suffix) \
    if (l == lanes) return; \
    at += l, tile += l, lanes -= l; \
    MOVE(TILE, MEMORY, lanes, n); \
  } \
  TARGET static void AT(scan_store_##suffix)(type *restrict data, const double *restrict tile, const int64_t *at, long step, long next, \
                                             long lanes, long width, long n) { \
    long l = 0; \
    TURN_OUT(type, suffix) \
    int pairs = (step == 2 || step == -2) && lanes >= 4 && runs_of(2, at, lanes); \
    for (; pairs && l + 4 <= lanes; l += 4) { \
      long k = 0, pitch = step / 2 * width, low = step < 0 ? 2 * (n - 1) : 0; \
      type *p = data + at[l] - low, *q = data + at[l + 2] - low; \
      const double *in = tile + l + (step < 0 ? (n - 1) * width : 0); \
      for (; k + 2 <= n; k += 2, p += 4, q += 4, in += 2 * pitch) { \
        if (2 * k % LINE(type) == 0) FETCH(p + next, 1), FETCH(q + next, 1); \
        four a = FOUR_f64(in), b = FOUR_f64(in + pitch); \
        *(loose_##suffix *)p = __builtin_convertvector((four)__builtin_shufflevector(a, b, 0, 1, 4, 5), loose_##suffix); \
        *(loose_##suffix *)q = __builtin_convertvector((four)__builtin_shufflevector(a, b, 2, 3, 6, 7), loose_##suffix); \
      } \
      if (k < n) p[0] = in[0], p[1] = in[1], q[0] = in[2], q[1] = in[3]; \
    } \
    if (l == lanes) return; \
    at += l, tile += l, lanes -= l; \
    MOVE(MEMORY, TILE, lanes, n); \
  }

TILES(float, f32)
TILES(double, f64)
HALF_TILES(f16)
HALF_TILES(bf16)
#undef TILES
#undef HALF_TILES
#undef HALVES_IN
#undef PAIRS_IN
#undef LANE
#undef TURNING
#undef TURN_IN
#undef TURN_OUT
#undef FOUR_f32
#undef FOUR_f64
#undef FOUR_f16
#undef FOUR_bf16
#undef ONE_f32
#undef ONE_f64
#undef ONE_f16
#undef ONE_bf16
#undef TO_f16
#undef TO_bf16
#undef FROM_f32
#undef TO_f32
#undef FROM_f64
#undef TO_f64
#undef EACH
#undef LINE

TARGET static void AT(scan_odd)(double *restrict out, const double *restrict in, long n) { for (long i = 0; i < n; i++) out[i] = odd_of(in[i]); }

TARGET static void AT(scan_collect)(uint16_t *restrict tile, const uint16_t *restrict data, const int64_t *at, long step, long lanes,
                                    long width, long n) {
  MOVE(TILE, MEMORY, lanes, n);
}

TARGET static void AT(scan_spread)(uint16_t *restrict data, const uint16_t *restrict tile, const int64_t *at, long step, long lanes,
                                   long width, long n) {
  MOVE(MEMORY, TILE, lanes, n);
}

TARGET static void AT(scan_lay)(room *restrict r, const int64_t *restrict at, long step, const scan_window *w) {
  long size = step < 0 ? -step : step, n = w->n, run = size == 1 ? 1 : size == 2 && runs_of(2, at, w->lanes) ? 2 : 0;
  long before = step < 0 ? (n - 1) * run : 0;
  int64_t gaps = 0;
  for (long l = 0; l < w->lanes; l++) {
    r->at[l] = run == 0 ? l : (l & -run) * n + (l & (run - 1)) + before;
    gaps |= at[l] ^ (at[0] + l * n);
  }
  r->run = run, r->before = before, r->step = run ? step : w->width, r->dense = run == 1 && gaps == 0;
}

/* Included once for each processor by scan_tile.c. */

#define LINE(type) (long)(64 / sizeof(type)) /* numbers of a line of cache */
#define EACH(lanes) for (long l = 0; l < lanes; l++)

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
    for (; (step == 1 || step == -1) && l + 4 <= lanes; l += 4) { \
      /* a step of -1 reads upwards as well, and fills the tile from its end */ \
      long k = 0, pitch = step * width; \
      const type *in[4]; \
      for (int i = 0; i < 4; i++) in[i] = data + at[l + i] - (step < 0 ? n - 1 : 0); \
      double *out = tile + l + (step < 0 ? (n - 1) * width : 0); \
      for (; k + 4 <= n; k += 4) { \
        if (k % LINE(type) == 0) for (int i = 0; i < 4; i++) __builtin_prefetch(in[i] + k + next, 0); \
        four a = WIDE(in[0] + k, suffix), b = WIDE(in[1] + k, suffix), c = WIDE(in[2] + k, suffix), d = WIDE(in[3] + k, suffix); \
        TURN(a, b, c, d); \
        *(loose_f64 *)out = a, *(loose_f64 *)(out + pitch) = b; \
        *(loose_f64 *)(out + 2 * pitch) = c, *(loose_f64 *)(out + 3 * pitch) = d; \
        out += 4 * pitch; \
      } \
      for (; k < n; k++, out += pitch) for (int i = 0; i < 4; i++) out[i] = in[i][k]; \
    } \
    int pairs = (step == 2 || step == -2) && lanes >= 4 && runs_of(2, at, lanes); \
    for (; pairs && l + 4 <= lanes; l += 4) { \
      long k = 0, pitch = step / 2 * width, low = step < 0 ? 2 * (n - 1) : 0; \
      const type *p = data + at[l] - low, *q = data + at[l + 2] - low; \
      double *out = tile + l + (step < 0 ? (n - 1) * width : 0); \
      for (; k + 2 <= n; k += 2, p += 4, q += 4, out += 2 * pitch) { \
        if (2 * k % LINE(type) == 0) __builtin_prefetch(p + next, 0), __builtin_prefetch(q + next, 0); \
        four a = WIDE(p, suffix), b = WIDE(q, suffix); \
        *(loose_f64 *)out = __builtin_shufflevector(a, b, 0, 1, 4, 5); \
        *(loose_f64 *)(out + pitch) = __builtin_shufflevector(a, b, 2, 3, 6, 7); \
      } \
      if (k < n) out[0] = p[0], out[1] = p[1], out[2] = q[0], out[3] = q[1]; \
    } \
    if (l == lanes) return; \
    at += l, tile += l, lanes -= l; \
    MOVE(TILE, MEMORY, lanes, n); \
  } \
  TARGET static void AT(scan_store_##suffix)(type *restrict data, const double *restrict tile, const int64_t *at, long step, long next, \
                                             long lanes, long width, long n) { \
    long l = 0; \
    for (; (step == 1 || step == -1) && l + 4 <= lanes; l += 4) { \
      long k = 0, pitch = step * width; \
      type *out[4]; \
      for (int i = 0; i < 4; i++) out[i] = data + at[l + i] - (step < 0 ? n - 1 : 0); \
      const double *in = tile + l + (step < 0 ? (n - 1) * width : 0); \
      for (; k + 4 <= n; k += 4) { \
        if (k % LINE(type) == 0) for (int i = 0; i < 4; i++) __builtin_prefetch(out[i] + k + next, 1); \
        four a = WIDE(in, f64), b = WIDE(in + pitch, f64), c = WIDE(in + 2 * pitch, f64), d = WIDE(in + 3 * pitch, f64); \
        TURN(a, b, c, d); \
        *(loose_##suffix *)(out[0] + k) = __builtin_convertvector(a, loose_##suffix); \
        *(loose_##suffix *)(out[1] + k) = __builtin_convertvector(b, loose_##suffix); \
        *(loose_##suffix *)(out[2] + k) = __builtin_convertvector(c, loose_##suffix); \
        *(loose_##suffix *)(out[3] + k) = __builtin_convertvector(d, loose_##suffix); \
        in += 4 * pitch; \
      } \
      for (; k < n; k++, in += pitch) for (int i = 0; i < 4; i++) out[i][k] = in[i]; \
    } \
    int pairs = (step == 2 || step == -2) && lanes >= 4 && runs_of(2, at, lanes); \
    for (; pairs && l + 4 <= lanes; l += 4) { \
      long k = 0, pitch = step / 2 * width, low = step < 0 ? 2 * (n - 1) : 0; \
      type *p = data + at[l] - low, *q = data + at[l + 2] - low; \
      const double *in = tile + l + (step < 0 ? (n - 1) * width : 0); \
      for (; k + 2 <= n; k += 2, p += 4, q += 4, in += 2 * pitch) { \
        if (2 * k % LINE(type) == 0) __builtin_prefetch(p + next, 1), __builtin_prefetch(q + next, 1); \
        four a = WIDE(in, f64), b = WIDE(in + pitch, f64); \
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
#undef TILES
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

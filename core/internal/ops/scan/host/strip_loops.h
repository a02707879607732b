/* Included once for each processor by kinds_loops.h: scans of a strip of SCAN_LANES lanes, whose states stay in registers. */

typedef double AT(vec) __attribute__((vector_size(VECTOR / 8), aligned(8), may_alias));
typedef int64_t AT(ints) __attribute__((vector_size(VECTOR / 8)));
typedef AT(vec) AT(strip)[SCAN_LANES / (VECTOR / 64)];
#define VEC AT(vec)
#define STRIP AT(strip)
#define INTS AT(ints)
#define ALL(condition) ((INTS)(condition)) /* all bits, or none */
#define PICK(own, v) ((VEC)((INTS)(v) & (own)))
#define ONCE (VECTOR / 64) /* lanes of a vector */
#define EACH_VEC _Pragma("GCC unroll 32") for (long i = 0; i < SCAN_LANES / ONCE; i++)
#define OF(p) ((VEC *)(p))[i]

/* added, of vectors. */
TARGET INLINE VEC AT(scan_added)(int exact, VEC a, VEC b, VEC *lost) {
  VEC sum = a + b, part = sum - b, all = *lost + ((a - part) + (b - (sum - part)));
  if (exact) *lost = PICK(ALL(all - all == 0), all);
  return sum;
}

/* Whether numbers of a strip are none: then their sum is none either. */
TARGET INLINE int AT(scan_spoiled)(const VEC *strip) {
  VEC sum = strip[0];
  double all = 0;
  EACH_VEC if (i > 0) sum += strip[i];
  for (int l = 0; l < ONCE; l++) all += sum[l];
  return all != all;
}

/* Products so far, where no cut is needed: if one is, that is told, and the states stay as they were. */
TARGET INLINE int AT(scan_products)(double *restrict before, const double *restrict x, long width, long n) {
  STRIP b;
  EACH_VEC b[i] = OF(before);
  for (long k = 0; k < n; k++, x += width) EACH_VEC b[i] *= OF(x);
  if (AT(scan_spoiled)(b)) return 1;
  EACH_VEC OF(before) = b[i];
  return 0;
}

/* The same, and the way back. dx is in place of dy even if a cut is needed. */
TARGET INLINE int AT(scan_product_strip)(int exact, double *restrict before, double *restrict entering, double *restrict lost,
                                         const double *restrict x, double *restrict w, double *restrict dy, long width, long n) {
  STRIP b, e, less, all;
  EACH_VEC b[i] = OF(before), e[i] = OF(entering), less[i] = OF(lost);
  for (long k = 0; k < n; k++) EACH_VEC OF(w + k * width) = b[i], b[i] *= OF(x + k * width);
  EACH_VEC all[i] = b[i];
  for (long k = n - 1; k >= 0; k--) EACH_VEC {
    VEC c = OF(x + k * width), next = AT(scan_added)(exact, OF(dy + k * width), e[i], &less[i]);
    VEC r = next;
    if (exact) r += less[i];
    VEC dx = OF(w + k * width) * r;
    OF(dy + k * width) = dx, all[i] += dx, e[i] = c * next;
    if (exact) less[i] *= c;
  }
  EACH_VEC all[i] += e[i];
  if (AT(scan_spoiled)(all)) return 1;
  EACH_VEC OF(before) = b[i], OF(entering) = e[i], OF(lost) = less[i];
  return 0;
}

/* scale, of vectors. */
TARGET INLINE void AT(scan_scale)(VEC *p, VEC *e) {
  const int64_t exponent = (int64_t)0x7ff << 52, half = (int64_t)1022 << 52;
  INTS u = (INTS)*p, itself = ALL(*p == 0) | ~ALL(*p - *p == 0);
  *e += ((VEC)((u & exponent) >> 52 | (int64_t)bits(0x1p52)) - 0x1p52) - 1022;
  *p = (VEC)((u & itself) | (((u & ~exponent) | half) & ~itself));
}

/* product_fold where no cut is needed: if one is, that is told, and the states stay as they were. */
TARGET INLINE int AT(scan_fold_strip)(int exact, double *restrict m, double *restrict e, double *restrict leaving, double *restrict lost,
                                      const double *restrict x, const double *restrict dy, long width, long n) {
  STRIP p, power, out, less, all;
  EACH_VEC p[i] = OF(m), power[i] = OF(e), out[i] = OF(leaving), less[i] = OF(lost);
  for (long k = n - 1; k >= 0; k--) {
    EACH_VEC {
      VEC v = OF(x + k * width), factor = v;
      if (exact) {
        INTS small = ALL(((INTS)v & INT64_MAX) < (int64_t)bits(0x1p-900));
        factor *= (VEC)((small & (int64_t)bits(0x1p200)) | (~small & (int64_t)bits(1)));
        power[i] -= (VEC)(small & (int64_t)bits(200));
      }
      p[i] *= factor;
      out[i] = v * AT(scan_added)(exact, OF(dy + k * width), out[i], &less[i]);
      if (exact) less[i] *= v, less[i] = PICK(ALL(less[i] - less[i] == 0), less[i]);
    }
    if (exact || k % 4 == 0) EACH_VEC AT(scan_scale)(&p[i], &power[i]);
  }
  EACH_VEC all[i] = p[i] + out[i];
  if (AT(scan_spoiled)(all)) return 1;
  EACH_VEC OF(m) = p[i], OF(e) = power[i], OF(leaving) = out[i], OF(lost) = less[i];
  return 0;
}

/* Which lanes win at one position over the best before them, as bits. NaN beats everything. */
TARGET INLINE uint32_t AT(scan_win)(int down, int first, VEC *best, const double *x) {
  uint32_t word = 0;
  EACH_VEC {
    VEC v = down ? -OF(x) : OF(x), b = best[i];
#if VECTOR == 512
    __mmask8 wins = first ? _mm512_mask_cmp_pd_mask(_mm512_cmp_pd_mask(b, v, _CMP_NGE_UQ), b, b, _CMP_ORD_Q)
                          : _mm512_cmp_pd_mask(v, b, _CMP_GE_OQ) | _mm512_cmp_pd_mask(v, v, _CMP_UNORD_Q);
    best[i] = _mm512_mask_mov_pd(b, wins, v);
    word |= (uint32_t)wins << i * ONCE;
#else
    INTS wins = first ? ~ALL(b >= v) & ALL(b == b) : ALL(v >= b) | ALL(v != v);
    best[i] = (VEC)(((INTS)v & wins) | ((INTS)b & ~wins));
#if VECTOR == 256
    word |= (uint32_t)_mm256_movemask_pd((__m256d)wins) << i * ONCE;
#else
    word |= (uint32_t)(wins[0] & 1) << i;
#endif
#endif
  }
  return word;
}

/* The winners of a tile. Where nothing stands before the first position, that one wins. */
TARGET INLINE void AT(scan_winners)(int down, int first, double *restrict best, double *restrict seen, const double *restrict x,
                                    uint32_t *restrict words, long width, long n) {
  STRIP top;
  uint32_t fresh = 0;
  EACH_LANE fresh |= (uint32_t)(seen[l] == 0) << l, best[l] = seen[l] != 0 ? best[l] : down ? -x[l] : x[l], seen[l] = 1;
  EACH_VEC top[i] = OF(best);
  for (long k = 0; k < n; k++, x += width, words += WORDS, fresh = 0) *words = AT(scan_win)(down, first, top, x) | fresh;
  EACH_VEC OF(best) = top[i];
}

/* Their way back: a winner has the sum of its run. It selects, so that an infinity or a NaN stays in its run. */
TARGET INLINE void AT(scan_run_strip)(int exact, double *restrict entering, double *restrict lost, const uint32_t *restrict words,
                                      double *restrict dy, long width, long n) {
  STRIP e, less;
  EACH_VEC e[i] = OF(entering), less[i] = OF(lost);
  for (long k = n - 1; k >= 0; k--) EACH_VEC {
    INTS own;
    for (int l = 0; l < ONCE; l++) own[l] = (int64_t)1 << l;
    own = ALL((own & (int64_t)(words[k * WORDS] >> i * ONCE)) != 0);
    VEC next = AT(scan_added)(exact, OF(dy + k * width), e[i], &less[i]);
    VEC r = next;
    if (exact) r += less[i];
    OF(dy + k * width) = PICK(own, r);
    e[i] = PICK(~own, next);
    if (exact) less[i] = PICK(~own, less[i]);
  }
  EACH_VEC OF(entering) = e[i], OF(lost) = less[i];
}

/* The way back of winners by their indices, position first + k being that of want + k delta when it wins. right is the index of the position
   behind, and won whether that wins; an index that is neither its own position nor the one before leaves a bit in odd. */
TARGET INLINE void AT(scan_chosen_strip)(int exact, const uint64_t *restrict want, uint64_t *restrict right, uint64_t *restrict won,
                                         uint64_t *restrict odd, double *restrict entering, double *restrict lost, const double *restrict x,
                                         double *restrict dy, long first, long delta, long width, long n) {
  STRIP e, less;
  INTS behind[SCAN_LANES / ONCE], wins[SCAN_LANES / ONCE], bad[SCAN_LANES / ONCE], mine[SCAN_LANES / ONCE];
  EACH_VEC e[i] = OF(entering), less[i] = OF(lost), behind[i] = (INTS)OF(right), wins[i] = (INTS)OF(won), bad[i] = (INTS)OF(odd);
  EACH_VEC mine[i] = (INTS)OF(want) + (first + n - 1) * delta;
  for (long k = n - 1; k >= 0; k--) EACH_VEC {
    INTS index = (INTS)OF(x + k * width);
    bad[i] |= (behind[i] ^ index) & ~wins[i];
    behind[i] = index, wins[i] = ALL(index == mine[i]), mine[i] -= delta;
    VEC next = AT(scan_added)(exact, OF(dy + k * width), e[i], &less[i]), r = next;
    if (exact) r += less[i];
    OF(dy + k * width) = PICK(wins[i], r);
    e[i] = PICK(~wins[i], next);
    if (exact) less[i] = PICK(~wins[i], less[i]);
  }
  EACH_VEC OF(entering) = e[i], OF(lost) = less[i], OF(right) = (VEC)behind[i], OF(won) = (VEC)wins[i], OF(odd) = (VEC)bad[i];
}
#undef VEC
#undef INTS
#undef ALL
#undef PICK
#undef ONCE
#undef EACH_VEC
#undef STRIP
#undef OF

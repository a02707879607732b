/* Included once for each processor by kinds_loops.h: scans of a block of SCAN_LANES lanes, whose
   states stay in registers. */

typedef double AT(vec) __attribute__((vector_size(VECTOR / 8), aligned(8), may_alias));
typedef int64_t AT(ints) __attribute__((vector_size(VECTOR / 8)));
typedef AT(vec) AT(lane_block)[SCAN_LANES / (VECTOR / 64)];
#define VEC AT(vec)
#define LANE_BLOCK AT(lane_block)
#define INTS AT(ints)
#define ALL(condition) ((INTS)(condition)) /* all bits, or none */
#define SELECT(mask, v) ((VEC)((INTS)(v) & (mask)))
#define VEC_LANES (VECTOR / 64) /* lanes of a vector */
#define EACH_VEC _Pragma("GCC unroll 32") for (long i = 0; i < SCAN_LANES / VEC_LANES; i++)
#define OF(p) ((VEC *)(p))[i]

/* compensated_sum of vectors. */
TARGET INLINE VEC AT(scan_compensated_sum)(int exact, VEC a, VEC b, VEC *error) {
  VEC sum = a + b, part = sum - b, all = *error + ((a - part) + (b - (sum - part)));
  if (exact) *error = SELECT(ALL(all - all == 0), all);
  return sum;
}

/* Whether a block may contain a NaN: its sum is NaN. */
TARGET INLINE int AT(scan_has_nan)(const VEC *lane_block) {
  VEC sum = lane_block[0];
  double all = 0;
  EACH_VEC if (i > 0) sum += lane_block[i];
  for (int l = 0; l < VEC_LANES; l++) all += sum[l];
  return all != all;
}

/* Multiplies the prefixes by x. Returns 1 and leaves the prefixes alone if a product is NaN: then
   zero_product is needed. */
TARGET INLINE int AT(scan_products_block)(double *restrict before, const double *restrict x, long width, long n) {
  LANE_BLOCK b;
  EACH_VEC b[i] = OF(before);
  for (long k = 0; k < n; k++, x += width) EACH_VEC b[i] *= OF(x);
  if (AT(scan_has_nan)(b)) return 1;
  EACH_VEC OF(before) = b[i];
  return 0;
}

/* The downsweep of products. Returns 1 and leaves the states alone if zero_product is needed; dy
   has been overwritten with dx even then. */
TARGET INLINE int AT(scan_downsweep_products_block)(int exact, double *restrict before, double *restrict carry_in,
                                                    double *restrict error, const double *restrict x,
                                                    double *restrict w, double *restrict dy, long width, long n) {
  LANE_BLOCK b, e, next_error, all;
  EACH_VEC b[i] = OF(before), e[i] = OF(carry_in), next_error[i] = OF(error);
  for (long k = 0; k < n; k++) EACH_VEC OF(w + k * width) = b[i], b[i] *= OF(x + k * width);
  EACH_VEC all[i] = b[i];
  for (long k = n - 1; k >= 0; k--) EACH_VEC {
    VEC c = OF(x + k * width), next = AT(scan_compensated_sum)(exact, OF(dy + k * width), e[i], &next_error[i]);
    VEC r = next;
    if (exact) r += next_error[i];
    VEC dx = OF(w + k * width) * r;
    OF(dy + k * width) = dx, all[i] += dx, e[i] = c * next;
    if (exact) next_error[i] *= c;
  }
  EACH_VEC all[i] += e[i];
  if (AT(scan_has_nan)(all)) return 1;
  EACH_VEC OF(before) = b[i], OF(carry_in) = e[i], OF(error) = next_error[i];
  return 0;
}

/* scale of vectors. */
TARGET INLINE void AT(scan_scale)(VEC *p, VEC *e) {
  const int64_t exponent = (int64_t)0x7ff << 52, half = (int64_t)1022 << 52;
  INTS u = (INTS)*p, itself = ALL(*p == 0) | ~ALL(*p - *p == 0);
  *e += ((VEC)((u & exponent) >> 52 | (int64_t)bits(0x1p52)) - 0x1p52) - 1022;
  *p = (VEC)((u & itself) | (((u & ~exponent) | half) & ~itself));
}

/* product_upsweep of vectors. Returns 1 and leaves the states alone if zero_product is needed. */
TARGET INLINE int AT(scan_upsweep_products_block)(int exact, double *restrict m, double *restrict e,
                                                  double *restrict suffix, double *restrict error,
                                                  const double *restrict x, const double *restrict dy, long width,
                                                  long n) {
  LANE_BLOCK p, power, out, next_error, all;
  EACH_VEC p[i] = OF(m), power[i] = OF(e), out[i] = OF(suffix), next_error[i] = OF(error);
  for (long k = n - 1; k >= 0; k--) {
    EACH_VEC {
      VEC v = OF(x + k * width), factor = v;
      if (exact) {
        INTS small = ALL(((INTS)v & INT64_MAX) < (int64_t)bits(0x1p-900));
        factor *= (VEC)((small & (int64_t)bits(0x1p200)) | (~small & (int64_t)bits(1)));
        power[i] -= (VEC)(small & (int64_t)bits(200));
      }
      p[i] *= factor;
      out[i] = v * AT(scan_compensated_sum)(exact, OF(dy + k * width), out[i], &next_error[i]);
      if (exact) next_error[i] *= v, next_error[i] = SELECT(ALL(next_error[i] - next_error[i] == 0), next_error[i]);
    }
    if (exact || k % 4 == 0) EACH_VEC AT(scan_scale)(&p[i], &power[i]);
  }
  EACH_VEC all[i] = p[i] + out[i];
  if (AT(scan_has_nan)(all)) return 1;
  EACH_VEC OF(m) = p[i], OF(e) = power[i], OF(suffix) = out[i], OF(error) = next_error[i];
  return 0;
}

/* The record flags of a block at one position, one bit for each lane. best is the running maximum,
   of the negated numbers for a minimum. NaN is a record over every number. */
TARGET INLINE uint32_t AT(scan_record_flags)(int is_min, int first, VEC *best, const double *x) {
  uint32_t word = 0;
  EACH_VEC {
    VEC v = is_min ? -OF(x) : OF(x), b = best[i];
#if VECTOR == 512
    __mmask8 is_record = first ? _mm512_mask_cmp_pd_mask(_mm512_cmp_pd_mask(b, v, _CMP_NGE_UQ), b, b, _CMP_ORD_Q)
                          : _mm512_cmp_pd_mask(v, b, _CMP_GE_OQ) | _mm512_cmp_pd_mask(v, v, _CMP_UNORD_Q);
    best[i] = _mm512_mask_mov_pd(b, is_record, v);
    word |= (uint32_t)is_record << i * VEC_LANES;
#else
    INTS is_record = first ? ~ALL(b >= v) & ALL(b == b) : ALL(v >= b) | ALL(v != v);
    best[i] = (VEC)(((INTS)v & is_record) | ((INTS)b & ~is_record));
#if VECTOR == 256
    word |= (uint32_t)_mm256_movemask_pd((__m256d)is_record) << i * VEC_LANES;
#else
    for (int l = 0; l < VEC_LANES; l++) word |= (uint32_t)(is_record[l] & 1) << (i * VEC_LANES + l);
#endif
#endif
  }
  return word;
}

/* The record flags of a tile. The first position of a row is a record. */
TARGET INLINE void AT(scan_flag_records_block)(int is_min, int first, double *restrict best, double *restrict seen,
                                               const double *restrict x, uint32_t *restrict flags, long width, long n) {
  LANE_BLOCK top;
  uint32_t first_records = 0;
  EACH_LANE {
    first_records |= (uint32_t)(seen[l] == 0) << l;
    best[l] = seen[l] != 0 ? best[l] : is_min ? -x[l] : x[l];
    seen[l] = 1;
  }
  EACH_VEC top[i] = OF(best);
  for (long k = 0; k < n; k++, x += width, flags += WORDS, first_records = 0)
    *flags = AT(scan_record_flags)(is_min, first, top, x) | first_records;
  EACH_VEC OF(best) = top[i];
}

/* The downsweep of maxima and minima: a record gets the sum of dy from its position to the next
   record. Lanes are selected, not multiplied by 0, so that an infinity or a NaN stays in its
   sum. */
TARGET INLINE void AT(scan_downsweep_records_block)(int exact, double *restrict carry_in, double *restrict error,
                                                    const uint32_t *restrict flags, double *restrict dy, long width,
                                                    long n) {
  LANE_BLOCK e, next_error;
  EACH_VEC e[i] = OF(carry_in), next_error[i] = OF(error);
  for (long k = n - 1; k >= 0; k--) EACH_VEC {
    INTS is_record;
    for (int l = 0; l < VEC_LANES; l++) is_record[l] = (int64_t)1 << l;
    is_record = ALL((is_record & (int64_t)(flags[k * WORDS] >> i * VEC_LANES)) != 0);
    VEC next = AT(scan_compensated_sum)(exact, OF(dy + k * width), e[i], &next_error[i]);
    VEC r = next;
    if (exact) r += next_error[i];
    OF(dy + k * width) = SELECT(is_record, r);
    e[i] = SELECT(~is_record, next);
    if (exact) next_error[i] = SELECT(~is_record, next_error[i]);
  }
  EACH_VEC OF(carry_in) = e[i], OF(error) = next_error[i];
}

/* The downsweep by indices. Position first + k of a lane is a record if its index is expected +
   (first + k) delta. next_index is the index at the position on the right, and next_is_record
   whether that is a record. An index that is neither that of its position nor the index before sets
   bits of mismatch. */
TARGET INLINE void AT(scan_downsweep_indices_block)(int exact, const uint64_t *restrict expected,
                                                    uint64_t *restrict next_index, uint64_t *restrict next_is_record,
                                                    uint64_t *restrict mismatch, double *restrict carry_in,
                                                    double *restrict error, const double *restrict x,
                                                    double *restrict dy, long first, long delta, long width, long n) {
  LANE_BLOCK e, next_error;
  INTS next[SCAN_LANES / VEC_LANES], is_record[SCAN_LANES / VEC_LANES];
  INTS mismatches[SCAN_LANES / VEC_LANES], here[SCAN_LANES / VEC_LANES];
  EACH_VEC {
    e[i] = OF(carry_in), next_error[i] = OF(error);
    next[i] = (INTS)OF(next_index), is_record[i] = (INTS)OF(next_is_record), mismatches[i] = (INTS)OF(mismatch);
    here[i] = (INTS)OF(expected) + (first + n - 1) * delta;
  }
  for (long k = n - 1; k >= 0; k--) EACH_VEC {
    INTS index = (INTS)OF(x + k * width);
    mismatches[i] |= (next[i] ^ index) & ~is_record[i];
    next[i] = index, is_record[i] = ALL(index == here[i]), here[i] -= delta;
    VEC sum = AT(scan_compensated_sum)(exact, OF(dy + k * width), e[i], &next_error[i]), r = sum;
    if (exact) r += next_error[i];
    OF(dy + k * width) = SELECT(is_record[i], r);
    e[i] = SELECT(~is_record[i], sum);
    if (exact) next_error[i] = SELECT(~is_record[i], next_error[i]);
  }
  EACH_VEC {
    OF(carry_in) = e[i], OF(error) = next_error[i];
    OF(next_index) = (VEC)next[i], OF(next_is_record) = (VEC)is_record[i], OF(mismatch) = (VEC)mismatches[i];
  }
}
#undef VEC
#undef INTS
#undef ALL
#undef SELECT
#undef VEC_LANES
#undef EACH_VEC
#undef LANE_BLOCK
#undef OF

/* The block loops of vector.h for each processor, and the choice among them. */
#include "vector.h"

#include <string.h>

#include "tree.h"
#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#endif

int sw_vector_width = 64;

#ifdef VECTOR_256
__attribute__((constructor)) static void find_vector_width(void) {
  unsigned a, b, c = 0, d;
  int f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  /* __builtin_cpu_supports of older clang does not know "f16c" */
  int has256 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  int has512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
      && __builtin_cpu_supports("avx512vl");
  sw_vector_width = has256 && has512 ? 512 : has256 ? 256 : 64;
}
#endif

void sw_widen_f16_portable(float *out, const uint16_t *in,
                           long n) { for (long i = 0; i < n; i++) out[i] = widen_f16_one(in[i]); }
void sw_narrow_f16_portable(uint16_t *out, const float *in,
                            long n) { for (long i = 0; i < n; i++) out[i] = narrow_f16_one(in[i]); }

#define LOOPS "vector_loops.h"
#include "each_processor.h"

typedef void widening(float *out, const void *in, long n);
typedef void narrowing(void *out, const float *in, long n);
typedef void multiplying(const sw_products *p);

#define WIDEN(suffix, stored) \
  static void chosen_widen_##suffix(float *out, const void *in, long n) { CHOSEN(widen_##suffix)(out, in, n); }
#define NARROW(suffix, stored) \
  static void chosen_narrow_##suffix(void *out, const float *in, long n) { CHOSEN(narrow_##suffix)(out, in, n); }
#define MULTIPLY(suffix, stored, wide) \
  static void chosen_products_##suffix(const sw_products *p) { CHOSEN(products_##suffix)(p); }
EACH_WIDENED(WIDEN)
EACH_NARROW(NARROW)
EACH_FLOAT(MULTIPLY)
#undef WIDEN
#undef NARROW
#undef MULTIPLY

#define WIDEN(suffix, stored) [DTYPE_##suffix] = chosen_widen_##suffix,
#define NARROW(suffix, stored) [DTYPE_##suffix] = chosen_narrow_##suffix,
#define MULTIPLY(suffix, stored, wide) [DTYPE_##suffix] = chosen_products_##suffix,
static widening *const widening_of[] = {EACH_WIDENED(WIDEN)};
static narrowing *const narrowing_of[] = {EACH_NARROW(NARROW)};
static multiplying *const products_of[] = {EACH_FLOAT(MULTIPLY)};

void sw_widen(long dtype, float *out, const void *in, long n) { widening_of[dtype](out, in, n); }
void sw_narrow(long dtype, void *out, const float *in, long n) { narrowing_of[dtype](out, in, n); }
void sw_products_of(long dtype, const sw_products *p) { products_of[dtype](p); }

void sw_widen_packed(int is_signed, float *out, const uint8_t *in, long first, long step, long n) {
  long i = 0;
  if (step == 1) {
    for (; i < n && (first + i) % 2 != 0; i++) out[i] = widen_packed_one(is_signed, in[(first + i) >> 1], 1);
    CHOSEN(widen_bytes)(is_signed, out + i, in + ((first + i) >> 1), (n - i) / 2);
    i += (n - i) / 2 * 2;
  }
  for (; i < n; i++) {
    const long at = first + i * step;
    out[i] = widen_packed_one(is_signed, in[at >> 1], at & 1);
  }
}

void sw_sum_runs(double *sums, const double *in, long run, long n) { CHOSEN(sum_runs)(sums, in, run, n); }
void sw_add(double *sums, const double *in, long n) { CHOSEN(add)(sums, in, n); }

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

void sw_widen_f16(float *out, const uint16_t *in, long n) { CHOSEN(widen_f16)(out, in, n); }
void sw_narrow_f16(uint16_t *out, const float *in, long n) { CHOSEN(narrow_f16)(out, in, n); }
void sw_widen_bf16(float *out, const uint16_t *in, long n) { CHOSEN(widen_bf16)(out, in, n); }
void sw_narrow_bf16(uint16_t *out, const float *in, long n) { CHOSEN(narrow_bf16)(out, in, n); }
void sw_widen_i8(float *out, const int8_t *in, long n) { CHOSEN(widen_i8)(out, in, n); }
void sw_widen_u8(float *out, const uint8_t *in, long n) { CHOSEN(widen_u8)(out, in, n); }
void sw_sum_runs(double *sums, const double *in, long run, long n) { CHOSEN(sum_runs)(sums, in, run, n); }
void sw_add(double *sums, const double *in, long n) { CHOSEN(add)(sums, in, n); }
void sw_products_f32(const sw_products *p) { CHOSEN(products_f32)(p); }
void sw_products_f64(const sw_products *p) { CHOSEN(products_f64)(p); }
void sw_products_f16(const sw_products *p) { CHOSEN(products_f16)(p); }
void sw_products_bf16(const sw_products *p) { CHOSEN(products_bf16)(p); }

#ifndef STERNWAY_VECTOR_H
#define STERNWAY_VECTOR_H
#include <stdint.h>

/* Loops over one block. Each is plain C that the compiler turns into vector code. EACH_PROCESSOR(result, name, parameters,
   arguments, body) makes the function sw_<name> three times, for any processor, for one with AVX2 and for one with AVX-512, and
   picks at run time; all give the same bits, since nothing is reordered and no product is fused with a sum. */
#if defined(__x86_64__) && defined(__GNUC__)
#define VECTOR_OPTIONS optimize("O3", "no-math-errno", "no-trapping-math")
#define VECTOR_256 __attribute__((target("avx2,f16c"), VECTOR_OPTIONS))
#define VECTOR_512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512"), VECTOR_OPTIONS))
#define EACH_PROCESSOR(result, name, parameters, arguments, ...) \
  static result name##_plain parameters __VA_ARGS__ \
  VECTOR_256 static result name##_256 parameters __VA_ARGS__ \
  VECTOR_512 static result name##_512 parameters __VA_ARGS__ \
  result sw_##name parameters { \
    return vector_width() == 512 ? name##_512 arguments : vector_width() == 256 ? name##_256 arguments : name##_plain arguments; \
  }
static inline int vector_width(void) {
  static int width; /* the same whoever computes it */
  if (!width) {
    int has256 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    int has512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    width = has256 && has512 ? 512 : has256 ? 256 : 64;
  }
  return width;
}
#else
#define EACH_PROCESSOR(result, name, parameters, arguments, ...) result sw_##name parameters __VA_ARGS__
#endif

#ifdef __GNUC__
#pragma GCC optimize("fp-contract=off")
#endif

#define INLINE static inline __attribute__((always_inline))

void sw_widen_f16(float *out, const uint16_t *in, long n);
void sw_narrow_f16(uint16_t *out, const float *in, long n);
void sw_widen_bf16(float *out, const uint16_t *in, long n);
void sw_narrow_bf16(uint16_t *out, const float *in, long n);
void sw_widen_i8(float *out, const int8_t *in, long n);
void sw_widen_u8(float *out, const uint8_t *in, long n);

/* The sum of each run of values. */
void sw_sum_runs_f32(double *sums, const float *in, long run, long n);
void sw_sum_runs_f64(double *sums, const double *in, long run, long n);

/* out = x y and out = x (y - z). One number of y serves a run of y_run elements; 1: it has a number for each element. Runs longer
   than 1 are multiples of the shortest. */
void sw_multiply_f32(float *out, const float *x, const float *y, long y_run, long n);
void sw_multiply_f64(double *out, const double *x, const double *y, long y_run, long n);
void sw_shifted_f32(float *out, const float *x, const float *y, long y_run, const float *z, long z_run, long n);
void sw_shifted_f64(double *out, const double *x, const double *y, long y_run, const double *z, long z_run, long n);

/* The portable conversions of float16, so that tests can compare them with the ones that this processor prefers. */
void sw_widen_f16_portable(float *out, const uint16_t *in, long n);
void sw_narrow_f16_portable(uint16_t *out, const float *in, long n);
#endif

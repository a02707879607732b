#include "rope.h"

#include <string.h>

#include "../../cpu/vector.h"

/* Pairs that are rotated at once if they are converted or gathered first. */
enum { PAIRS = 256 };

/* Cody-Waite argument reduction: pi / 2 in three parts. Products of the first two with an integer
   below 2^20 are exact. */
#define QUARTER_1 0x1.921fb544p0
#define QUARTER_2 0x42d18469p-64
#define QUARTER_3 0x898cc51701b83p-116
#define QUARTERS 0x1.45f306dc9c883p-1 /* 2 / pi */
#define NEAREST 0x1.8p52              /* adding it rounds to an integer, in the low bits */

INLINE uint64_t bits_of_double(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
INLINE double double_of(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

#define LOOPS "rope_loops.h"
#include "../../cpu/each_processor.h"

void sw_rope_factors_f32(const sw_rope_factors *f) { CHOSEN(rope_factors_f32)(f); }
void sw_rope_factors_f64(const sw_rope_factors *f) { CHOSEN(rope_factors_f64)(f); }

void sw_rope_rows_of(long dtype, const sw_rope_rows *r) {
  switch (dtype) {
#define ROWS(suffix, stored, wide) \
  case DTYPE_##suffix: CHOSEN(rope_rows_##suffix)(r); break;
  EACH_FLOAT(ROWS)
#undef ROWS
  }
}

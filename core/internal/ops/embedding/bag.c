/* The loops of embedding bags (bag.h), for each processor. */
#include "rows.h"

#include <math.h>
#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__GNUC__)
#include <arm_neon.h>
#endif

#include "../../cpu/vector.h"

/* Clears `count` adjacent rows. */
static void store_zeros(const sw_bag_out *out, long row, long count) {
  if (out->update) return; /* no index names them */
  long n = out->columns, size = DTYPE_SIZE[out->narrow];
  char *to = row_of(out, row);
  if (out->column == 1 && out->row == n) {
    memset(to, 0, count * n * size);
    return;
  }
  for (; count > 0; count--, to += out->row * size) {
    if (out->column == 1) memset(to, 0, n * size);
    else for (long i = 0; i < n; i++) memset(to + i * out->column * size, 0, size);
  }
}

void sw_bag_zeros(const sw_bag_out *out) { store_zeros(out, 0, out->rows); }

#define LOOPS "bag_loops.h"
#include "../../cpu/each_processor.h"

#define EXPORT(name) \
  void sw_bag_rows_##name(const sw_bag_rows *b) { CHOSEN(bag_rows_##name)(b); } \
  void sw_bag_terms_##name(const sw_bag_terms *b) { CHOSEN(bag_terms_##name)(b); } \
  void sw_bag_dots_##name(const sw_bag_dots *b) { CHOSEN(bag_dots_##name)(b); }

EXPORT(f32)
EXPORT(f64)
EXPORT(f32_wide)
EXPORT(f64_wide)

/* Forward scans on the CPU, tile by tile.

   Floating-point exception flags are not read. With correct flags, compilers would turn selections
   into branches. */
#ifndef __clang__
#pragma GCC optimize("no-trapping-math", "no-math-errno")
#endif

#include <stddef.h>

#include "forward.h"
#include "forward_steps.h"
#include "group.h"

/* Sets the prefixes of a group; without states, those of the first position of a row. */
INLINE void unpack_prefixes(enum scan_kind kind, const group *g, const double *restrict states,
                            double *restrict a, double *restrict b, double *restrict c) {
  for (long l = 0; l < g->width; l++) {
    a[l] = initial_prefix(kind);
    b[l] = c[l] = 0;
  }
  if (states) for (long l = 0; l < g->lanes; l++) {
    const double *from = states + 3 * (g->lane + l);
    a[l] = from[0], b[l] = from[1], c[l] = from[2];
  }
}

/* Sets the indices of the running maxima, and the index of the first position of each lane. */
INLINE void init_indices(const scan_forward_call *call, const group *g, const double *restrict c,
                         uint64_t *restrict index, uint64_t *restrict here) {
  for (long l = 0; l < g->width; l++) index[l] = bits(c[l]), here[l] = call->origin;
  const int64_t *firsts = (const int64_t *)(uintptr_t)call->firsts;
  if (firsts) for (long l = 0; l < g->lanes; l++) here[l] += firsts[(call->first_lane + g->lane + l) % call->rows];
  if (call->split_length == call->row_length) return; /* whole rows */
  for (long l = 0; l < g->lanes; l++) {
    int64_t split = (call->first_lane + g->lane + l) / call->rows;
    here[l] += call->delta * split * call->split_length;
  }
}

#define LOOPS "forward_loops.h"
#include "../../../cpu/each_processor.h"

#define CASE(name, kind) case kind: CHOSEN(scan_forward_##name)(call, is_upsweep, states); break;
INLINE void sweep(const scan_forward_call *call, int is_upsweep, double *states) {
  if (call->narrow) sw_scan_forward_narrow(call, is_upsweep, states);
  else if (states || !call->has_narrow || !sw_scan_forward_short(call)) {
    switch (call->kind) { EACH_ARITHMETIC_KIND(CASE) EACH_RECORD_KIND(CASE) }
  }
}

void sw_scan_forward_upsweep(const scan_forward_call *call, double *states) { sweep(call, 1, states); }

void sw_scan_forward_downsweep(const scan_forward_call *call, double *states) { sweep(call, 0, states); }

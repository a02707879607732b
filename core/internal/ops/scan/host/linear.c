/* Linear recurrences h[t] = a[t] h[t-1] + b[t] and their gradients on the CPU, tile by tile.

   Floating-point exception flags are not read. With correct flags, compilers would turn selections
   into branches. */
#ifndef __clang__
#pragma GCC optimize("no-trapping-math", "no-math-errno")
#endif

#include <stddef.h>

#include "group.h"
#include "linear.h"
#include "steps.h"

/* Position k of a group of lanes, or of its lane l. */
#define AT_POSITION(k) &(scan_window){g->lane, g->lanes, g->width, k, 1, 0}
#define OF_LANE(l, k) &(scan_window){g->lane + (l), 1, 1, k, 1, 0}

/* The flags of a group: addresses in a call have those of all its lanes. */
INLINE const uint8_t *flags_of(uint64_t address, const group *g) {
  return (const uint8_t *)(uintptr_t)address + g->lane;
}

/* The number of lanes whose flag has a value. */
INLINE long count_of(const uint8_t *flags, int value, const group *g) {
  long count = 0;
  for (long l = 0; l < g->lanes; l++) count += flags[l] == value;
  return count;
}

/* Loads position k of the lanes whose flag has a value. */
static void load_some(double *to, const scan_operand *from, long k, const uint8_t *flags, int value, const group *g) {
  if (count_of(flags, value, g) == g->lanes) {
    sw_scan_load(to, from, AT_POSITION(k));
    return;
  }
  for (long l = 0; l < g->lanes; l++) if (flags[l] == value) sw_scan_load(to + l, from, OF_LANE(l, k));
}

/* Stores the states of the lanes whose flag is 0. */
static void store_some(const scan_operand *to, const double *from, const uint8_t *flags, const group *g) {
  if (count_of(flags, 0, g) == g->lanes) {
    sw_scan_store(to, from, AT_POSITION(0));
    return;
  }
  for (long l = 0; l < g->lanes; l++) if (!flags[l]) sw_scan_store(to, from + l, OF_LANE(l, 0));
}

/* The states that enter lanes on one side: those of the other lanes they continue, if states is
   given, or of their sequences. */
INLINE void init_states(double *to, const scan_operand *from, const uint8_t *flags, const double *states,
                        const group *g) {
  memset(to, 0, sizeof *to * g->width);
  if (from->data) load_some(to, from, 0, flags, 0, g);
  if (states) for (long l = 0; l < g->lanes; l++) if (flags[l]) to[l] = states[g->lane + l];
}

/* Keeps states after the ends of lanes: factors of 1, and terms of -0. */
INLINE void keep_after_ends(const linear_call *call, const group *g, double *a, double *terms, long k, long n) {
  const int64_t *lengths = (const int64_t *)(uintptr_t)call->a.lengths;
  if (!lengths || lengths[g->lane + g->lanes - 1] >= k + n) return;
  for (long l = g->lanes - 1; l >= 0 && lengths[g->lane + l] < k + n; l--) {
    long end = lengths[g->lane + l] - k;
    for (long i = end < 0 ? 0 : end; i < n; i++) a[i * g->width + l] = 1, terms[i * g->width + l] = -0.0;
  }
}

/* Clears the numbers of a tile after the ends of lanes. */
INLINE void clear_after_ends(const int64_t *lengths, const group *g, double *tile, long k, long n) {
  if (!lengths || lengths[g->lane + g->lanes - 1] >= k + n) return;
  for (long l = g->lanes - 1; l >= 0 && lengths[g->lane + l] < k + n; l--) {
    long end = lengths[g->lane + l] - k;
    for (long i = end < 0 ? 0 : end; i < n; i++) tile[i * g->width + l] = 0;
  }
}

/* Without initial states, the first decay of a sequence is not applied. */
INLINE void clear_first(const linear_call *call, const group *g, double *a) {
  const uint8_t *enters = flags_of(call->enters, g);
  if (!call->initial_state.data) for (long l = 0; l < g->lanes; l++) a[l] = enters[l] ? a[l] : 0;
}

/* Multiplies m 2^e by v. A factor of 0 cuts off whatever else is a factor, NaN included. Products
   of four factors of other types than float64 stay in range, so that scale may wait. */
INLINE void extend(int exact, double v, double *m, double *e) {
  double grow = exact && fabs(v) < 0x1p-900 ? 200 : 0, product = *m * (exact ? v * power(grow) : v);
  *m = (v == 0) | (*m == 0) ? 0 : product;
  *e -= grow;
}

#define LOOPS "linear_loops.h"
#include "../../../cpu/each_processor.h"

void sw_linear_upsweep(const linear_call *call, int is_backward, double *states) {
  CHOSEN(linear_upsweep)(call, is_backward, states);
}

void sw_linear_forward(const linear_call *call, const double *states) { CHOSEN(linear_forward)(call, states); }

void sw_linear_backward(const linear_call *call, const double *states, double *sums) {
  CHOSEN(linear_backward)(call, states, sums);
}

void sw_linear_pass(const scan_operand *from, const scan_operand *to, int64_t lanes) {
  double states[SCAN_WIDEST];
  struct { int64_t lanes, n; } all = {lanes, 1}, *call = &all;
  EACH_GROUP {
    memset(states, 0, sizeof states);
    if (from->data) sw_scan_load(states, from, AT_POSITION(0));
    sw_scan_store(to, states, AT_POSITION(0));
  }
}

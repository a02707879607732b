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

#define STATE_WINDOW(number) &(scan_window){g->lane, g->lanes, g->width, number, 1, 0}

/* The state that enters a sequence; 0 if the operand is left out. */
INLINE void enter(const scan_operand *from, const group *g, long number, double *state) {
  if (from->data) sw_scan_load(state, from, STATE_WINDOW(number));
  else memset(state, 0, sizeof *state * g->width);
}

/* The state that leaves a sequence. */
INLINE void leave(const scan_operand *to, const group *g, long number, const double *state) {
  if (to->data) sw_scan_store(to, state, STATE_WINDOW(number));
}

INLINE void clear_row(double *row, long width) { memset(row, 0, sizeof *row * width); }

#define LOOPS "linear_loops.h"
#include "../../../cpu/each_processor.h"

void sw_linear_forward(const linear_call *call) { CHOSEN(linear_forward)(call); }

void sw_linear_backward(const linear_call *call) { CHOSEN(linear_backward)(call); }

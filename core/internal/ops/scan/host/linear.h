/* The C loops of linear recurrences on the CPU; scan.h describes lanes and tiles. Lanes are whole
   rows. A row consists of sequences, each of which begins with a state of its own. */
#ifndef STERNWAY_SCAN_LINEAR_H
#define STERNWAY_SCAN_LINEAR_H
#include "scan.h"

typedef struct {
  int64_t lanes, n, sequences; /* n: positions of every lane */
  uint64_t starts;             /* address of the int64 at which each sequence begins in scan order, and of n */
  /* The operands of the recurrence and of its gradient. An operand without data is left out. */
  scan_operand a, b, h, dh, da, db;
  /* States of lanes: position i is that of sequence i in scan order. */
  scan_operand initial_state, final_state, dfinal_state, dinitial_state;
} linear_call;

/* forward stores h and the final states. backward stores da, db and the gradients of initial
   states. */
void sw_linear_forward(const linear_call *call);
void sw_linear_backward(const linear_call *call);
#endif

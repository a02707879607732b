/* The C loops of linear recurrences on the CPU; scan.h describes lanes and tiles. A lane is a
   segment of a sequence of a row (segments.go). */
#ifndef STERNWAY_SCAN_LINEAR_H
#define STERNWAY_SCAN_LINEAR_H
#include "scan.h"

typedef struct {
  int64_t lanes, n;        /* n: positions of the longest lane */
  uint64_t enters, leaves; /* address of a byte for each lane: whether it continues another, and is continued */
  /* The operands of the recurrence and of its gradient. An operand without data is left out. */
  scan_operand a, b, h, dh, da, db;
  /* States of the sequences of lanes, at position 0. */
  scan_operand initial_state, final_state, dfinal_state, dinitial_state;
} linear_call;

/* upsweep sets three numbers of each lane. Of the recurrence they are m and e, where m 2^e is the
   product of a, which does not leave the range of float64, and the last h if 0 enters a lane that
   continues another. Of the gradient, the third is the gradient of the state that enters the lane,
   if that of the state that leaves it to another is 0. */
void sw_linear_upsweep(const linear_call *call, int is_backward, double *states);

/* forward stores h and the final states. backward stores da, db and the gradients of initial
   states; sums, if given, receives the sum of da over the positions of each lane. states has a
   number for each lane: the state that enters, of lanes that continue others; of backward, the
   gradient of the state that leaves, of lanes that are continued. */
void sw_linear_forward(const linear_call *call, const double *states);
void sw_linear_backward(const linear_call *call, const double *states, double *sums);

/* pass copies one state of each lane; 0 if `from` has no data. */
void sw_linear_pass(const scan_operand *from, const scan_operand *to, int64_t lanes);
#endif

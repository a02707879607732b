/* The C loops of forward scans on the CPU; scan.h describes lanes and tiles. A call is scanned in
   tiles (forward.c), or in vectors along contiguous memory (narrow.c). */
#ifndef STERNWAY_SCAN_FORWARD_H
#define STERNWAY_SCAN_FORWARD_H
#include "scan.h"

typedef struct {
  int64_t kind, lanes, n; /* kind: a scan_kind that reads x, not indices; n: positions of every lane */
  int64_t has_narrow;     /* narrow.c has code for the kind */
  int64_t narrow;         /* rows that alternate in contiguous memory and form one lane: 1, 2 or 4; 0: use tiles */
  int64_t with_index;     /* maxima and minima: find indices, too. The members up to x are for indices only. */
  int64_t origin, delta;  /* the index of the first position of a row in scan order, and the distance to the next */
  int64_t first_lane, rows, split_length; /* lane l begins at position (first_lane + l) / rows * split_length */
  int64_t row_length;     /* positions of a row */
  uint64_t firsts;        /* address of an int64 for each row, which is added to its indices; 0: none is */
  scan_operand x, y, indices;
} scan_forward_call;

/* A state is a prefix of three numbers (forward_steps.h).

   upsweep sets states to the aggregates of the lanes. downsweep stores y and, if with_index, the
   indices; operands without data are not stored. Its states are the prefixes of the lanes, and
   receive the prefixes after them; NULL: lanes are whole rows. */
void sw_scan_forward_upsweep(const scan_forward_call *call, double *states);
void sw_scan_forward_downsweep(const scan_forward_call *call, double *states);

/* The sweeps of narrow calls, of the kinds other than logcumsumexp. Each of the rows that
   alternate in a lane has a state. */
void sw_scan_forward_narrow(const scan_forward_call *call, int is_upsweep, double *states);

/* The downsweep of whole rows in contiguous memory, for these kinds. Returns 0 and does nothing if
   they are not contiguous, fewer than eight, of 16 bits, of one position, of several lengths, or
   have firsts. */
int sw_scan_forward_short(const scan_forward_call *call);
#endif

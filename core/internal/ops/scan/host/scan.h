#ifndef STERNWAY_SCAN_H
#define STERNWAY_SCAN_H
#include <stdint.h>

/* A lane is a row of a scan, or a part of one. A group of lanes advances together, one position at a time, so that the loop over
   lanes is what the compiler turns into vector code. What is worked on between a load and a store is a tile, positions of all lanes
   of a group, in float64: 32 positions of 32 lanes, or fewer positions of more lanes where rows are shorter than that. */
enum {
  SCAN_LANES = 32,     /* of a group at the least */
  SCAN_POSITIONS = 32, /* of a tile at the most */
  SCAN_TILE = SCAN_LANES * SCAN_POSITIONS,
  SCAN_WIDEST = 256,   /* lanes of a group at the most */
  SCAN_BATCH = 1024,   /* lanes of a call */
  SCAN_FEW = 16,       /* positions of a lane whose sums need not keep what rounding takes; longer runs of an index are no case for scatter */
  SCAN_FEWEST = 4      /* positions that are each compared with each index */
};

/* Where the lanes of an operand lie: position k of lane l is the element at[l] + k step, or at[0] + l pitch + k step where the lanes
   are regular. type is a row of the table of dtypes: float32, float64, float16, bfloat16. */
typedef struct {
  uint64_t data;
  int64_t type, step, regular, pitch;
  int64_t at[SCAN_BATCH];
} scan_operand;

/* A group of lanes, and which positions of it: rows of width numbers. The window after it is that of the next lanes, or of the same
   lanes so many positions on: its lines are asked for ahead. */
typedef struct {
  long lane, lanes, width, k, n, on;
} scan_window;

/* The tile of a window of an operand, in float64, and back. */
void sw_scan_load(double *tile, const scan_operand *from, const scan_window *w);
void sw_scan_store(const scan_operand *to, const double *tile, const scan_window *w);

enum scan_kind { SCAN_SUM, SCAN_PRODUCT, SCAN_MAX_LAST, SCAN_MAX_FIRST, SCAN_MIN_LAST, SCAN_MIN_FIRST, SCAN_SOFT,
                 SCAN_CHOSEN, SCAN_CHOSEN_DOWN, SCAN_KINDS };

typedef struct {
  int64_t kind, lanes, n; /* positions of every lane */
  int64_t whole;          /* lanes are whole rows */
  scan_operand dy, x, dx; /* a sum reads no x */
} scan_call;

/* The state of a lane is two numbers: of a sum nothing, of a product m 2^e, of a maximum its value and whether there is one, of
   logcumsumexp m and s where y = m + log s. Zeros stand before the first element of a row.

   fold sets states to those of the lanes alone and, of all kinds but maximum and logcumsumexp, carries from what enters the lanes on
   the right to what leaves them on the left; NULL: nobody asks. The chosen kinds take the int64 indices of a scan for x, as if they were
   float64, and for a state the index that the first position of the lane has when it wins, and the bits of the index before;
   positions count up or down. fold makes of that whether the indices are a scan's, and whether a position of the lane won. */
void sw_scan_fold(const scan_call *call, double *states, double *carries);

/* leave does for carries of the other kinds what fold cannot: the links depend on the states that enter the lanes from the left.
   It leaves the states before all tiles in checkpoints, two numbers for each lane of a group. */
void sw_scan_leave(const scan_call *call, const double *states, double *carries, double *checkpoints);

/* Where nothing wins in any lane: pass finds what leaves them, which is all of dy, and clear stores dx, which is zero. */
void sw_scan_pass(const scan_call *call, double *carries);
void sw_scan_clear(const scan_call *call);

/* walk stores dx. states enter the lanes from the left, a product as a plain number; NULL: the checkpoints are there already. carries
   enter from the right. Whole rows have neither. It returns whether the indices of the chosen kinds are a scan's: each is that of its
   position or the one before; if not, dx is to be found by sw_scan_add. */
int sw_scan_walk(const scan_call *call, const double *states, const double *carries, double *checkpoints);

/* beyond says whether some of n numbers of 64 bits is not a position of a row of so many; outside, whether some index, for x, is not. */
int sw_scan_beyond(uint64_t data, long n, int64_t row);
int sw_scan_outside(const scan_call *call, int64_t row);

/* scatter takes any indices for x, of up to SCAN_FEW positions, where lanes lie end to end, in either direction. */
void sw_scan_scatter(const scan_call *call);

/* gather takes any indices for x, of up to SCAN_FEWEST positions. */
void sw_scan_gather(const scan_call *call);

/* add takes any indices for x, of at most 32 lanes. dx is indexed by origin + delta index; sums has room for it twice. */
void sw_scan_add(const scan_call *call, int64_t origin, int64_t delta, double *sums);
#endif

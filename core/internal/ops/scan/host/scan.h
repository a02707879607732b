/* The C loops of the gradients of scans on the CPU. Forward scans (forward.h) share their operands,
   tiles and kinds. Many lanes advance together, one position at a time, so that the loop over lanes
   is vector code. A lane is a row, or a split of a row. Data is processed in tiles of float64: 32
   positions of a group of 32 lanes, or fewer positions of more lanes if rows are shorter. */
#ifndef STERNWAY_SCAN_H
#define STERNWAY_SCAN_H
#include <stdint.h>

enum {
  SCAN_LANES = 32,     /* lanes of a group, at least */
  SCAN_POSITIONS = 32, /* positions of a tile, at most */
  SCAN_TILE = SCAN_LANES * SCAN_POSITIONS,
  SCAN_WIDEST = 256,   /* lanes of a group, at most */
  SCAN_BATCH = 1024,   /* lanes of a call, at most */
  SCAN_SHORT_MAX = 16, /* positions of a lane whose sums need no compensation, and of a row for scatter, at most */
  SCAN_GATHER_MAX = 4  /* positions of a row for gather, at most */
};

/* An operand. Position k of lane l is the element offset[l] + k step, or offset[0] + l pitch + k
   step if the lanes are regular. type is a row of the table of dtypes: float32, float64, float16,
   bfloat16. lengths is the address of an int64 for each lane, its positions, which do not rise from
   lane to lane: loads put 0 after the last position of a lane, and stores leave it out. 0: all
   lanes have the positions of the call. */
typedef struct {
  uint64_t data, lengths;
  int64_t type, step, regular, pitch;
  int64_t offset[SCAN_BATCH];
} scan_operand;

/* The part of an operand in a tile: n positions from k on, of `lanes` lanes from `lane` on, in rows
   of `width` numbers. The cache lines of the window `prefetch` positions later are prefetched; 0:
   those of the next lanes. */
typedef struct {
  long lane, lanes, width, k, n, prefetch;
} scan_window;

/* load converts a window to a tile, store converts a tile to a window. */
void sw_scan_load(double *tile, const scan_operand *from, const scan_window *w);
void sw_scan_store(const scan_operand *to, const double *tile, const scan_window *w);

/* F(name, kind) for each kind of a list; the functions of a kind end with its name. Shared kinds
   have the loops `upsweep` and `downsweep` of kinds.c, the others loops of their own in
   kinds_loops.h. */
#define EACH_SHARED_KIND(F) F(sum, SCAN_SUM) F(log_sum, SCAN_LOG_SUM)
#define EACH_ARITHMETIC_KIND(F) EACH_SHARED_KIND(F) F(product, SCAN_PRODUCT)
#define EACH_RECORD_KIND(F) \
  F(max_last, SCAN_MAX_LAST) F(max_first, SCAN_MAX_FIRST) F(min_last, SCAN_MIN_LAST) F(min_first, SCAN_MIN_FIRST)
#define EACH_INDEX_KIND(F) F(by_index, SCAN_BY_INDEX) F(by_index_reversed, SCAN_BY_INDEX_REVERSED)
/* The suffixes of these kinds depend on the prefixes. */
#define EACH_DEPENDENT_KIND(F) EACH_RECORD_KIND(F) F(log_sum, SCAN_LOG_SUM)

#define SCAN_ENUMERATOR(name, kind) kind,
enum scan_kind {
  EACH_ARITHMETIC_KIND(SCAN_ENUMERATOR) EACH_RECORD_KIND(SCAN_ENUMERATOR) EACH_INDEX_KIND(SCAN_ENUMERATOR)
};

typedef struct {
  int64_t kind, lanes, n; /* n: positions of every lane */
  int64_t whole;          /* lanes are whole rows */
  scan_operand dy, x, dx; /* SCAN_SUM reads no x */
} scan_call;

/* A state is a prefix of two numbers: m and e of a product m 2^e; the value of a maximum, and
   whether there is one; m and s of logcumsumexp, where y = m + log s. A sum has none.
   Recurrence.initial in recurrence.go is the prefix of the first position of a row. The kinds by
   index read x as the int64 indices that cummax or cummin returned, in the bits of float64. Their
   state is the index that makes the first position of the lane a record (a new running maximum),
   and the bits of the index before it. Positions count up (SCAN_BY_INDEX) or down
   (SCAN_BY_INDEX_REVERSED). upsweep sets states to the aggregates of the lanes; of a kind by index,
   to whether the indices are those of a scan, and whether a position of the lane is a record. For
   the kinds outside EACH_DEPENDENT_KIND, carries holds the carry-in of each lane and
   receives its suffix; NULL: no suffixes are computed. */
void sw_scan_upsweep(const scan_call *call, double *states, double *carries);

/* suffix_upsweep computes the suffixes of maximum and logcumsumexp, which depend on the prefixes in
   states. It stores the prefix before each tile in checkpoints, two numbers for each lane of a
   group. */
void sw_scan_suffix_upsweep(const scan_call *call, const double *states, double *carries, double *checkpoints);

/* sum_suffixes sums dy of lanes without a record into their suffixes. fill stores a value in dx. */
void sw_scan_sum_suffixes(const scan_call *call, double *carries);
void sw_scan_fill(const scan_call *call, double value);

/* downsweep stores dx, unless it has no data. states are the prefixes of the lanes, of a product as
   one plain number; NULL: checkpoints are set already. carries are the carry-ins on the right; for
   the kinds other than those by index they receive the suffixes. Whole rows have neither. For the
   kinds by index it returns whether the indices are those of a scan, each equal to its position or
   to the index before; if not, sw_scan_add computes dx. */
int sw_scan_downsweep(const scan_call *call, const double *states, double *carries, double *checkpoints);

/* out_of_range returns whether one of n int64 at data is out of range 0 to row - 1;
   indices_out_of_range, whether one of the indices in x is. */
int sw_scan_out_of_range(uint64_t data, long n, int64_t row);
int sw_scan_indices_out_of_range(const scan_call *call, int64_t row);

/* scatter computes dx by any indices in x, of rows of at most SCAN_SHORT_MAX positions that lie end
   to end, in either direction. */
void sw_scan_scatter(const scan_call *call);

/* gather computes dx by any indices in x, of rows of at most SCAN_GATHER_MAX positions. */
void sw_scan_gather(const scan_call *call);

/* add computes dx by any indices in x, of at most 32 lanes. Index i denotes the position origin +
   delta i in scan order. sums holds twice as many numbers as dx. */
void sw_scan_add(const scan_call *call, int64_t origin, int64_t delta, double *sums);
#endif

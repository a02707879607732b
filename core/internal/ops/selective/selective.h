/* The C loops of selective scans and their gradients on the CPU. A call computes a chunk of
   positions of up to SELECTIVE_LANES channels of one batch and one group: a vector holds one
   position and one state of these channels, which share B and C.

   A tile is an array of positions of all lanes. Its numbers, and all others that are called wide,
   are float64 beside float64 and float32 beside other dtypes. Addresses are integers (see sw_factor
   in cpu/vector.h), 0 of an operand that is left out. Strides are in elements. Dtypes are rows of
   tensor.DTypeRows. */
#ifndef STERNWAY_SELECTIVE_H
#define STERNWAY_SELECTIVE_H
#include <stdint.h>

enum {
  SELECTIVE_LANES = 16,
  SELECTIVE_CHUNK = 256, /* positions */
  SELECTIVE_FOLD = 16,   /* states that are summed before the sum is added to the total */
};

/* The tiles of a worker. */
enum {
  TILE_U, TILE_DELTA, TILE_Z, TILE_DY, TILE_STEP, TILE_INPUT, TILE_Y, TILE_PART_Y, TILE_DOUT, TILE_DINPUT,
  TILE_PART_DINPUT, TILE_DSTEP, TILE_PART_DSTEP, TILE_DECAY, TILE_KEPT, TILE_TERMS, SELECTIVE_TILES
};

/* Elements by two indices: those of channels, and positions or states. */
typedef struct {
  uintptr_t data;
  int64_t lane, step;
} selective_operand;

/* Wide numbers by sequence, channel and state. */
typedef struct {
  uintptr_t data;
  int64_t sequence, lane, state;
} selective_states;

/* The positions first to end - 1 of a chunk that are of one sequence, and whether it begins with
   the first and ends with the last of them. */
typedef struct {
  int64_t sequence;
  int32_t first, end, begins, ends;
} selective_segment;

typedef struct {
  int64_t lanes, positions, states, dtype, softplus;
  int64_t segments;
  uintptr_t segment;
  uintptr_t tiles;
  selective_operand u, delta, z, y; /* of the gradient, y is left out */
  selective_operand a, d, bias;     /* wide; d and bias have no steps */
  /* B and C as wide numbers: SELECTIVE_CHUNK positions of each state or, of constant ones,
     SELECTIVE_LANES channels of each state. */
  uintptr_t b, c;
  int64_t constant_b, constant_c;
  uintptr_t state; /* wide, lanes of each state: enters the chunk and leaves it; of the gradient, its gradient */
  selective_states initial, last, before; /* before: of the chunk, with sequence left out */
  /* The gradient. */
  selective_operand dy, du, ddelta, dz;
  selective_states dlast, dinitial;
  uintptr_t db, dc;           /* wide sums over channels, of SELECTIVE_CHUNK positions, or 0 */
  int64_t db_state, dc_state; /* numbers from a state to the next */
  /* float64 sums over positions of lanes, for each state or one, followed by as many corrections:
     of A, of constant B and C, D and delta_bias. */
  uintptr_t da_sums, db_sums, dc_sums, dd_sums, dbias_sums;
} selective_call;

/* Stores y, the state that enters the chunk, and the states after sequences that end. */
void sw_selective_forward(const selective_call *call);

/* Stores du, ddelta, dz and the gradients of initial states, and adds to sums. Chunks come from the
   last to the first. */
void sw_selective_backward(const selective_call *call);

/* Converts positions of some states to wide numbers, SELECTIVE_CHUNK of each state. */
void sw_selective_load_rows(uintptr_t to, const selective_operand *from, int64_t dtype, int64_t states, int64_t n);

/* Copies the numbers of lanes, SELECTIVE_LANES for each state. */
void sw_selective_load_lanes(uintptr_t to, const selective_operand *from, int64_t dtype, int64_t states, int64_t lanes);

/* Adds n numbers of `count` arrays of wide numbers in float64, in order, and stores the sums by the
   steps of an operand. */
void sw_selective_add_rows(const selective_operand *to, int64_t dtype, uintptr_t from, int64_t count,
                           int64_t distance, int64_t n);

/* Copies numbers of channels and states, of `size` bytes each; without a source, sets them to 0. */
void sw_selective_copy_states(const selective_operand *to, const selective_operand *from, int64_t size,
                              int64_t channels, int64_t states);
#endif

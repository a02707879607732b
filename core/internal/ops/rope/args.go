package rope

import "github.com/sternway/sternway/core/internal/launch"

// This file states the argument and the constants of the CUDA kernels of rope:
// core/internal/generate writes cuda/rope/args.gen.cuh from it.

const (
	FineFrequencies  = 64 // frequencies of the first pairs, passed as they are; each further bit of the number of a pair has a factor of its own
	coarseFactors    = 14 // factors for the higher bits of a pair's index, and one for padding
	MaxRowsPerThread = 4  // rows that a thread has in flight beside the angles that it computes
)

// RopeProblem is what all operands share.
type RopeProblem struct {
	start, pairs int64 // [elements] the rotated part: its first element; half its length
	// Vectors of a token; those that rotate; vectors outside the rotated part, which are copied.
	units, rotating, copied int64
	tokens, places          int64 // tokens; places: tokens, or tokens of each batch
	stride, most            int64 // if tokens have few rows: from a token of a thread to its next; tokens of a thread at most
	lanes, tiles            int64 // log2 of adjacent threads over units and places; CTAs over them
	// Rows of a thread; CTAs over the rows of the first operand, which come before those of the
	// second.
	run, chunks                int64
	vector                     int64    // elements of an access
	byUnits, byTokens, byTiles [2]int64 // divisors: multiplier and shift
	forward, single            int64    // forward pass (the transpose); angles are formed in float32
	fastest                    float64  // the largest frequency
	// Of a table: rows; columns from a pair to the next; columns from a pair's first member to its
	// second.
	rows, pairStride, partnerOffset int64
	positions, cos, sin             launch.Address // or null
	positionDtype                   int64
	positionStride                  [2]int64 // [bytes] batch, token
	cosDtype                        int64
	cosStride                       [3]int64 // [bytes] batch, row, column
	sinDtype                        int64
	sinStride                       [3]int64
	fine                            [FineFrequencies]float64 // frequencies of the first pairs
	coarse                          [coarseFactors]float64   // factors of the bits of pair / kFineFrequencies
	fineLow                         [FineFrequencies]float32 // relative error of each of them
	coarseLow                       [coarseFactors]float32
}

// RopeOperand is one operand with its result. Rows that share angles are numbered by batch and
// head: rows of a group (a thread's are all of one group), and the groups.
type RopeOperand struct {
	in, out             launch.Address
	rows, chunks        int64    // of a group
	byChunks            [2]int64 // divisor
	inStride, outStride [5]int64 // [bytes] batch, group, row, token, element
}

// RopeArgs is the argument of all kernels of rope.
type RopeArgs struct {
	problem RopeProblem
	operand [2]RopeOperand
}

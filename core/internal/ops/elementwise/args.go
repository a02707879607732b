package elementwise

import (
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file states the arguments and the constants of the CUDA kernels of the engine:
// core/internal/generate writes cuda/elementwise/args.gen.cuh from it.

const (
	SmallBlock = 128 // threads of a CTA of map and rows; small, to keep the tail of the grid short
)

// Operand is an operand of a kernel, or 0 if it is absent.
type Operand struct {
	data   launch.Address
	dtype  int64
	stride [tensor.MaxRank]int64 // [elements]
}

// IterSpace is the index space of a launch, with which the argument of each kernel begins: the
// inputs and the outputs follow.
type IterSpace struct {
	extent                [tensor.MaxRank]int64
	kept, dims            int64
	keptSize, reducedSize int64 // products of the extents of dims 1..kept and kept+1..dims
	group                 int64 // rows: threads that share a kept index; a power of two
	lanes                 int64 // adjacent threads along inner; a power of two
	tiles                 int64 // tiles of lanes * U vectors along inner
	isShort               int64 // map and rows, 1: a thread has one vector of each of several short rows
	// Number of chunks of the reduced space; length of a chunk, in units (rows) or indices
	// (columns).
	chunks, chunk int64
	wide          int64          // 1: every access along inner is aligned and has stride 1, or has stride 0
	uses          int64          // two bits for each operand, inputs first: loaded, or stored at each element; input constant along inner
	summed        int64          // one bit for each output
	partial       launch.Address `cuda:"void*"` // [sum][chunk][kept index] in the accumulator, when chunks > 1
	scalar        [4]float64
}

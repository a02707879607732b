// Package host computes scans and their gradients on the CPU. Rows, or splits of rows, are lanes
// that advance together, so that the loop over lanes is vector code (lanes.go). Forward scans of
// few rows in contiguous memory use vectors along the row instead. The Go files divide rows and
// combine splits, and the C files loop over positions. Packed sequences are cut into segments,
// which are the lanes (segments.go, batch.go). The first line that fits says which:
//
//	gradient by indices, rows of at most 16 end to end       kinds.c: sw_scan_scatter
//	gradient by indices, rows of at most 4                   kinds.c: sw_scan_gather
//	gradient by indices that no scan produces                kinds.c: sw_scan_add
//	gradient of cumprod, cummax, cummin, or by indices       kinds_loops.h, block_loops.h
//	gradient of another kind                                 kinds.c, steps.h
//	linear recurrence, gradient of one                       linear.c, linear_loops.h
//	forward, kind without hasNarrow, packed sequences        forward_loops.h, forward_steps.h
//	forward, 1, 2 or 4 rows alternating in memory, long      narrow.c, narrow_loops.h
//	forward, at least 8 contiguous rows, float32 or float64  short_loops.h
//	forward, other layouts                                   forward_loops.h, forward_steps.h
package host

import (
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// The implementations, by the layout of the operands.
const (
	Lanes  = "lanes"  // rows, or splits of rows, side by side
	Narrow = "narrow" // forward scans: vectors along contiguous rows
)

// Kernels are the names of all implementations.
var Kernels = []string{Lanes, Narrow}

// Scan is a scan along a dimension of a shape, or the gradient of one.
type Scan struct {
	Recurrence *Recurrence
	Op         string // in messages
	Shape      []int64
	Dim        int
	IsReversed bool
	FirstWins  bool // of equal values
	Carries    bool // rows have carries
	// IsExclusive: y at a position is the scan of the positions before it.
	IsExclusive bool
	IsPacked    bool       // runs have the bounds of sequences
	packed      *sequences // of a part of a run; nil: rows are one sequence each
	parent      *Scan      // the scan that this is a part of; nil: it is no part
}

// Length is the number of positions of a row.
func (s *Scan) Length() int64 {
	if len(s.Shape) == 0 {
		return 1
	}
	return s.Shape[s.Dim]
}

// Rows is the number of rows; 0 if there is nothing to do.
func (s *Scan) Rows() int64 {
	elements, _ := tensor.Product(s.Shape)
	return elements / max(1, s.Length())
}

// Kernel is the implementation that contiguous operands use.
func (s *Scan) Kernel(isForward bool) string {
	if s.IsPacked {
		return Lanes
	}
	x := tensor.Tensor{DType: tensor.Float32, NDim: int32(len(s.Shape)), Present: 1}
	copy(x.Shape[:], s.Shape)
	copy(x.Strides[:], tensor.Compact(s.Shape))
	if isForward && s.startForward([]tensor.Tensor{x}, true).narrow > 0 {
		return Narrow
	}
	return Lanes
}

// Tasks is the number of tasks that share a pass over these operands.
func (s *Scan) Tasks(args []tensor.Tensor, isForward bool) int64 {
	bounds := cpu.BoundsOf(&args[operand.Seqlens])
	if isForward {
		bounds = cpu.BoundsOf(&args[operand.ForwardSeqlens])
	}
	if isForward || !args[operand.Indices].Given() {
		s = s.of(bounds, all)
	}
	if isForward {
		return s.startForward(without(args, operand.ForwardCarryIn, operand.ForwardSeqlens, operand.ForwardCarryOut), true).tasks()
	}
	return s.start(without(args, operand.CarryIn, operand.DCarryOut, operand.Seqlens, operand.DCarryIn)).tasks()
}

// space is the iteration space with the scanned dimension last.
func (s *Scan) space(args []tensor.Tensor) cpu.Space {
	var ordered, whole cpu.Space
	whole.N = len(s.Shape)
	copy(whole.Extent[:], s.Shape)
	for i := range args {
		if args[i].Given() {
			copy(whole.Stride[i][:], args[i].ElementStrides())
		}
	}
	for d := range whole.N {
		if d != s.Dim {
			ordered.Append(&whole, d)
		}
	}
	ordered.Kept = ordered.N
	if whole.N > 0 {
		ordered.Append(&whole, s.Dim)
	} else {
		ordered.Extent[0], ordered.N = 1, 1
	}
	return ordered
}

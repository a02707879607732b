package gpu

// The launches of packed sequences and of exclusive scans beside the scan itself.

import (
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/num"
)

// LastKernels are the last kernels in the queue of a program: linear_pass or scan_fill, scan_heads,
// scan_clear.
const LastKernels = 3

// scansFromEnd reports whether the scan runs from the last position in memory to the first. The
// kernels of forward scans read rows against scan order.
func (s *Scan) scansFromEnd() bool { return s.IsReversed != s.IsForward }

// rowsOfShape is the number of rows of the operands, also of rows without positions.
func (s *Scan) rowsOfShape() int64 {
	rows := int64(1)
	for d, extent := range s.Shape {
		if d != s.Dim {
			rows *= extent
		}
	}
	return rows
}

// storeHeads launches scan_heads.
func (r *run) storeHeads() error {
	n := r.problem.Length
	r.queue.Begin()
	args := launch.Append[HeadsArgs](r.queue)
	r.setBounds(&args.bounds)
	r.queue.SetAddress(&args.heads, launch.WorkspaceOperand, r.workspace)
	args.n = n
	if r.IsReversed {
		args.isReversed = 1
	}
	if r.LeavesOneOut && r.scansFromEnd() { // the position that is left out of x
		args.origin = 1
	}
	return r.queue.Submit(len(r.queue.Kernels)-2, num.CeilDiv(n+1, HeadPositions), launch.BlockThreads)
}

// finishEnds stores what no scan computes: the first results of an exclusive scan, or the last ones
// of its gradient, and the states that empty sequences of a linear recurrence pass on.
func (r *run) finishEnds(numbers *[numRoles]int) error {
	kind, sequences := r.Plain.Kind, int64(1)
	passesStates := kind.isLinear && numbers[suffixOut] >= 0 && (kind.isPacked || r.Plain.Length == 0)
	if number := r.boundsNumber(r.args); number >= 0 {
		sequences = r.args[number].Shape[0] - 1
	}
	rows := r.rowsOfShape()
	hasNoPositions := len(r.Shape) > 0 && r.Shape[r.Dim] == 0
	if !passesStates && (!r.LeavesOneOut || hasNoPositions) || rows*sequences == 0 {
		return nil
	}
	r.queue.Begin()
	if passesStates {
		r.operands = stridedOf(r.Shape, r.Dim, *numbers, r.args, true)
		args := launch.Append[LinearArgs](r.queue)
		args.n, args.dims, args.flags = r.Plain.Length, int64(r.operands.dims), r.stateFlags()
		copy(args.extent[:], r.operands.extent[:])
		args.rows = rows
		r.setOperand(&args.stateIn, suffixIn)
		r.setOperand(&args.stateOut, suffixOut)
		r.setBounds(&args.bounds)
	} else {
		only := [numRoles]int{}
		for i := range only {
			only[i] = -1
		}
		only[result] = numbers[result]
		r.operands = stridedOf(r.Shape, r.Dim, only, r.args, false)
		args := launch.Append[FillArgs](r.queue)
		args.n, args.dims = r.Plain.Length+1, int64(r.operands.dims)
		copy(args.extent[:], r.operands.extent[:])
		args.rows, args.value = rows, r.Empty
		if r.scansFromEnd() == r.IsForward {
			args.atEnd = 1
		}
		r.setOperand(&args.outputs[0], result)
		r.setBounds(&args.bounds)
	}
	return r.queue.Submit(len(r.queue.Kernels)-LastKernels, num.CeilDiv(rows*sequences, launch.BlockThreads), launch.BlockThreads)
}

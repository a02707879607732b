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
	n := r.Plain.Length
	r.queue.Begin()
	args := launch.Append[HeadsArgs](r.queue)
	r.setBounds(&args.bounds)
	r.queue.SetAddress(&args.heads, launch.WorkspaceOperand, r.workspace)
	args.n, args.isReversed, args.isChunk = n, flagIf(r.IsReversed, 1), flagIf(r.problem.Carries, 1)
	all := headBytes(&r.Plain) * 8
	each := num.CeilDiv(all, fillCTAsPerSM*r.problem.Device.NumSMs)
	args.positions = num.Clamp(num.CeilDiv(each, headPositionStep)*headPositionStep, headPositionStep, MaxHeadPositions)
	return r.queue.Submit(len(r.queue.Kernels)-2, num.CeilDiv(all, args.positions), launch.BlockThreads)
}

// finish stores what no scan computes: the first results of an exclusive scan, or the last ones of
// its gradient, and the states that empty sequences of a linear recurrence pass on.
func (r *run) finish(numbers *[numRoles]int) error {
	sequences := int64(1)
	if number := r.boundsNumber(r.args); number >= 0 {
		sequences = r.args[number].Shape[0] - 1
	}
	kind := r.Plain.Kind
	hasEmpty := kind.isPacked || r.Plain.Length == 0
	switch count := r.rowsOfShape() * sequences; {
	case count == 0:
	case r.leavesOneOut:
		return r.fillEnds(numbers[result], count)
	case kind.isLinear && numbers[suffixOut] >= 0 && hasEmpty:
		return r.passStates(numbers, count)
	}
	return nil
}

// passStates launches linear_pass for `count` sequences of rows.
func (r *run) passStates(numbers *[numRoles]int, count int64) error {
	r.queue.Begin()
	r.operands = stridedOf(r.Shape, r.Dim, *numbers, r.args, true)
	args := launch.Append[LinearArgs](r.queue)
	args.n, args.dims, args.flags = r.Plain.Length, int64(r.operands.dims), r.stateFlags()
	copy(args.extent[:], r.operands.extent[:])
	args.rows = r.rowsOfShape()
	r.setOperand(&args.stateIn, suffixIn)
	r.setOperand(&args.stateOut, suffixOut)
	r.setBounds(&args.bounds)
	return r.submitFirstOfLast(count)
}

// fillEnds launches scan_fill for the output, of `count` sequences of rows.
func (r *run) fillEnds(output int, count int64) error {
	only := noNumbers()
	only[result] = output
	r.queue.Begin()
	r.operands = stridedOf(r.Shape, r.Dim, only, r.args, false)
	args := launch.Append[FillArgs](r.queue)
	args.n, args.dims = r.Plain.Length, int64(r.operands.dims)
	copy(args.extent[:], r.operands.extent[:])
	args.rows, args.value = r.rowsOfShape(), r.Empty
	if r.scansFromEnd() == r.IsForward {
		args.atEnd = 1
	}
	r.setOperand(&args.outputs[0], result)
	r.setBounds(&args.bounds)
	return r.submitFirstOfLast(count)
}

// submitFirstOfLast launches the first of the last kernels, with a thread for each of `count`
// numbers.
func (r *run) submitFirstOfLast(count int64) error {
	return r.queue.Submit(len(r.queue.Kernels)-LastKernels, num.CeilDiv(count, launch.BlockThreads), launch.BlockThreads)
}

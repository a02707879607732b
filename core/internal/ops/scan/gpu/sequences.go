package gpu

// The launches of packed sequences and of exclusive scans beside the scan itself.

import (
	"fmt"
	"math"

	"github.com/sternway/sternway/core/internal/errs"
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
	if err := r.checkSequences(numbers); err != nil {
		return err
	}
	switch count := r.rowsOfShape() * r.sequences(); {
	case count == 0:
	case r.leavesOneOut:
		return r.fillEnds(numbers[result], count)
	case r.passesStates(numbers):
		return r.passStates(numbers, count)
	}
	return nil
}

// sequences is the number of sequences of a row.
func (r *run) sequences() int64 {
	if number := r.boundsNumber(r.args); number >= 0 {
		return r.args[number].Shape[0] - 1
	}
	return 1
}

// passesStates reports whether sequences of a linear recurrence may be empty and have final states.
func (r *run) passesStates(numbers *[numRoles]int) bool {
	kind := r.Plain.Kind
	return kind.isLinear && numbers[suffixOut] >= 0 && (kind.isPacked || r.Plain.Length == 0)
}

// checkSequences refuses more sequences of all rows than finish has threads for.
func (r *run) checkSequences(numbers *[numRoles]int) error {
	most, rows := int64(math.MaxInt32)*launch.BlockThreads, max(1, r.rowsOfShape())
	if r.sequences() <= most/rows || !r.leavesOneOut && !r.passesStates(numbers) {
		return nil
	}
	wanted := fmt.Sprintf("of at most %d sequences of %d rows on a GPU", most/rows, rows)
	return errs.New(errs.Unsupported, "", "cu_seqlens", wanted, fmt.Sprint(r.sequences()), "run parts of the rows")
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
	args.rows, args.value = r.rowsOfShape(), r.Identity
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

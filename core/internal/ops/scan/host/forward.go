package host

// #cgo CFLAGS: -O2 -I${SRCDIR}/../../../cpu
// #include "forward.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// forwardState is the prefix before a position: three numbers, which forward.h defines for each
// kind.
type forwardState [3]float64

// forwardRun is one run of a forward scan on the CPU.
type forwardRun struct {
	division // of x, y, indices
	kind     int64
}

// RunForward computes y and, if they are given, the indices.
func (s *Scan) RunForward(args []tensor.Tensor) {
	h := &forwardRun{division: s.divide(args), kind: s.Recurrence.loops[0]}
	if s.FirstWins {
		h.kind = s.Recurrence.loops[1]
	}
	switch {
	case h.rows == 0 || h.n == 0:
	case h.lanes == h.rows:
		h.downsweep(nil)
	default:
		h.scanSplits()
	}
}

// scanSplits scans rows that are split: an upsweep for the aggregates of the splits, their prefixes
// in scan order, and a downsweep.
func (h *forwardRun) scanSplits() {
	states := make([]forwardState, h.lanes)
	h.inBatches(func(w *worker, first, count int64) {
		h.prepare(w, first, count, false)
		C.sw_scan_forward_upsweep(&w.forward, forwardStates(states[first:first+count]))
	})
	next := make([]forwardState, h.rows)
	for i := range next {
		next[i] = h.Recurrence.forwardInitial
	}
	for i := range states {
		row := int64(i) % h.rows
		states[i], next[row] = next[row], h.Recurrence.forwardCombine(next[row], states[i], h.FirstWins)
	}
	h.downsweep(states)
}

// downsweep stores y and the indices, from the prefixes of lanes; whole rows have none.
func (h *forwardRun) downsweep(states []forwardState) {
	h.inBatches(func(w *worker, first, count int64) {
		h.prepare(w, first, count, true)
		if states == nil {
			C.sw_scan_forward_downsweep(&w.forward, nil)
			return
		}
		C.sw_scan_forward_downsweep(&w.forward, forwardStates(states[first:first+count]))
	})
}

// prepare sets the call of a worker: lanes of one length, x and, in a downsweep, the outputs.
func (h *forwardRun) prepare(w *worker, first, count int64, isDownsweep bool) {
	call, hasIndices := &w.forward, h.args[operand.ForwardIndices].Given()
	call.kind, call.lanes, call.n, call.with_index = C.int64_t(h.kind), C.int64_t(count), C.int64_t(h.lengthOf(first)), 0
	h.setOperand(&call.x, operand.ForwardX, first, count)
	if isDownsweep {
		h.setOperand(&call.y, operand.ForwardY, first, count)
	}
	if !hasIndices {
		return
	}
	call.with_index, call.origin, call.delta = 1, 0, 1
	if h.IsReversed {
		call.origin, call.delta = C.int64_t(h.n-1), -1
	}
	call.first_lane, call.rows, call.split_length = C.int64_t(first), C.int64_t(h.rows), C.int64_t(h.splitLength)
	if isDownsweep {
		h.setOperand(&call.indices, operand.ForwardIndices, first, count)
	}
}

func forwardStates(s []forwardState) *C.double {
	return (*C.double)(unsafe.Pointer(unsafe.SliceData(s)))
}

// combineSums adds sums and their rounding errors (Knuth's TwoSum).
func combineSums(left, right forwardState, _ bool) forwardState {
	sum, rounding := twoSum(left[0], right[0])
	rounding += left[1] + right[1]
	if rounding-rounding != 0 {
		rounding = 0
	}
	return forwardState{sum, rounding}
}

// twoSum is a + b and its rounding error.
func twoSum(a, b float64) (sum, rounding float64) {
	sum = a + b
	part := sum - b
	return sum, (a - part) + (b - (sum - part))
}

// combineProducts multiplies numbers m 2^e.
func combineProducts(left, right forwardState, _ bool) forwardState {
	p := scaledProduct(state{left[0], left[1]}, state{right[0], right[1]})
	return forwardState{p[0], p[1]}
}

// combineRecords is the maximum of two splits with its index.
func combineRecords(left, right forwardState, first bool) forwardState {
	if beats(state{left[0], left[1]}, state{right[0], right[1]}, first) {
		return right
	}
	return left
}

// combineLogSums adds sums exp(m) (1 + t), the larger m first: its own term stays the 1 of the
// result.
func combineLogSums(left, right forwardState, _ bool) forwardState {
	if right[0] > left[0] {
		left, right = right, left
	}
	scale := 1.0
	if right[0] != left[0] {
		scale = exponential(right[0], left[0])
	}
	if right[0] == math.Inf(-1) {
		scale = 0 * (1 + right[1]) // NaN stays
	}
	t, rounding := twoSum(left[1], float64((1+right[1])*scale))
	rounding += left[2] + float64(right[2]*scale)
	if rounding-rounding != 0 {
		rounding = 0
	}
	return forwardState{left[0], t, rounding}
}

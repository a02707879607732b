package host

// #cgo CFLAGS: -O2 -Wno-psabi
// #include "forward.h"
import "C"

import (
	"slices"
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// forwardState is the prefix before a position: three numbers, which forward.h defines for each
// kind.
type forwardState [3]float64

// minNarrowLength is the least length of a row, or of a few rows that alternate in memory, that is
// scanned in vectors along the row (narrow.c) [elements]. Shorter ones are faster in tiles.
const minNarrowLength = 128

// forwardRun is one run of a forward scan on the CPU.
type forwardRun struct {
	division     // of x, y, indices
	kind         int64
	narrow       int64   // rows that alternate in contiguous memory and form one lane of narrow.c; 0: lanes are scanned in tiles
	findsIndices bool    // even if they are left out: carry_out has them
	first        int64   // the position in the whole row at which each chunk begins in memory
	firsts       []int64 // for each row, if they differ; first is 0 then
}

// RunForward computes y and, if they are given, the indices. Without bounds, rows are one sequence
// each.
func (s *Scan) RunForward(args []tensor.Tensor, bounds *cpu.Bounds) {
	if s.Carries {
		s.runForwardChunk(args, bounds)
		return
	}
	s.forSequences(without(args, operand.ForwardSeqlens), bounds, operand.ForwardY, operand.ForwardY, s.Recurrence.Identity(), (*Scan).forward)
}

// forward computes y and the indices of rows, or of their sequences.
func (s *Scan) forward(args []tensor.Tensor) {
	h := s.startForward(args, true)
	switch {
	case h.rows == 0 || h.n == 0:
	case h.lanes == h.rows:
		h.downsweep(nil)
	default:
		h.scanSplits(slices.Repeat([]forwardState{s.Recurrence.forwardInitial}, int(h.rows*max(h.narrow, 1))))
	}
}

// startForward prepares a run. Rows that alternate in memory may form one lane.
func (s *Scan) startForward(args []tensor.Tensor, mayAlternate bool) *forwardRun {
	h := &forwardRun{kind: s.Recurrence.loops[0]}
	if s.FirstWins {
		h.kind = s.Recurrence.loops[1]
	}
	space := s.space(args)
	if count := alternatingRows(&space, args); count*s.Length() >= minNarrowLength && s.Recurrence.hasNarrow && s.packed == nil && (mayAlternate || count == 1) {
		h.narrow = count
	}
	splitLength := int64(minSplitLength)
	if s.Recurrence.splitsFewRowsMore && s.Rows() < C.SCAN_LANES/2 {
		splitLength = splitMultiple
	}
	h.division = s.divide(args, &space, max(h.narrow, 1), splitLength)
	return h
}

// scanSplits scans rows that are split: an upsweep for the aggregates of the splits, their prefixes
// in scan order, and a downsweep if y is given. next are the prefixes before the rows, and receives
// those after them.
func (h *forwardRun) scanSplits(next []forwardState) {
	states := make([]forwardState, h.lanes*max(h.narrow, 1))
	h.inBatches(true, func(w *worker, first, count int64) {
		h.prepare(w, first, count, false)
		found := h.statesOf(w, states, first, count)
		C.sw_scan_forward_upsweep(&w.forward, cForwardStates(found))
		store(&h.division, w, states, true, found)
	})
	for i := range states {
		row := i % len(next)
		before := next[row]
		if !h.spanned(int64(i)) {
			before = h.Recurrence.forwardInitial
		}
		states[i], next[row] = next[row], h.Recurrence.forwardCombine(before, states[i], h.FirstWins)
	}
	if h.args[operand.ForwardY].Given() {
		h.downsweep(states)
	}
}

// downsweep stores y and the indices, from the prefixes of lanes, which become those after the
// lanes; whole rows have none.
func (h *forwardRun) downsweep(states []forwardState) {
	h.inBatches(false, func(w *worker, first, count int64) {
		h.prepare(w, first, count, true)
		if states == nil || h.packed != nil && !w.batch.crosses {
			C.sw_scan_forward_downsweep(&w.forward, nil)
			return
		}
		C.sw_scan_forward_downsweep(&w.forward, cForwardStates(h.statesOf(w, states, first, count)))
	})
}

// prepare sets the call of a worker: lanes of one length, x and, in a downsweep, the outputs.
func (h *forwardRun) prepare(w *worker, first, count int64, isDownsweep bool) {
	call, hasIndices := &w.forward, h.args[operand.ForwardIndices].Given()
	call.narrow = C.int64_t(h.narrow)
	if call.has_narrow = 0; h.Recurrence.hasNarrow {
		call.has_narrow = 1
	}
	call.kind, call.lanes, call.n, call.with_index = C.int64_t(h.kind), C.int64_t(count), C.int64_t(h.lengthOf(w, first)), 0
	h.setOperand(w, &call.x, operand.ForwardX, first, count)
	if call.y.data = 0; isDownsweep && h.args[operand.ForwardY].Given() {
		h.setOperand(w, &call.y, operand.ForwardY, first, count)
	}
	if call.firsts = 0; !hasIndices && !(h.findsIndices && h.Recurrence.replaces != nil) {
		return
	}
	call.with_index, call.origin, call.delta = 1, C.int64_t(h.first), 1
	if h.IsReversed {
		call.origin, call.delta = C.int64_t(h.first+h.n-1), -1
	}
	if h.firsts != nil {
		call.firsts = C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(h.firsts))))
	}
	call.first_lane, call.rows = C.int64_t(first), C.int64_t(h.rows)
	call.split_length, call.row_length = C.int64_t(h.splitLength), C.int64_t(h.n)
	if h.packed != nil {
		h.setFirsts(w, count)
	}
	if call.indices.data = 0; isDownsweep && hasIndices {
		h.setOperand(w, &call.indices, operand.ForwardIndices, first, count)
	}
}

// setFirsts sets the index of the first position of each lane of a batch of segments.
func (h *forwardRun) setFirsts(w *worker, count int64) {
	call, b := &w.forward, &w.batch
	call.first_lane, call.rows, call.split_length = 0, C.SCAN_BATCH, call.row_length
	if b.hasRows {
		call.origin += call.delta * C.int64_t(b.start)
		return
	}
	call.firsts = C.uint64_t(uintptr(unsafe.Pointer(&b.firsts[0])))
	for i := range count {
		start := b.starts[i]
		if b.isRun {
			start = b.start + i*b.length
		}
		b.firsts[i] = int64(call.delta) * start
	}
}

// statesOf are the states of lanes; each of the alternating rows of a lane has one.
func (h *forwardRun) statesOf(w *worker, states []forwardState, first, count int64) []forwardState {
	if h.narrow > 1 {
		first, count = first*h.narrow, count*h.narrow
	}
	return ofLanes(&h.division, w, states, first, count, false, h.Recurrence.forwardInitial, w.prefixes[:])
}

func cForwardStates(s []forwardState) *C.double {
	return (*C.double)(unsafe.Pointer(unsafe.SliceData(s)))
}

// alternatingRows is the number of rows that alternate in contiguous memory, 1, 2 or 4, in every
// operand alike; 0 for other layouts. Such rows are the last dimension before the scanned one.
func alternatingRows(space *cpu.Space, args []tensor.Tensor) int64 {
	for _, count := range []int64{1, 2, 4} {
		rows := space.Kept - 1
		fits := count == 1 || rows >= 0 && space.Extent[rows] == count
		for i := range args {
			if fits && args[i].Given() {
				fits = space.Stride[i][space.Kept] == count && (count == 1 || space.Stride[i][rows] == 1)
			}
		}
		if fits {
			return count
		}
	}
	return 0
}

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

// RunForward computes y and, if they are given, the indices. Sequence k is the positions bounds[k]
// to bounds[k+1] - 1; without bounds, rows are one sequence each.
func (s *Scan) RunForward(args []tensor.Tensor, bounds []int64) {
	if s.Carries {
		s.runForwardChunk(args)
		return
	}
	s.forEachLength(without(args, operand.ForwardSeqlens), bounds, operand.ForwardY, operand.ForwardY, s.Recurrence.Empty(), (*Scan).forward)
}

// forward computes y and the indices of rows, or of sequences of one length.
func (s *Scan) forward(args []tensor.Tensor) {
	h := s.startForward(args, s.packed == nil || len(s.packed.starts) == 1)
	if args[operand.ForwardIndices].Given() {
		h.first, h.firsts = s.packed.firstPositions(h.outer)
	}
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
	if count := alternatingRows(&space, args); count*s.Length() >= minNarrowLength && s.Recurrence.hasNarrow && (mayAlternate || count == 1) {
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
	h.inBatches(func(w *worker, first, count int64) {
		h.prepare(w, first, count, false)
		C.sw_scan_forward_upsweep(&w.forward, h.statesOf(states, first))
	})
	for i := range states {
		row := i % len(next)
		states[i], next[row] = next[row], h.Recurrence.forwardCombine(next[row], states[i], h.FirstWins)
	}
	if h.args[operand.ForwardY].Given() {
		h.downsweep(states)
	}
}

// downsweep stores y and the indices, from the prefixes of lanes, which become those after the
// lanes; whole rows have none.
func (h *forwardRun) downsweep(states []forwardState) {
	h.inBatches(func(w *worker, first, count int64) {
		h.prepare(w, first, count, true)
		if states == nil {
			C.sw_scan_forward_downsweep(&w.forward, nil)
			return
		}
		C.sw_scan_forward_downsweep(&w.forward, h.statesOf(states, first))
	})
}

// prepare sets the call of a worker: lanes of one length, x and, in a downsweep, the outputs.
func (h *forwardRun) prepare(w *worker, first, count int64, isDownsweep bool) {
	call, hasIndices := &w.forward, h.args[operand.ForwardIndices].Given()
	call.narrow = C.int64_t(h.narrow)
	if call.has_narrow = 0; h.Recurrence.hasNarrow {
		call.has_narrow = 1
	}
	call.kind, call.lanes, call.n, call.with_index = C.int64_t(h.kind), C.int64_t(count), C.int64_t(h.lengthOf(first)), 0
	h.setOperand(&call.x, operand.ForwardX, first, count)
	if call.y.data = 0; isDownsweep && h.args[operand.ForwardY].Given() {
		h.setOperand(&call.y, operand.ForwardY, first, count)
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
	if call.indices.data = 0; isDownsweep && hasIndices {
		h.setOperand(&call.indices, operand.ForwardIndices, first, count)
	}
}

// statesOf are the states from a lane on; each of its alternating rows has one.
func (h *forwardRun) statesOf(states []forwardState, lane int64) *C.double {
	return (*C.double)(unsafe.Pointer(&states[lane*max(h.narrow, 1)]))
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

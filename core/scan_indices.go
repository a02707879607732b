package core

// #include "scan.h"
import "C"

import (
	"fmt"
	"math"
	"sync/atomic"
)

const (
	indicesOperand = 2
	mostSums       = 1 << 20 // float64 sums of one task of arbitrary indices
	addLanes       = 8
)

// checkValues refuses indices that are out of range.
func (s *scanProgram) checkValues(args []Tensor) *Error {
	if !args[indicesOperand].present() {
		return nil
	}
	h := s.onHost(args)
	if h.rows == 0 || h.n == 0 || !h.outside() {
		return nil
	}
	row, position := h.firstBadIndex()
	return refuse(InvalidProblem, scan.op(s.kind), "indices", fmt.Sprintf("between 0 and %d", h.n-1),
		fmt.Sprintf("%d at position %d of row %d", h.index(row, position), position, row), "")
}

// indexed is cummax or cummin by the indices of its forward. Those of a scan say by themselves which positions won: k did where
// the index is k, and everywhere else the index is the one before.
func (h *hostScan) indexed() {
	choosing := *h
	choosing.x, choosing.recurrence, choosing.kind = indicesOperand, choices, C.SCAN_CHOSEN
	if h.reverse {
		choosing.kind = C.SCAN_CHOSEN_DOWN
	}
	first, _ := h.origin()
	choosing.start = state{float64(first), math.Float64frombits(uint64(first))}
	var parts []state
	var carries []float64
	if h.lanes > h.rows {
		parts, carries = make([]state, h.lanes), make([]float64, h.lanes)
	}
	switch least := choosing.fold(parts, carries); {
	case least == 0:
		h.add()
	case parts != nil:
		choosing.carry(parts, make([]state, h.lanes), carries)
	default:
		choosing.walk(nil, nil, nil)
	}
}

// outside reports that some index is out of range.
func (h *hostScan) outside() bool {
	var some atomic.Bool
	indices := *h
	indices.x = indicesOperand
	indices.each(false, func(w *scanWorker, _, _ int64) {
		if C.sw_scan_outside(&w.call) != 0 {
			some.Store(true)
		}
	})
	return some.Load()
}

// origin and delta lead from an index to a position in scan order and back: position = origin + delta index.
func (h *hostScan) origin() (origin, delta int64) {
	if h.reverse {
		return h.n - 1, -1
	}
	return 0, 1
}

// choice is the state before a part that is not the first of its row: the index that its first position has when it wins, and the
// index before that.
func (h *hostScan) choice(w *scanWorker, first, i int64) state {
	origin, delta := h.origin()
	want := origin + delta*((first+i)/h.rows)*h.part
	before := int64(w.call.x.at[i]) - h.steps[indicesOperand]
	return state{float64(want), math.Float64frombits(uint64(elements[int64](&h.args[indicesOperand], before, 1, 1)[0]))}
}

// add adds dy at any indices, into float64 sums of a few rows at a time.
func (h *hostScan) add() {
	origin, delta := h.origin()
	width := clamp(mostSums/h.n, 1, addLanes)
	group := ceil(clamp(grain/h.n, 1, C.SCAN_BATCH), width) * width
	h.parallel(ceil(h.rows, group), func(w *scanWorker, task int64) {
		sums := make([]float64, h.n*width)
		for row := task * group; row < min(h.rows, (task+1)*group); row += width {
			count := min(width, h.rows-row)
			w.call.lanes, w.call.n = C.int64_t(count), C.int64_t(h.n)
			h.place(&w.call.dy, 0, row, count)
			h.place(&w.call.x, indicesOperand, row, count)
			h.place(&w.call.dx, 3, row, count)
			C.sw_scan_add(&w.call, C.int64_t(origin), C.int64_t(delta), cDoubles(sums))
		}
	})
}

// index is that of a position of a row, in the order of memory.
func (h *hostScan) index(row, position int64) int64 {
	if h.reverse {
		position = h.n - 1 - position
	}
	offset := position * h.steps[indicesOperand]
	h.views[indicesOperand].pieces(row, 1, func(_, at, _, _ int64) { offset += at })
	return elements[int64](&h.args[indicesOperand], offset, 1, 1)[0]
}

// firstBadIndex finds the first index that is out of range, in the order of memory, where there is one.
func (h *hostScan) firstBadIndex() (row, position int64) {
	for row = range h.rows {
		for position = range h.n {
			if j := h.index(row, position); j < 0 || j >= h.n {
				return row, position
			}
		}
	}
	return row, position
}

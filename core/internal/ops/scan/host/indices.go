package host

// #cgo CFLAGS: -O2
// #include "scan.h"
import "C"

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// This file computes cummax and cummin by the indices of their forward.

const (
	maxSums  = 1 << 20 // float64 sums of one task of arbitrary indices
	addLanes = 8
)

// CheckIndices returns an error for an index that is out of range.
func (s *Scan) CheckIndices(args []tensor.Tensor) *errs.Error {
	indices := &args[operand.Indices]
	if !indices.Given() || indices.Empty() || insideSpan(indices, s.Length()) {
		return nil
	}
	h := s.start(args)
	if !h.outside() {
		return nil
	}
	row, position := h.firstInvalidIndex()
	return errs.New(errs.InvalidProblem, s.Op, "indices", fmt.Sprintf("between 0 and %d", h.n-1),
		fmt.Sprintf("%d at position %d of row %d", h.index(row, position), position, row), "")
}

// insideSpan reports whether all memory between the first and the last index is in range, gaps
// included. It returns false, without a look, if gaps are most of that memory.
func insideSpan(t *tensor.Tensor, n int64) bool {
	low, high, _ := t.Span()
	count := (high - low) / t.DType.Size()
	if elements, _ := tensor.Product(t.Extents()); count > 2*elements {
		return false
	}
	var beyond atomic.Bool
	start := func() (*tensor.Tensor, func()) { return t, func() {} }
	threads.Run(nil, num.CeilDiv(count, cpu.Grain), 2, start, func(t *tensor.Tensor, task int64) {
		first := task * cpu.Grain
		at := C.uint64_t(int64(t.Data) + low + first*t.DType.Size())
		if C.sw_scan_out_of_range(at, C.long(min(cpu.Grain, count-first)), C.int64_t(n)) != 0 {
			beyond.Store(true)
		}
	})
	return !beyond.Load()
}

// indexed computes cummax or cummin by the indices of its forward. Position k is a new running
// maximum where its index is k; everywhere else its index is the one before it. Rows with other
// indices are summed by add.
func (h *backwardRun) indexed() {
	byIndex := *h
	byIndex.x, byIndex.Recurrence, byIndex.kind = operand.Indices, indexRecurrence, C.SCAN_BY_INDEX
	if h.IsReversed {
		byIndex.kind = C.SCAN_BY_INDEX_REVERSED
	}
	first, _ := h.origin()
	byIndex.initial = state{float64(first), math.Float64frombits(uint64(first))}
	switch {
	case h.scatters():
		byIndex.forEachBatch(true, func(w *worker, _, _ int64) { C.sw_scan_scatter(&w.call) })
		return
	case h.n <= C.SCAN_GATHER_MAX:
		byIndex.forEachBatch(true, func(w *worker, _, _ int64) { C.sw_scan_gather(&w.call) })
		return
	case h.lanes == h.rows:
		byIndex.forEachBatch(true, byIndex.downsweepIndices)
		return
	}
	aggregates, carries := make([]state, h.lanes), make([]float64, h.lanes)
	if least := byIndex.upsweep(aggregates, aggregates, carries); least == 0 {
		h.parallel(num.CeilDiv(h.rows, addLanes), func(w *worker, task int64) {
			h.add(w, task*addLanes, min(addLanes, h.rows-task*addLanes))
		})
		return
	}
	byIndex.scanSplits(aggregates, make([]state, h.lanes), carries, make([]float64, h.rows))
}

// scatters reports whether rows are short and lie end to end in all operands: a scatter is then
// faster than a comparison lane by lane. Sums of at most SCAN_SHORT_MAX terms need no compensation.
func (h *backwardRun) scatters() bool {
	adjacent := int64(1)
	if h.IsReversed {
		adjacent = -1
	}
	if h.lanes != h.rows || h.n > C.SCAN_SHORT_MAX {
		return false
	}
	for _, number := range [...]int{operand.Dy, operand.Indices, operand.Dx} {
		if v := &h.views[number]; h.steps[number] != adjacent || !v.Regular || v.Step != h.n {
			return false
		}
	}
	return true
}

// downsweepIndices computes whole rows. Rows whose indices are not those of a scan are recomputed
// by add.
func (h *backwardRun) downsweepIndices(w *worker, first, count int64) {
	if C.sw_scan_downsweep(&w.call, nil, nil, nil) == 0 {
		h.add(w, first, count)
	}
}

// outside reports whether an index is out of range.
func (h *backwardRun) outside() bool {
	var found atomic.Bool
	indices := *h
	indices.x = operand.Indices
	indices.forEachBatch(false, func(w *worker, _, _ int64) {
		if C.sw_scan_indices_out_of_range(&w.call, C.int64_t(h.n)) != 0 {
			found.Store(true)
		}
	})
	return found.Load()
}

// origin and delta lead from an index to a position in scan order and back: position = origin +
// delta index.
func (h *backwardRun) origin() (origin, delta int64) {
	if h.IsReversed {
		return h.n - 1, -1
	}
	return 0, 1
}

// indexPrefix is the prefix of a split that is not the first of its row: the index that makes its
// first position a new maximum, and the index before.
func (h *backwardRun) indexPrefix(w *worker, first, i int64) state {
	origin, delta := h.origin()
	want := origin + delta*((first+i)/h.rows)*h.splitLength
	at := w.call.x.offset[0] + C.int64_t(i)*w.call.x.pitch
	if w.call.x.regular == 0 {
		at = w.call.x.offset[i]
	}
	before := int64(at) - h.steps[operand.Indices]
	return state{float64(want), math.Float64frombits(uint64(cpu.Elements[int64](&h.args[operand.Indices], before, 1, 1)[0]))}
}

// add scatters dy of rows with any indices into float64 sums, a few rows at a time.
func (h *backwardRun) add(w *worker, first, rows int64) {
	origin, delta := h.origin()
	width := num.Clamp(maxSums/h.n, 1, addLanes)
	if int64(len(w.sums)) < 2*h.n*width {
		w.sums = make([]float64, 2*h.n*width)
	}
	for row := first; row < first+rows; row += width {
		count := min(width, first+rows-row)
		w.call.lanes, w.call.n = C.int64_t(count), C.int64_t(h.n)
		h.setOperand(w, &w.call.dy, operand.Dy, row, count)
		h.setOperand(w, &w.call.x, operand.Indices, row, count)
		h.setOperand(w, &w.call.dx, operand.Dx, row, count)
		C.sw_scan_add(&w.call, C.int64_t(origin), C.int64_t(delta), scanDoubles(w.sums))
	}
}

// index is the index at a position of a row, in the order of memory.
func (h *backwardRun) index(row, position int64) int64 {
	if h.IsReversed {
		position = h.n - 1 - position
	}
	offset := position * h.steps[operand.Indices]
	h.views[operand.Indices].VisitRuns(row, 1, func(_, at, _, _ int64) { offset += at })
	return cpu.Elements[int64](&h.args[operand.Indices], offset, 1, 1)[0]
}

// firstInvalidIndex is the row and position of the first index that is out of range, in the order
// of memory.
func (h *backwardRun) firstInvalidIndex() (row, position int64) {
	for row = range h.rows {
		for position = range h.n {
			if j := h.index(row, position); j < 0 || j >= h.n {
				return row, position
			}
		}
	}
	return row, position
}

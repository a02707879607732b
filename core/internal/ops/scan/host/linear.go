package host

// #cgo CFLAGS: -O2 -Wno-psabi
// #include "linear.h"
import "C"

import (
	"slices"
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// Linear is the recurrence h[t] = a[t] h[t-1] + b[t] along a dimension of a shape, or its gradient.
type Linear struct{ Scan }

// LinearOperands are the operands of a linear recurrence and of its gradient; of a run, some are
// left out. Those with positions have the rank of the shape, with stride 0 where they are
// broadcast. States have one entry for each sequence in place of positions.
type LinearOperands struct {
	A, B, H, DH, DA, DB                                  tensor.Tensor
	InitialState, FinalState, DFinalState, DInitialState tensor.Tensor
}

// RunForward computes h and the final states.
func (r *Linear) RunForward(o *LinearOperands, bounds *cpu.Bounds) {
	h := r.start(o, bounds)
	var states []float64
	if h.lanes > h.rows {
		states = h.scanForward()
	}
	h.inBatches(false, func(w *worker, _, count int64) {
		h.prepare(w, count)
		C.sw_linear_forward(&w.linear, h.entering(w, states, false, count))
	})
	h.pass(initialState, finalState)
}

// RunBackward computes da, db and the gradients of the initial states, those which are given. If a
// is constant along the dimension, summed may be da: it has extent 1 there, or no such dimension.
func (r *Linear) RunBackward(o *LinearOperands, bounds *cpu.Bounds, summed *tensor.Tensor) {
	h := r.start(o, bounds)
	var states, sums []float64 // sums of da for each split and row
	if h.lanes > h.rows {
		states = h.scanBackward()
	}
	if summed != nil {
		sums = make([]float64, h.lanes)
	}
	h.inBatches(false, func(w *worker, first, count int64) {
		h.prepare(w, count)
		entering := h.entering(w, states, true, count)
		if summed == nil {
			C.sw_linear_backward(&w.linear, entering, nil)
			return
		}
		if len(w.sums) < C.SCAN_BATCH {
			w.sums = make([]float64, C.SCAN_BATCH)
		}
		C.sw_linear_backward(&w.linear, entering, scanDoubles(w.sums))
		for i, sum := range w.sums[:count] {
			sums[h.splitOf(&w.batch, first, int64(i))] += sum
		}
	})
	if summed != nil {
		r.storeSums(summed, sums)
	}
	h.pass(dfinalState, dinitialState)
}

// splitOf is the number of the split and row in which lane i of a batch begins. Only one task has
// lanes of it.
func (h *linearRun) splitOf(b *batch, first, i int64) int64 {
	switch {
	case h.packed == nil:
		return first + i
	case b.isRun:
		return (b.start+i*b.length)/h.splitLength*h.rows + b.row + b.rows[0]
	}
	lane, _, _ := h.laneOf(b, i)
	return lane
}

// storeSums adds the sums of splits and rows, and stores those of t, which is constant along the
// dimension.
func (r *Linear) storeSums(t *tensor.Tensor, sums []float64) {
	others, rows := r.Shape, max(1, r.Rows())
	if len(others) > 0 {
		others = slices.Delete(slices.Clone(others), r.Dim, r.Dim+1)
	}
	row := *t
	if d := int(t.NDim) - len(r.Shape) + r.Dim; t.NDim > 0 && d >= 0 {
		copy(row.Shape[d:], t.Shape[d+1:])
		copy(row.Strides[d:], t.Strides[d+1:])
		row.NDim--
	}
	SumTo(&row, sums, append([]int64{int64(len(sums)) / rows}, others...))
}

// linearRun is one run: the division of the operands with positions, and the layout of states.
type linearRun struct {
	division
	states division
}

// The numbers of the states in linearRun.states.
const (
	initialState = iota
	finalState
	dfinalState
	dinitialState
)

func (r *Linear) start(o *LinearOperands, bounds *cpu.Bounds) *linearRun {
	if bounds == nil {
		bounds = &cpu.Bounds{Wide: []int64{0, r.Length()}, Stride: 1, Count: 1}
	}
	scan := r.of(bounds, all)
	args := []tensor.Tensor{o.A, o.B, o.H, o.DH, o.DA, o.DB}
	states := []tensor.Tensor{o.InitialState, o.FinalState, o.DFinalState, o.DInitialState}
	space, stateSpace := scan.space(args), r.space(states)
	h := &linearRun{scan.divide(args, &space, 1, minSplitLength), r.divide(states, &stateSpace, 1, minSplitLength)}
	for i := range h.states.args {
		if t := &h.states.args[i]; r.IsReversed { // the last is that of sequence Count - 1, not of position n - 1
			t.Data -= uintptr(h.states.steps[i] * (bounds.Count - h.states.n) * t.DType.Size())
		}
	}
	return h
}

// prepare sets the call of a worker.
func (h *linearRun) prepare(w *worker, count int64) {
	call, b := &w.linear, &w.batch
	call.lanes, call.n = C.int64_t(count), C.int64_t(b.n)
	for i, to := range []*C.scan_operand{&call.a, &call.b, &call.h, &call.dh, &call.da, &call.db} {
		if to.data = 0; h.args[i].Given() {
			h.setOperand(w, to, i, 0, count)
		}
	}
	if !h.sharesSegments {
		h.states.setRowOffsets(&w.stateOffsets, b.row, min(C.SCAN_LANES, h.rows-b.row))
	}
	for i, to := range []*C.scan_operand{&call.initial_state, &call.final_state, &call.dfinal_state, &call.dinitial_state} {
		if to.data = 0; h.states.args[i].Given() {
			h.states.setMemory(to, i)
			h.states.setPlaces(b, to, i, &w.stateOffsets[i], b.sequence, 1, b.sequences[:count])
		}
	}
	for i := int64(0); i < count && (b.hasRows || b.isRun); i++ {
		b.enters[i], b.leaves[i] = b.segment.enters, b.segment.leaves
	}
	call.enters, call.leaves = C.uint64_t(uintptr(unsafe.Pointer(&b.enters[0]))), C.uint64_t(uintptr(unsafe.Pointer(&b.leaves[0])))
}

// entering are the states that enter lanes from others, on the left or on the right.
func (h *linearRun) entering(w *worker, states []float64, isRight bool, count int64) *C.double {
	if states == nil || !w.batch.crosses {
		return nil
	}
	return scanDoubles(ofLanes(&h.division, w, states, 0, count, isRight, 0, w.carries[:]))
}

// upsweep computes the aggregates of the segments that are continued or, of the gradient, of those
// that continue others: m and e of the product m 2^e of a, and the state that leaves the segment if
// that which enters is 0.
func (h *linearRun) upsweep(isBackward bool) []forwardState {
	aggregates, backward := make([]forwardState, h.lanes), C.int(0)
	if isBackward {
		backward = 1
	}
	h.inBatches(true, func(w *worker, _, count int64) {
		h.prepare(w, count)
		found := w.prefixes[:count]
		C.sw_linear_upsweep(&w.linear, backward, cForwardStates(found))
		store(&h.division, w, aggregates, !isBackward, found)
	})
	return aggregates
}

// scanForward computes the states that enter segments, split by split.
func (h *linearRun) scanForward() []float64 {
	aggregates, states := h.upsweep(false), make([]float64, h.lanes)
	for i := h.rows; i < h.lanes; i++ {
		states[i] = h.advance(i-h.rows, aggregates[i-h.rows], states[i-h.rows])
	}
	return states
}

// scanBackward computes the gradients of the states that leave segments, from the last split to the
// first.
func (h *linearRun) scanBackward() []float64 {
	aggregates, states := h.upsweep(true), make([]float64, h.lanes)
	for i := h.lanes - 1; i >= h.rows; i-- {
		states[i-h.rows] = h.advance(i, aggregates[i], states[i])
	}
	return states
}

// advance is the state after the segment of a lane, from the one before it. The product of a may
// leave the range of float64 and come back. A factor of 0 cuts off the state, infinity and NaN
// included.
func (h *linearRun) advance(lane int64, aggregate forwardState, before float64) float64 {
	if !h.spanned(lane) || aggregate[0] == 0 {
		return aggregate[2]
	}
	return aggregate[2] + scaledBy(state{aggregate[0], aggregate[1]}, before)
}

// pass copies the states of empty sequences.
func (h *linearRun) pass(from, to int) {
	if !h.states.args[to].Given() || h.rows == 0 {
		return
	}
	q, w := h.packed, workers.Get().(*worker)
	defer workers.Put(w)
	call := &w.linear
	for k := range q.Count {
		if first, end := q.positions(k); first < end {
			continue
		}
		for row := int64(0); row < h.rows; row += C.SCAN_BATCH {
			count := min(h.rows-row, C.SCAN_BATCH)
			h.states.setMemory(&call.final_state, to)
			h.states.setRows(&call.final_state, to, k*h.states.steps[to], row, count)
			if call.initial_state.data = 0; h.states.args[from].Given() {
				h.states.setMemory(&call.initial_state, from)
				h.states.setRows(&call.initial_state, from, k*h.states.steps[from], row, count)
			}
			C.sw_linear_pass(&call.initial_state, &call.final_state, C.int64_t(count))
		}
	}
}

// Tasks is the number of tasks that share a pass.
func (r *Linear) Tasks(h tensor.Tensor, seqlens *tensor.Tensor) int64 {
	return r.start(&LinearOperands{H: h}, cpu.BoundsOf(seqlens)).tasks()
}

// SumTo adds numbers of a shape over the dimensions in which t has extent 1, or none, and stores
// the sums. Terms are added in pairs, then the sums of pairs, and so on.
func SumTo(t *tensor.Tensor, numbers []float64, shape []int64) {
	lead := len(shape) - int(t.NDim)
	after := int64(1) // numbers of the dimensions after d
	for d := len(shape) - 1; d >= 0; d-- {
		if d >= lead && t.Shape[d-lead] == shape[d] {
			after *= shape[d]
			continue
		}
		before, _ := tensor.Product(shape[:d])
		sums := make([]float64, before*after)
		each := shape[d] * after // numbers that are added to `after` sums
		start := func() (struct{}, func()) { return struct{}{}, func() {} }
		threads.Run(nil, before, max(1, cpu.Grain/max(1, each)), start, func(_ struct{}, i int64) {
			addRows(sums[i*after:(i+1)*after], numbers[i*each:(i+1)*each])
		})
		numbers = sums
	}
	v, count := carryView(t)
	store, block := cpu.Storages64[t.DType.Row()].Store, new(cpu.Block[float64])
	for first := int64(0); first < count; {
		n := min(count-first, int64(len(block.Wide)))
		store(block, t, &v, first, numbers[first:first+n])
		first += n
	}
}

// addRows adds rows of numbers to one row, in pairs. It overwrites the rows.
func addRows(sum, rows []float64) {
	n := int64(len(sum))
	if len(rows) == 0 {
		return
	}
	for count := int64(len(rows)) / n; count > 1; count = (count + 1) / 2 {
		for i := range count / 2 {
			to, left, right := rows[i*n:(i+1)*n], rows[2*i*n:(2*i+1)*n], rows[(2*i+1)*n:(2*i+2)*n]
			for j := range to {
				to[j] = left[j] + right[j]
			}
		}
		if count%2 == 1 {
			copy(rows[count/2*n:(count/2+1)*n], rows[(count-1)*n:count*n])
		}
	}
	copy(sum, rows[:n])
}

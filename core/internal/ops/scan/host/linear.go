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

// RunForward computes h and the final states. Sequence k has the positions bounds[k] to
// bounds[k+1] - 1.
func (r *Linear) RunForward(o *LinearOperands, bounds []int64) { r.run(o, bounds, false) }

// RunBackward computes da, db and the gradients of the initial states, those which are given.
func (r *Linear) RunBackward(o *LinearOperands, bounds []int64) { r.run(o, bounds, true) }

func (r *Linear) run(o *LinearOperands, bounds []int64, isBackward bool) {
	elements := r.whole([]tensor.Tensor{o.A, o.B, o.H, o.DH, o.DA, o.DB})
	states := r.whole([]tensor.Tensor{o.InitialState, o.FinalState, o.DFinalState, o.DInitialState})
	starts := slices.Clone(bounds)
	sequences := int64(len(bounds) - 1)
	if r.IsReversed {
		slices.Reverse(starts)
		for i := range starts {
			starts[i] = elements.n - starts[i]
		}
		for i := range states.args { // position i is sequence sequences - 1 - i, not position n - 1 - i
			states.args[i].Data -= uintptr(states.steps[i] * (sequences - elements.n) * states.args[i].DType.Size())
		}
	}
	elements.inBatches(false, func(w *worker, first, count int64) {
		call := &w.linear
		call.lanes, call.n, call.sequences = C.int64_t(count), C.int64_t(elements.n), C.int64_t(sequences)
		call.starts = C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(starts))))
		for i, to := range []*C.scan_operand{&call.a, &call.b, &call.h, &call.dh, &call.da, &call.db} {
			elements.setOptional(w, to, i, first, count)
		}
		for i, to := range []*C.scan_operand{&call.initial_state, &call.final_state, &call.dfinal_state, &call.dinitial_state} {
			states.setOptional(w, to, i, first, count)
		}
		if isBackward {
			C.sw_linear_backward(call)
		} else {
			C.sw_linear_forward(call)
		}
	})
}

// whole divides a run into whole rows, also into empty ones.
func (r *Linear) whole(args []tensor.Tensor) division {
	space := r.space(args)
	h := r.divide(args, &space, 1, max(1, r.Length()))
	h.splitLength, h.lanes = max(1, h.n), h.rows
	return h
}

// setOptional describes an operand; one that is left out has no data.
func (h *division) setOptional(w *worker, to *C.scan_operand, number int, first, count int64) {
	if to.data = 0; h.args[number].Given() {
		h.setOperand(w, to, number, first, count)
	}
}

// Tasks is the number of tasks that share a pass.
func (r *Linear) Tasks() int64 {
	h := division{Scan: &r.Scan, rows: r.Rows(), n: r.Length()}
	h.splitLength, h.lanes = max(1, h.n), h.rows
	return h.tasks()
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

package selective

// #include "selective.h"
import "C"

import (
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// This file computes gradients on the CPU: chunks from the last to the first, and then the sums
// over batches and tasks, in their order.

func (c *program) runBackward(args []tensor.Tensor) {
	o := inputsOf(args[backU:])
	o.seqlens, o.chunks, o.dy, o.dlast = args[backSeqlens], args[backChunks], args[backDY], args[backDLast]
	o.du, o.ddelta, o.da, o.db, o.dc = args[backDU], args[backDDelta], args[backDA], args[backDB], args[backDC]
	o.dd, o.dz, o.dbias, o.dinitial = args[backDD], args[backDZ], args[backDBias], args[backDInitial]
	h := c.newRun(o)
	h.divide()
	if !h.chunks.Given() {
		h.computeChunkStates()
	}
	h.allocateSums()
	h.eachTask(h.backward)
	h.passStates(&h.dinitial, &h.dlast)
	h.storeRows(&h.db, h.sums.rowsB, h.ConstantB)
	h.storeRows(&h.dc, h.sums.rowsC, h.ConstantC)
	h.storeLanes(&h.da, h.sums.a, h.N)
	h.storeLanes(constant(&h.db, h.ConstantB), h.sums.b, h.N)
	h.storeLanes(constant(&h.dc, h.ConstantC), h.sums.c, h.N)
	h.storeLanes(&h.dd, h.sums.d, 1)
	h.storeLanes(&h.dbias, h.sums.bias, 1)
}

// constant is t, or an absent operand if t is not constant.
func constant(t *tensor.Tensor, isConstant bool) *tensor.Tensor {
	if !isConstant {
		return &tensor.Tensor{}
	}
	return t
}

// computeChunkStates runs the forward for the states that enter chunks. Those of a single chunk are
// the initial ones, which the gradient does not read from there.
func (h *hostRun) computeChunkStates() {
	shape := h.chunkStates()
	n, _ := tensor.Product(shape)
	if h.Length <= Chunk || n == 0 {
		return
	}
	if h.wide == tensor.Float64 {
		h.chunks = tensor.Of(make([]float64, n), shape...)
	} else {
		h.chunks = tensor.Of(make([]float32, n), shape...)
	}
	states := *h
	states.y, states.last = tensor.Tensor{}, tensor.Tensor{}
	states.forward()
}

func (h *hostRun) allocateSums() {
	all := h.Batch * h.groups * h.perGroup * 2 * lanes // a sum and its correction for each lane
	s := &h.sums
	s.a, s.d, s.bias = make([]float64, all*h.N), make([]float64, all), make([]float64, all)
	rows := num.CeilDiv(h.tasks()*h.N*h.Length*h.wide.Size(), 8)
	for _, f := range []struct {
		gradient      *tensor.Tensor
		isConstant    bool
		states, rowed *[]float64
	}{{&h.db, h.ConstantB, &s.b, &s.rowsB}, {&h.dc, h.ConstantC, &s.c, &s.rowsC}} {
		switch {
		case !f.gradient.Given():
		case f.isConstant:
			*f.states = make([]float64, all*h.N)
		default:
			*f.rowed = make([]float64, rows)
		}
	}
}

// backward computes the gradients of a task.
func (h *hostRun) backward(w *worker, t *task) {
	call := &w.call
	call.db_state, call.dc_state = C.int64_t(h.Length), C.int64_t(h.Length)
	for chunk := h.numChunks() - 1; chunk >= 0; chunk-- {
		h.loadFactors(w, t, chunk)
		call.db, call.dc = h.partRows(h.sums.rowsB, t, chunk), h.partRows(h.sums.rowsC, t, chunk)
		for i := range t.blocks {
			h.setBlock(w, t, chunk, i)
			block := ((t.batch*h.groups+t.group)*h.perGroup + t.block + i) * 2 * lanes
			call.dy, call.du = h.row(&h.dy, t, chunk, i), h.row(&h.du, t, chunk, i)
			call.ddelta, call.dz = h.row(&h.ddelta, t, chunk, i), h.row(&h.dz, t, chunk, i)
			call.dlast, call.dinitial = h.states(&h.dlast, t, i), h.states(&h.dinitial, t, i)
			call.da_sums, call.db_sums, call.dc_sums = at(h.sums.a, block*h.N), at(h.sums.b, block*h.N), at(h.sums.c, block*h.N)
			call.dd_sums, call.dbias_sums = at(h.sums.d, block), at(h.sums.bias, block)
			C.sw_selective_backward(call)
		}
	}
}

// at is the address of a number, or 0 if there is none.
func at(numbers []float64, i int64) C.uintptr_t {
	if i >= int64(len(numbers)) {
		return 0
	}
	return C.uintptr_t(uintptr(unsafe.Pointer(&numbers[i])))
}

// partRows is the address of the sums of a task from a chunk on.
func (h *hostRun) partRows(rows []float64, t *task, chunk int64) C.uintptr_t {
	if rows == nil {
		return 0
	}
	return at(rows, 0) + C.uintptr_t((t.number*h.N*h.Length+chunk*Chunk)*h.wide.Size())
}

// storeRows stores the gradient of B or C: sums over the tasks of a batch and a group.
func (h *hostRun) storeRows(to *tensor.Tensor, rows []float64, isConstant bool) {
	if !to.Given() || isConstant || to.Empty() {
		return
	}
	each := h.N * h.Length // numbers of a task
	start := func() (struct{}, func()) { return struct{}{}, func() {} }
	grain := num.CeilDiv(cpu.Grain, max(1, h.runs*h.Length))
	threads.Run(nil, h.Batch*h.groups*h.N, grain, start, func(_ struct{}, i int64) {
		state, group := i%h.N, i/h.N
		row := factorRows(to, group/h.groups, group%h.groups)
		row.data += C.uintptr_t(state * int64(row.lane) * to.DType.Size())
		from := at(rows, 0) + C.uintptr_t((group*h.runs*each+state*h.Length)*h.wide.Size())
		C.sw_selective_add_rows(&row, C.int64_t(to.DType.Row()), from, C.int64_t(h.runs), C.int64_t(each), C.int64_t(h.Length))
	})
}

// storeLanes stores sums over batches, of n numbers for each channel.
func (h *hostRun) storeLanes(to *tensor.Tensor, sums []float64, n int64) {
	if !to.Given() || to.Empty() {
		return
	}
	perGroup, size := h.Dim/h.groups, to.DType.Size()
	each := h.groups * h.perGroup * 2 * lanes * n // numbers of a batch
	for channel := range h.Dim {
		group, within := channel/perGroup, channel%perGroup
		first := (group*h.perGroup+within/lanes)*2*lanes*n + within%lanes
		for state := range n {
			sum := 0.0
			for batch := range h.Batch {
				at := batch*each + first + state*2*lanes
				sum += sums[at] + sums[at+lanes]
			}
			address := to.Data + uintptr((channel*to.Strides[0]+state*to.Strides[1])*size)
			if to.DType == tensor.Float64 {
				*(*float64)(cpu.Pointer(address)) = sum
			} else {
				*(*float32)(cpu.Pointer(address)) = float32(sum)
			}
		}
	}
}

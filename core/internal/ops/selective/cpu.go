package selective

// #cgo CFLAGS: -O2 -Wno-psabi
// #include "selective.h"
import "C"

import (
	"sync"
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// This file divides runs on the CPU into tasks. A task is the channels of one batch and one group,
// or some blocks of them: it goes through the positions chunk by chunk, and through the channels of
// a chunk block by block, so that blocks share B and C.

const (
	lanes       = C.SELECTIVE_LANES
	maxBlocks   = 8  // blocks of a task at most
	enoughTasks = 64 // tasks that keep the processors busy
)

// operands are the operands of either family by role.
type operands struct {
	u, delta, a, b, c, d, z, bias, initial, seqlens            tensor.Tensor
	y, last, chunks                                            tensor.Tensor
	dy, dlast, du, ddelta, da, db, dc, dd, dz, dbias, dinitial tensor.Tensor
}

// inputsOf are the operands that both families have; args begins with u.
func inputsOf(args []tensor.Tensor) operands {
	return operands{u: args[opU], delta: args[opDelta], a: args[opA], b: args[opB], c: args[opC], d: args[opD],
		z: args[opZ], bias: args[opBias], initial: args[opInitial]}
}

// hostRun is one run on the CPU, or the part of a gradient that computes chunk states.
type hostRun struct {
	*program
	operands
	perGroup int64 // blocks of a group
	blocks   int64 // blocks of a task
	runs     int64 // tasks of a batch and a group
	bounds   *cpu.Bounds
	segments []C.selective_segment
	firstOf  []int64 // the first segment of each chunk, and the end of the last
	sums     sums
}

// sums are the sums of a gradient before those over batches and tasks.
type sums struct {
	a, b, c, d, bias []float64 // by batch and block: lanes, and their corrections, of each state or of all
	rowsB, rowsC     []float64 // the memory of wide numbers: by task and state, of each position
}

// worker is the scratch memory of one goroutine.
type worker struct {
	memory []float64
	call   C.selective_call
	state  uintptr // of each block: lanes of each state
}

var workers = sync.Pool{New: func() any { return new(worker) }}

func (c *program) newRun(o operands) *hostRun {
	h := &hostRun{program: c, operands: o, bounds: cpu.BoundsOf(&o.seqlens)}
	if h.bounds == nil {
		h.bounds = &cpu.Bounds{Wide: []int64{0, c.Length}, Stride: 1, Count: 1}
	}
	h.perGroup = num.CeilDiv(c.Dim/c.groups, lanes)
	h.blocks = num.Clamp(c.Batch*c.groups*h.perGroup/enoughTasks, 1, min(maxBlocks, max(1, h.perGroup)))
	h.runs = num.CeilDiv(h.perGroup, h.blocks)
	return h
}

// tasks is the number of tasks of a run: none if there are no positions.
func (h *hostRun) tasks() int64 {
	if h.Length == 0 {
		return 0
	}
	return h.Batch * h.groups * h.runs
}

// Tasks implements ops.Program.
func (c *program) Tasks([]tensor.Tensor) int64 { return c.newRun(operands{}).tasks() }

// Host implements ops.Program.
func (c *program) Host(args []tensor.Tensor) {
	if c.isBackward {
		c.runBackward(args)
		return
	}
	o := inputsOf(args)
	o.seqlens, o.y, o.last, o.chunks = args[opSeqlens], args[opY], args[opLast], args[opChunks]
	h := c.newRun(o)
	h.divide()
	h.forward()
	h.passStates(&h.last, &h.initial)
}

// divide cuts the sequences at chunks.
func (h *hostRun) divide() {
	chunks := h.numChunks()
	h.firstOf = make([]int64, 0, chunks+1)
	at := int64(0)
	for k := range h.bounds.Count {
		first, end := max(h.bounds.At(k), at), min(h.bounds.At(k+1), h.Length)
		for at = first; at < end; {
			chunk := at / Chunk
			for int64(len(h.firstOf)) <= chunk {
				h.firstOf = append(h.firstOf, int64(len(h.segments)))
			}
			until := min(end, (chunk+1)*Chunk)
			h.segments = append(h.segments, C.selective_segment{sequence: C.int64_t(k), first: C.int32_t(at - chunk*Chunk),
				end: C.int32_t(until - chunk*Chunk), begins: flag(at == first), ends: flag(until == end)})
			at = until
		}
	}
	for int64(len(h.firstOf)) <= chunks {
		h.firstOf = append(h.firstOf, int64(len(h.segments)))
	}
}

func flag(is bool) C.int32_t {
	if is {
		return 1
	}
	return 0
}

// eachTask calls body for each batch, group and run of blocks.
func (h *hostRun) eachTask(body func(w *worker, t *task)) {
	work := h.blocks * lanes * h.Length * h.N
	start := func() (*worker, func()) {
		w := workers.Get().(*worker)
		h.prepare(w)
		return w, func() { workers.Put(w) }
	}
	threads.Run(unsafe.Pointer(h.program), h.tasks(), num.CeilDiv(cpu.Grain, max(work, 1)), start, func(w *worker, number int64) {
		t := &task{number: number, group: number / h.runs % h.groups, batch: number / h.runs / h.groups}
		t.block = number % h.runs * h.blocks
		t.blocks = min(h.blocks, h.perGroup-t.block)
		body(w, t)
	})
}

// task is a run of blocks of one batch and one group.
type task struct{ number, batch, group, block, blocks int64 }

// prepare divides the memory of a worker, and sets what all calls share.
func (h *hostRun) prepare(w *worker) {
	size := h.wide.Size()
	sizes := []int64{C.SELECTIVE_TILES * Chunk * lanes, h.N * Chunk, h.N * Chunk, maxBlocks * h.N * lanes}
	total := int64(64)
	for _, n := range sizes {
		total += n * size
	}
	if need := total/8 + 1; int64(len(w.memory)) < need {
		w.memory = make([]float64, need)
	}
	at := addressOf(w.memory)
	at += -at & 63 // whole cache lines
	var addresses [4]uintptr
	for i, n := range sizes {
		addresses[i] = at
		at += uintptr(n * size)
	}
	w.call = C.selective_call{
		states: C.int64_t(h.N), dtype: C.int64_t(h.DType.Row()), softplus: C.int64_t(flag(h.DeltaSoftplus)),
		tiles: C.uintptr_t(addresses[0]), b: C.uintptr_t(addresses[1]), c: C.uintptr_t(addresses[2]),
		constant_b: C.int64_t(flag(h.ConstantB)), constant_c: C.int64_t(flag(h.ConstantC)),
	}
	w.state = addresses[3]
}

func addressOf(memory []float64) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(memory))) }

// forward computes y, the last states and the chunk states, those that are given.
func (h *hostRun) forward() {
	h.eachTask(func(w *worker, t *task) {
		for chunk := range h.numChunks() {
			h.loadFactors(w, t, chunk)
			for i := range t.blocks {
				h.setBlock(w, t, chunk, i)
				w.call.y = h.row(&h.y, t, chunk, i)
				w.call.last = h.states(&h.last, t, i)
				C.sw_selective_forward(&w.call)
			}
		}
	})
}

// loadFactors converts B and C of a chunk, unless they are constant, and sets its segments.
func (h *hostRun) loadFactors(w *worker, t *task, chunk int64) {
	call := &w.call
	call.positions = C.int64_t(min(Chunk, h.Length-chunk*Chunk))
	first, end := h.firstOf[chunk], h.firstOf[chunk+1]
	call.segment, call.segments = C.uintptr_t(uintptr(unsafe.Pointer(&h.segments[first]))), C.int64_t(end-first)
	for _, f := range []struct {
		t          *tensor.Tensor
		to         C.uintptr_t
		isConstant bool
	}{{&h.b, call.b, h.ConstantB}, {&h.c, call.c, h.ConstantC}} {
		if f.isConstant || !f.t.Given() {
			continue
		}
		from := factorRows(f.t, t.batch, t.group)
		from.data += C.uintptr_t(chunk * Chunk * int64(from.step) * f.t.DType.Size())
		C.sw_selective_load_rows(f.to, &from, call.dtype, call.states, call.positions)
	}
}

// factorRows are the positions of each state of B or C, or of their gradients.
func factorRows(f *tensor.Tensor, batch, group int64) C.selective_operand {
	offset, last := batch*f.Strides[0], f.NDim-1
	if f.NDim == 4 {
		offset += group * f.Strides[1]
	}
	return C.selective_operand{data: C.uintptr_t(f.Data + uintptr(offset*f.DType.Size())), lane: C.int64_t(f.Strides[last-1]), step: C.int64_t(f.Strides[last])}
}

// channel is the first channel of block i of a task.
func (h *hostRun) channel(t *task, i int64) int64 {
	return t.group*(h.Dim/h.groups) + (t.block+i)*lanes
}

// setBlock sets the operands of a block that both directions read.
func (h *hostRun) setBlock(w *worker, t *task, chunk, i int64) {
	call, channel := &w.call, h.channel(t, i)
	call.lanes = C.int64_t(min(lanes, h.Dim/h.groups-(t.block+i)*lanes))
	call.u, call.delta, call.z = h.row(&h.u, t, chunk, i), h.row(&h.delta, t, chunk, i), h.row(&h.z, t, chunk, i)
	call.a, call.d, call.bias = number(&h.a, channel), number(&h.d, channel), number(&h.bias, channel)
	for _, f := range []struct {
		t          *tensor.Tensor
		to         C.uintptr_t
		isConstant bool
	}{{&h.b, call.b, h.ConstantB}, {&h.c, call.c, h.ConstantC}} {
		if f.isConstant && f.t.Given() {
			from := number(f.t, channel)
			C.sw_selective_load_lanes(f.to, &from, call.dtype, call.states, call.lanes)
		}
	}
	call.initial = h.states(&h.initial, t, i)
	call.before = C.selective_states{}
	if e := &h.chunks; e.Given() {
		s := &e.Strides
		call.before = C.selective_states{data: C.uintptr_t(e.Data + uintptr((t.batch*s[0]+channel*s[1]+chunk*s[2])*e.DType.Size())),
			lane: C.int64_t(s[1]), state: C.int64_t(s[3])}
	}
	call.state = C.uintptr_t(w.state + uintptr(i*h.N*lanes*h.wide.Size()))
}

// row are the positions of a chunk of each channel of a block.
func (h *hostRun) row(r *tensor.Tensor, t *task, chunk, i int64) C.selective_operand {
	if !r.Given() {
		return C.selective_operand{}
	}
	offset := t.batch*r.Strides[0] + h.channel(t, i)*r.Strides[1] + chunk*Chunk*r.Strides[2]
	return C.selective_operand{data: C.uintptr_t(r.Data + uintptr(offset*r.DType.Size())), lane: C.int64_t(r.Strides[1]), step: C.int64_t(r.Strides[2])}
}

// number are the numbers of channels, from one on, and of their states if there are any.
func number(r *tensor.Tensor, channel int64) C.selective_operand {
	if !r.Given() {
		return C.selective_operand{}
	}
	return C.selective_operand{data: C.uintptr_t(r.Data + uintptr(channel*r.Strides[0]*r.DType.Size())), lane: C.int64_t(r.Strides[0]), step: C.int64_t(r.Strides[1])}
}

// states are the states of each sequence of a block.
func (h *hostRun) states(r *tensor.Tensor, t *task, i int64) C.selective_states {
	if !r.Given() {
		return C.selective_states{}
	}
	last := r.NDim - 1
	s := C.selective_states{lane: C.int64_t(r.Strides[last-1]), state: C.int64_t(r.Strides[last])}
	if r.NDim == 4 {
		s.sequence = C.int64_t(r.Strides[1])
	}
	offset := t.batch*r.Strides[0] + h.channel(t, i)*r.Strides[last-1]
	s.data = C.uintptr_t(r.Data + uintptr(offset*r.DType.Size()))
	return s
}

// passStates copies the states of empty sequences, or sets them to 0.
func (h *hostRun) passStates(to, from *tensor.Tensor) {
	if !to.Given() || to.Empty() {
		return
	}
	for k := range h.bounds.Count {
		if h.bounds.At(k) < h.bounds.At(k+1) {
			continue
		}
		for batch := range h.Batch {
			source := stateOf(from, batch, k)
			target := stateOf(to, batch, k)
			C.sw_selective_copy_states(&target, &source, C.int64_t(h.wide.Size()), C.int64_t(h.Dim), C.int64_t(h.N))
		}
	}
}

// stateOf are the numbers of one state by channel and state.
func stateOf(r *tensor.Tensor, batch, k int64) C.selective_operand {
	if !r.Given() {
		return C.selective_operand{}
	}
	last, offset := r.NDim-1, batch*r.Strides[0]
	if r.NDim == 4 {
		offset += k * r.Strides[1]
	}
	return C.selective_operand{data: C.uintptr_t(r.Data + uintptr(offset*r.DType.Size())), lane: C.int64_t(r.Strides[last-1]), step: C.int64_t(r.Strides[last])}
}

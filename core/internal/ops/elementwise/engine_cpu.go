package elementwise

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// This file runs an operation of the engine on the CPU, block by block.

// Host runs the Op over blocks of the operands on the CPU.
func (m *mapReduce) Host(args []tensor.Tensor) {
	args = m.unpacked(args)
	if m.inFloat64(args) {
		runPasses(m, args, m.op.f64, m.op.dense64, &cpu.Storages64)
	} else {
		runPasses(m, args, m.op.f32, m.op.dense32, &cpu.Storages32)
	}
}

// inFloat64 reports whether blocks are of float64.
func (m *mapReduce) inFloat64(args []tensor.Tensor) bool {
	return m.element == tensor.Float64 || m.op.products != nil && slices.ContainsFunc(args[:m.op.inputs], exceedsFloat32)
}

// exceedsFloat32 reports whether the dtype of t has values that float32 cannot represent.
func exceedsFloat32(t tensor.Tensor) bool {
	return t.Given() && (t.DType == tensor.Float64 || t.DType == tensor.Int32 || t.DType == tensor.Int64)
}

func runPasses[A cpu.Accumulator](m *mapReduce, args []tensor.Tensor, body blockBody[A], dense denseBody[A], table *[len(tensor.DTypeRows)]cpu.Storage[A]) {
	space := m.space(args)
	passes, n := m.plan(args)
	scalar := m.scalar
	if m.op.scalars != nil {
		m.op.scalars(&scalar, args)
	}
	for i := range n {
		h := hostPassOf(m, args, passes[i], &space, dense)
		h.scalar, h.body, h.table = scalar, body, table
		if m.op.products != nil {
			h.products = m.op.products(&scalar, args)
		}
		h.runPass()
	}
}

// blockBody and denseBody are the types of Op.f32 and Op.f64, and of Op.dense32 and Op.dense64.
type (
	blockBody[A cpu.Accumulator] func(*[4]float64, [][]A, [][]A, [][]float64)
	denseBody[A cpu.Accumulator] func(*[4]float64, *denseBlock, [][]A)
)

// hostPass is one pass over the operands on the CPU.
type hostPass[A cpu.Accumulator] struct {
	*mapReduce
	pass
	scalar [4]float64
	args   []tensor.Tensor
	body   blockBody[A]
	dense  denseBody[A]
	table  *[len(tensor.DTypeRows)]cpu.Storage[A]
	space  cpu.Space
	views  [cpu.MaxOperands]cpu.View
	run    int64                 // extent of the fastest dimension; 0 if it is short and not that of a token
	runs   [cpu.MaxOperands]bool // inputs that are constant along the run and are read once per run
	// repeated are the inputs that are the same, and dense, in each run.
	repeated [cpu.MaxOperands]bool
	products [3]product
	// direct: the product loops, or dense, read and write the memory of every operand that has one
	// number per element. Each is dense and of a suitable dtype.
	direct bool
}

// hostPassOf is a pass with its iteration space, without the numbers of the formula.
func hostPassOf[A cpu.Accumulator](m *mapReduce, args []tensor.Tensor, p pass, space *cpu.Space, dense denseBody[A]) *hostPass[A] {
	h := &hostPass[A]{mapReduce: m, pass: p, args: args, dense: dense}
	h.space = m.arrange(&h.pass, space)
	h.prepareReads()
	return h
}

// Tasks implements ops.Program: the tasks of the first pass.
func (m *mapReduce) Tasks(args []tensor.Tensor) int64 {
	args = m.unpacked(args)
	space := m.space(args)
	passes, n := m.plan(args)
	switch {
	case n == 0:
		return 0
	case m.inFloat64(args):
		return hostPassOf(m, args, passes[0], &space, denseBody[float64](m.op.dense64)).tasks()
	}
	return hostPassOf(m, args, passes[0], &space, denseBody[float32](m.op.dense32)).tasks()
}

// tasks is the number of tasks of the pass. The sums of chunks are added in tasks of their own.
func (h *hostPass[A]) tasks() int64 {
	kept, reduced, columns := h.space.Counts()
	switch {
	case h.reduction == nil:
		return num.CeilDiv(kept, cpu.Grain)
	case h.space.Columns:
		t := h.columnTasks(kept, reduced, columns)
		return kept * t.panels * t.chunks
	case reduced > cpu.Grain:
		return kept * num.CeilDiv(reduced, cpu.Grain)
	}
	return num.CeilDiv(kept, sumsPerTask[A](reduced))
}

// prepareReads decides how each operand is read.
func (h *hostPass[A]) prepareReads() {
	last := h.space.N - 1
	if last >= 0 && (h.space.Extent[last] >= cpu.ShortRun || h.op.perToken) {
		h.run = h.space.Extent[last]
	}
	for i := range h.args {
		h.runs[i] = i < h.op.inputs && h.op.denseInputs>>i&1 == 0 && h.run > 0 && h.space.Stride[i][last] == 0
		h.views[i] = h.space.View(i, 0, h.space.N, false)
		if h.runs[i] {
			h.views[i] = h.space.View(i, 0, last, false)
		}
	}
	_, _, columns := h.space.Counts()
	h.direct = (h.op.products != nil || h.dense != nil) && h.run > 0 && h.allDirect() && (!h.space.Columns || h.run == columns)
}

// allDirect reports whether the layout and dtype of every operand of the pass suit the product
// loops, or dense.
func (h *hostPass[A]) allDirect() bool {
	if zeroPoint := h.op.columnInputs & (h.op.columnInputs - 1); h.inputs&zeroPoint != 0 {
		return false // the product loops have no pair of 8-bit values and a zero point for each column
	}
	for i := range h.args {
		out := i - h.op.inputs
		used := out < 0 && h.inputs>>i&1 != 0 || out >= 0 && h.stored>>out&1 != 0
		d := h.args[i].DType
		eight := out < 0 && (i > 0 && (d == tensor.Int8 || d == tensor.Uint8) || h.dense != nil && d.Bits == 8)
		if !used || h.runs[i] {
			continue
		}
		h.repeated[i] = i > 0 && out < 0 && h.space.Repeats(i)
		dense := h.views[i].Regular && h.views[i].Step == 1 || h.repeated[i]
		if !dense || d != h.element && !eight {
			return false
		}
	}
	return true
}

// worker is the scratch of one goroutine.
type worker[A cpu.Accumulator] struct {
	products cpu.Products
	numbers  [2 * cpu.MaxOperands][cpu.MaxRuns]float64 // constant factors, and factors with one number per run
	blocks   [cpu.MaxOperands]cpu.Block[A]
	in, out  [cpu.MaxOperands][]A
	terms    [cpu.MaxOperands][]float64                   // of a block, of the outputs that are summed
	sums     [cpu.MaxOperands][cpu.BlockBytes / 4]float64 // of each output: the running sums of the task
	leaf     [cpu.MaxOperands][cpu.BlockBytes / 4]float64
	part     [cpu.BlockBytes / 4]float64
}

// Workers are kept between runs: they are larger than the tensors of many a run.
var (
	workers32 = sync.Pool{New: func() any { return new(worker[float32]) }}
	workers64 = sync.Pool{New: func() any { return new(worker[float64]) }}
)

// parallel runs body for every task, with the scratch of a worker.
func (h *hostPass[A]) parallel(tasks int64, body func(w *worker[A], task int64)) {
	pool := &workers32
	if cpu.TypeOf[A]() == tensor.Float64 {
		pool = &workers64
	}
	grain := int64(1)
	if h.direct { // a task takes a few microseconds, less than waking a goroutine
		grain = 8
	}
	threads.Run(unsafe.Pointer(h.mapReduce), tasks, grain, func() (*worker[A], func()) {
		w := pool.Get().(*worker[A])
		return w, func() { // slices of the caller's memory do not outlive the run
			w.in, w.out = [cpu.MaxOperands][]A{}, [cpu.MaxOperands][]A{}
			pool.Put(w)
		}
	}, body)
}

func (h *hostPass[A]) runPass() {
	kept, reduced, columns := h.space.Counts()
	switch {
	case h.reduction == nil:
		total := kept
		h.parallel(h.tasks(), func(w *worker[A], task int64) {
			h.forEachBlock(w, task*cpu.Grain, min(total, (task+1)*cpu.Grain), func(int64, int64) {})
		})
	case h.space.Columns:
		h.sumColumns(kept, reduced, columns)
	default:
		h.sumRows(kept, reduced)
	}
}

// forEachBlock computes the indices first..end-1 block by block and calls done after each block. If
// h.run is not 0, a block is a part of one run or several whole runs.
func (h *hostPass[A]) forEachBlock(w *worker[A], first, end int64, done func(start, n int64)) {
	size := cpu.BlockLen[A]()
	if h.direct {
		size = cpu.Grain
	}
	if h.run > 0 {
		size = min(size, cpu.MaxRuns*h.run)
	}
	for start, n := first, int64(0); start < end; start += n {
		n = min(size, end-start)
		if h.run > 0 {
			if left := h.run - start%h.run; left < h.run || n < h.run {
				n = min(n, left)
			} else {
				n -= n % h.run
			}
		}
		switch {
		case !h.direct:
			h.block(w, start, n)
		case h.dense != nil:
			h.computeDense(w, start, n)
		default:
			h.multiply(w, start, n)
		}
		done(start, n)
	}
}

func (h *hostPass[A]) storageOf(i int) *cpu.Storage[A] { return &h.table[h.args[i].DType.Row()] }

// load converts n adjacent elements of input i, or the number of each of their runs.
func (h *hostPass[A]) load(w *worker[A], i int, start, n int64) {
	if h.runs[i] {
		start, n = start/h.run, max(1, n/h.run)
	}
	w.in[i] = h.storageOf(i).Load(&w.blocks[i], &h.args[i], &h.views[i], start, n)
}

// computeDense computes n adjacent indices of the first input and of the output in place.
func (h *hostPass[A]) computeDense(w *worker[A], start, n int64) {
	for i := 1; i < h.op.inputs; i++ {
		if h.inputs>>i&1 != 0 {
			h.load(w, i, start, n)
		}
	}
	in, out := &h.args[0], &h.args[h.op.inputs]
	h.dense(&h.scalar, &denseBlock{
		in: in.Data + uintptr(start*in.DType.Size()), out: out.Data + uintptr(start*out.DType.Size()),
		inDType: in.DType, outDType: out.DType, run: min(h.run, n), n: n,
	}, w.in[:h.op.inputs])
}

// block computes all outputs of n adjacent indices and stores the outputs without sums.
func (h *hostPass[A]) block(w *worker[A], start, n int64) {
	for i := range h.op.inputs {
		if h.inputs>>i&1 != 0 {
			h.load(w, i, start, n)
		}
	}
	var placed uint8
	for o := range h.op.outputs {
		i := h.op.inputs + o
		w.out[o], w.terms[o] = nil, nil
		switch {
		case h.summed>>o&1 == 0:
		case h.op.sumsRuns():
			w.terms[o] = w.blocks[i].Sums[:num.CeilDiv(n, max(1, h.run))]
		default:
			w.terms[o] = cpu.RawOf[float64](&w.blocks[i], n)
		}
		if h.stored>>o&1 != 0 {
			w.out[o] = w.blocks[i].Wide[:n]
			if place := h.storageOf(i).Place(&h.args[i], &h.views[i], start, n); place != nil {
				w.out[o] = place
				placed |= 1 << o
			}
		}
	}
	if h.op.products != nil {
		h.multiplyWide(w, n)
	} else {
		h.body(&h.scalar, w.in[:h.op.inputs], w.out[:h.op.outputs], w.terms[:h.op.outputs])
	}
	for o := range h.op.outputs {
		if i := h.op.inputs + o; (h.stored&^placed)>>o&1 != 0 {
			h.storageOf(i).Store(&w.blocks[i], &h.args[i], &h.views[i], start, w.out[o])
		}
	}
}

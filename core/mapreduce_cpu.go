package core

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/sternway/sternway/core/internal/threads"
)

// grain is the number of elements of one task: enough to hide the cost of a goroutine, few enough for every core to have some.
const grain = 32768

// host runs the program's body over blocks of the operands.
func (m *mapReduce) host(args []Tensor) {
	if m.element == Float64 || m.op.multiples != nil && slices.ContainsFunc(args[:m.op.inputs], exceedsFloat32) {
		hostPasses(m, args, m.op.f64, &storages64)
	} else {
		hostPasses(m, args, m.op.f32, &storages32)
	}
}

// exceedsFloat32 reports that t has a type with numbers that float32 has not.
func exceedsFloat32(t Tensor) bool {
	return t.present() && (t.DType == Float64 || t.DType == Int32 || t.DType == Int64)
}

func hostPasses[A accumulator](m *mapReduce, args []Tensor, body func(*[4]float64, [][]A, [][]A, [][]float64), table *[len(dtypeRows)]storage[A]) {
	whole := m.space(args)
	passes, n := m.plan(args)
	scalar := m.scalar
	if m.op.scalars != nil {
		m.op.scalars(&scalar, args)
	}
	for i := range n {
		h := &hostPass[A]{mapReduce: m, pass: passes[i], scalar: scalar, args: args, body: body, table: table}
		if m.op.multiples != nil {
			h.multiples = m.op.multiples(&scalar, args)
		}
		h.space = m.arrange(&h.pass, &whole)
		h.look()
		h.walk()
	}
}

// hostPass is one walk over the operands on the CPU.
type hostPass[A accumulator] struct {
	*mapReduce
	pass
	scalar [4]float64
	args   []Tensor
	body   func(*[4]float64, [][]A, [][]A, [][]float64)
	table  *[len(dtypeRows)]storage[A]
	space  space
	views  [maxOperands]view
	// run is the extent of the fastest dimension, or 0 where that is too short to pay and is not a token's; an input that is constant
	// along it is then seen once for each run.
	run  int64
	runs [maxOperands]bool
	// repeats are the inputs that are the same, and dense, in each run.
	repeats [maxOperands]bool
	// multiples are the outputs of an operation that has them. direct: every operand that has a number for each element is dense and of a
	// type that the loop over products reads and writes where it lies, sums included.
	multiples [3]multiple
	direct    bool
}

// shortRun is the extent from which a loop over one run beats one over many.
const shortRun = 128

// maxRuns is the largest number of runs in a block.
const maxRuns = grain / shortRun

// look prepares how each operand is read.
func (h *hostPass[A]) look() {
	last := h.space.n - 1
	if last >= 0 && (h.space.extent[last] >= shortRun || h.op.tokens) {
		h.run = h.space.extent[last]
	}
	for i := range h.args {
		h.runs[i] = i < h.op.inputs && h.op.whole>>i&1 == 0 && h.run > 0 && h.space.stride[i][last] == 0
		h.views[i] = h.space.view(i, 0, h.space.n, false)
		if h.runs[i] {
			h.views[i] = h.space.view(i, 0, last, false)
		}
	}
	_, _, columns := h.space.counts()
	h.direct = h.op.multiples != nil && h.run > 0 && h.allDirect() && (!h.space.columns || h.run == columns)
}

// allDirect reports that every operand of the pass lies as the loop over products wants it.
func (h *hostPass[A]) allDirect() bool {
	for i := range h.args {
		out := i - h.op.inputs
		used := out < 0 && h.inputs>>i&1 != 0 || out >= 0 && h.full>>out&1 != 0
		eight := i > 0 && out < 0 && h.args[i].DType.Bits == 8
		if !used || h.runs[i] {
			continue
		}
		h.repeats[i] = i > 0 && out < 0 && h.space.repeats(i)
		dense := h.views[i].regular && h.views[i].step == 1 || h.repeats[i]
		if !dense || h.args[i].DType != h.element && !eight {
			return false
		}
	}
	return true
}

// worker is the scratch of one goroutine.
type worker[A accumulator] struct {
	products products
	numbers  [2 * maxOperands][maxRuns]float64 // factors that are constant, or constant along a run
	blocks   [maxOperands]block[A]
	in, out  [maxOperands][]A
	terms    [maxOperands][]float64               // of a block, of the outputs that are summed
	sums     [maxOperands][blockBytes / 4]float64 // of each output: the running sums of the task
	leaf     [maxOperands][blockBytes / 4]float64
	part     [blockBytes / 4]float64
}

// Workers are kept between runs: they are larger than the tensors of many a run.
var (
	workers32 = sync.Pool{New: func() any { return new(worker[float32]) }}
	workers64 = sync.Pool{New: func() any { return new(worker[float64]) }}
)

// parallel works through tasks, each with a worker that it gives back.
func (h *hostPass[A]) parallel(tasks int64, body func(w *worker[A], task int64)) {
	pool := &workers32
	if typeOf[A]() == Float64 {
		pool = &workers64
	}
	share := int64(1)
	if h.direct { // a task takes some microseconds, less than it takes to wake a goroutine
		share = 8
	}
	threads.Run(unsafe.Pointer(h.mapReduce), tasks, share, func() (*worker[A], func()) {
		w := pool.Get().(*worker[A])
		mode := enterDefaultMode()
		return w, func() { // slices of the caller's memory do not outlive the run
			w.in, w.out = [maxOperands][]A{}, [maxOperands][]A{}
			pool.Put(w)
			mode.leave()
		}
	}, body)
}

func (h *hostPass[A]) walk() {
	kept, reduced, columns := h.space.counts()
	switch {
	case h.reduction == nil:
		total := kept
		h.parallel(ceil(total, grain), func(w *worker[A], task int64) {
			h.each(w, task*grain, min(total, (task+1)*grain), func(int64, int64) {})
		})
	case h.space.columns:
		h.columns(kept, reduced, columns)
	default:
		h.rows(kept, reduced)
	}
}

// each works through the indices first..end-1 block by block; done is told of each block before the next. Where there are runs, a
// block is a part of one run or a number of whole ones.
func (h *hostPass[A]) each(w *worker[A], first, end int64, done func(start, n int64)) {
	size := blockLen[A]()
	if h.direct {
		size = grain
	}
	if h.run > 0 {
		size = min(size, maxRuns*h.run)
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
		if h.direct {
			h.multiply(w, start, n)
		} else {
			h.block(w, start, n)
		}
		done(start, n)
	}
}

func (h *hostPass[A]) storageOf(i int) *storage[A] { return &h.table[h.args[i].DType.row()] }

// load widens n adjacent indices of input i, or the number of each of their runs.
func (h *hostPass[A]) load(w *worker[A], i int, start, n int64) {
	if h.runs[i] {
		start, n = start/h.run, max(1, n/h.run)
	}
	w.in[i] = h.storageOf(i).load(&w.blocks[i], &h.args[i], &h.views[i], start, n)
}

// block computes all outputs of n adjacent indices and stores those that are not summed.
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
		case h.op.multiples != nil:
			w.terms[o] = rawOf[float64](&w.blocks[i], n)
		default:
			w.terms[o] = w.blocks[i].sums[:ceil(n, max(1, h.run))]
		}
		if h.full>>o&1 != 0 {
			w.out[o] = w.blocks[i].wide[:n]
			if place := h.storageOf(i).place(&h.args[i], &h.views[i], start, n); place != nil {
				w.out[o] = place
				placed |= 1 << o
			}
		}
	}
	if h.op.multiples != nil {
		h.multiplyWide(w, n)
	} else {
		h.body(&h.scalar, w.in[:h.op.inputs], w.out[:h.op.outputs], w.terms[:h.op.outputs])
	}
	for o := range h.op.outputs {
		if i := h.op.inputs + o; (h.full&^placed)>>o&1 != 0 {
			h.storageOf(i).store(&w.blocks[i], &h.args[i], &h.views[i], start, w.out[o])
		}
	}
}

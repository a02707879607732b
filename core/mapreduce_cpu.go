package core

import "sync"

// grain is the number of elements of one task: enough to hide the cost of a goroutine, few enough for every core to have some.
const grain = 32768

// host runs the program's body over blocks of the operands.
func (m *mapReduce) host(args []Tensor) error {
	if m.element == Float64 {
		hostPasses(m, args, m.op.f64, &storages64)
	} else {
		hostPasses(m, args, m.op.f32, &storages32)
	}
	return nil
}

func hostPasses[A accumulator](m *mapReduce, args []Tensor, body func(*[4]float64, [][]A, [][]A), table *[len(dtypeRows)]storage[A]) {
	whole := m.space(args)
	passes, n := m.plan(args)
	scalar := m.scalar
	if m.op.scalars != nil {
		m.op.scalars(&scalar, args)
	}
	for i := range n {
		h := &hostPass[A]{mapReduce: m, pass: passes[i], scalar: scalar, args: args, body: body, table: table}
		h.space = h.arrange(&whole, m.op.inputs)
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
	body   func(*[4]float64, [][]A, [][]A)
	table  *[len(dtypeRows)]storage[A]
	space  space
	views  [maxOperands]view
	// run is the extent of the fastest dimension, or 0 where that is too short to pay; an input that is constant along it is then
	// seen once for each run.
	run  int64
	runs [maxOperands]bool
}

// shortRun is the extent from which a loop over one run beats one over many.
const shortRun = 128

// look prepares how each operand is read.
func (h *hostPass[A]) look() {
	last := h.space.n - 1
	if last >= 0 && h.space.extent[last] >= shortRun {
		h.run = h.space.extent[last]
	}
	for i := range h.args {
		h.runs[i] = 0 < i && i < h.op.inputs && h.run > 0 && h.space.stride[i][last] == 0
		h.views[i] = h.space.view(i, 0, h.space.n, false)
		if h.runs[i] {
			h.views[i] = h.space.view(i, 0, last, false)
		}
	}
}

// worker is the scratch of one goroutine.
type worker[A accumulator] struct {
	blocks  [maxOperands]block[A]
	in, out [maxOperands][]A
	sums    [maxOperands][blockBytes / 4]float64 // of each output: the running sums of the task
	part    [blockBytes / 4]float64
}

// Workers are kept between runs: they are larger than the tensors of many a run.
var (
	workers32 = sync.Pool{New: func() any { return new(worker[float32]) }}
	workers64 = sync.Pool{New: func() any { return new(worker[float64]) }}
)

// parallel works through tasks, each with a worker that it gives back.
func (h *hostPass[A]) parallel(tasks int64, body func(w *worker[A], task int64)) {
	pool := &workers32
	if h.element == Float64 {
		pool = &workers64
	}
	parallel(tasks, func() (*worker[A], func()) {
		w := pool.Get().(*worker[A])
		w.in, w.out = [maxOperands][]A{}, [maxOperands][]A{}
		return w, func() { pool.Put(w) }
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
	for start, n := first, int64(0); start < end; start += n {
		n = min(blockLen[A](), end-start)
		if h.run > 0 {
			if left := h.run - start%h.run; left < h.run || n < h.run {
				n = min(n, left)
			} else {
				n -= n % h.run
			}
		}
		h.block(w, start, n)
		done(start, n)
	}
}

// block computes all outputs of n adjacent indices and stores those that are not summed.
func (h *hostPass[A]) block(w *worker[A], start, n int64) {
	storageOf := func(i int) *storage[A] { return &h.table[h.args[i].DType.row()] }
	for i := range h.op.inputs {
		if h.inputs>>i&1 == 0 {
			continue
		}
		from, count := start, n
		if h.runs[i] {
			from, count = start/h.run, max(1, n/h.run)
		}
		w.in[i] = storageOf(i).load(&w.blocks[i], &h.args[i], &h.views[i], from, count)
	}
	var placed uint8
	for o := range h.op.outputs {
		i := h.op.inputs + o
		if (h.full|h.summed)>>o&1 == 0 {
			continue
		}
		w.out[o] = w.blocks[i].wide[:n]
		if h.full>>o&1 != 0 {
			if place := storageOf(i).place(&h.args[i], &h.views[i], start, n); place != nil {
				w.out[o] = place
				placed |= 1 << o
			}
		}
	}
	h.body(&h.scalar, w.in[:h.op.inputs], w.out[:h.op.outputs])
	for o := range h.op.outputs {
		if i := h.op.inputs + o; (h.full&^placed)>>o&1 != 0 {
			storageOf(i).store(&w.blocks[i], &h.args[i], &h.views[i], start, w.out[o])
		}
	}
}

// rows sums along the fastest dimensions: sum k takes the indices k*reduced .. (k+1)*reduced-1.
func (h *hostPass[A]) rows(kept, reduced int64) {
	if reduced > grain {
		h.longRows(kept, reduced)
		return
	}
	perTask := min(blockLen[A](), max(1, grain/max(reduced, 1)))
	h.parallel(ceil(kept, perTask), func(w *worker[A], task int64) {
		first := task * perTask
		rows := min(perTask, kept-first)
		for o := range h.op.outputs {
			clear(w.sums[o][:rows])
		}
		h.each(w, first*reduced, (first+rows)*reduced, func(start, n int64) {
			for o := range h.op.outputs {
				if h.summed>>o&1 != 0 {
					h.addRows(w, w.sums[o][:rows], w.out[o], start-first*reduced, reduced)
				}
			}
		})
		for o := range h.op.outputs {
			if h.summed>>o&1 != 0 {
				h.storeSums(w, o, first, w.sums[o][:rows])
			}
		}
	})
}

// addRows adds values, which begin at an index of the task, to the sums of their rows.
func (h *hostPass[A]) addRows(w *worker[A], sums []float64, values []A, at, reduced int64) {
	for len(values) > 0 {
		row, left := at/reduced, reduced-at%reduced
		n, run := int64(len(values)), reduced
		if left < reduced || n < reduced { // a part of a row
			n = min(n, left)
			run = n
		} else {
			n -= n % reduced
		}
		part := w.part[:n/run]
		sumRuns(part, values[:n], run)
		for k, value := range part {
			sums[row+int64(k)] += value
		}
		values, at = values[n:], at+n
	}
}

// longRows cuts every row into parts of grain elements, whose sums are then added in a fixed tree.
func (h *hostPass[A]) longRows(kept, reduced int64) {
	parts := ceil(reduced, grain)
	partial := h.partials(kept * parts)
	h.parallel(kept*parts, func(w *worker[A], task int64) {
		row, part := task/parts, task%parts
		first := row*reduced + part*grain
		h.each(w, first, min(first+grain, (row+1)*reduced), func(int64, int64) {
			for o := range partial {
				if partial[o] != nil {
					sumRuns(w.part[:1], w.out[o], int64(len(w.out[o])))
					partial[o][task] += w.part[0]
				}
			}
		})
	})
	h.finish(partial, kept, parts, func(values []float64, k int64) float64 {
		return tree(parts, func(part int64) float64 { return values[k*parts+part] })
	})
}

// columns sums along slower dimensions. A task owns up to a block of adjacent columns and a part of the reduced indices.
func (h *hostPass[A]) columns(kept, reduced, columns int64) {
	size := blockLen[A]()
	width := min(columns, size)            // columns of a task
	deep := max(1, size/max(width, 1))     // reduced indices of a block: several only where a block holds whole rows
	tall := max(deep, grain/max(width, 1)) // reduced indices of a task
	parts := max(1, (reduced+tall-1)/tall)
	strips := (columns + width - 1) / max(width, 1)
	partial := h.partials(kept * columns * parts)
	h.parallel(kept*strips*parts, func(w *worker[A], task int64) {
		outer, strip, part := task/parts/strips, task/parts%strips, task%parts
		left := strip * width
		cols := min(width, columns-left)
		at := (part*kept+outer)*columns + left
		last := min(reduced, (part+1)*tall)
		for r := part * tall; r < last; r += deep {
			n := min(deep, last-r)
			h.block(w, (outer*reduced+r)*columns+left, n*cols)
			for o := range partial {
				if partial[o] != nil {
					addColumns(partial[o][at:at+cols], w.out[o], w.part[:cols])
				}
			}
		}
	})
	total := kept * columns
	h.finish(partial, total, parts, func(values []float64, k int64) float64 {
		return tree(parts, func(part int64) float64 { return values[part*total+k] })
	})
}

// addColumns adds the rows of a block to sums, through a sum of the block alone, so that long sums gather error slowly.
func addColumns[A accumulator](sums []float64, rows []A, part []float64) {
	cols := len(sums)
	if len(rows) == cols {
		for c, value := range rows {
			sums[c] += float64(value)
		}
		return
	}
	clear(part)
	for len(rows) >= cols && cols > 0 {
		for c, value := range rows[:cols] {
			part[c] += float64(value)
		}
		rows = rows[cols:]
	}
	for c, value := range part {
		sums[c] += value
	}
}

func (h *hostPass[A]) partials(n int64) [maxOperands][]float64 {
	var partial [maxOperands][]float64
	for o := range h.op.outputs {
		if h.summed>>o&1 != 0 {
			partial[o] = make([]float64, n)
		}
	}
	return partial
}

// finish adds the parts of every sum and stores the results.
func (h *hostPass[A]) finish(partial [maxOperands][]float64, total, parts int64, add func(values []float64, k int64) float64) {
	size := blockLen[A]()
	perTask := max(size, grain/parts/size*size)
	h.parallel(ceil(total, perTask), func(w *worker[A], task int64) {
		for first := task * perTask; first < min(total, (task+1)*perTask); first += size {
			n := min(size, total-first)
			for o := range partial {
				if partial[o] == nil {
					continue
				}
				for k := range n {
					w.part[k] = add(partial[o], first+k)
				}
				h.storeSums(w, o, first, w.part[:n])
			}
		}
	})
}

// storeSums writes results first.. of output o.
func (h *hostPass[A]) storeSums(w *worker[A], o int, first int64, values []float64) {
	i := h.op.inputs + o
	v := h.space.view(i, 0, h.space.kept, h.space.columns)
	wide := w.blocks[i].wide[:len(values)]
	for k, value := range values {
		wide[k] = A(value)
	}
	h.table[h.args[i].DType.row()].store(&w.blocks[i], &h.args[i], &v, first, wide)
}

// tree adds n values in a fixed balanced tree.
func tree(n int64, value func(int64) float64) float64 {
	var between func(low, high int64) float64
	between = func(low, high int64) float64 {
		if high-low <= 8 {
			total := 0.0
			for i := low; i < high; i++ {
				total += value(i)
			}
			return total
		}
		middle := (low + high) / 2
		return between(low, middle) + between(middle, high)
	}
	return between(0, n)
}

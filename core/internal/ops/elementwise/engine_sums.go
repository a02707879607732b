package elementwise

import (
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
)

// This file sums outputs along the fastest dimensions on the CPU, in a fixed order.

// sumRows sums along the fastest dimensions: sum k covers the indices k*reduced .. (k+1)*reduced-1.
func (h *hostPass[A]) sumRows(kept, reduced int64) {
	if reduced > cpu.Grain {
		h.sumLongRows(kept, reduced)
		return
	}
	perTask := sumsPerTask[A](reduced)
	h.parallel(h.tasks(), func(w *worker[A], task int64) {
		first := task * perTask
		rows := min(perTask, kept-first)
		for o := range h.op.outputs {
			clear(w.sums[o][:rows])
		}
		h.forEachBlock(w, first*reduced, (first+rows)*reduced, func(start, n int64) {
			for o := range h.op.outputs {
				if h.summed>>o&1 != 0 {
					h.addRows(w, w.sums[o][:rows], o, start-first*reduced, n, reduced)
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

// sumsPerTask is the number of sums of `reduced` elements that a task computes.
func sumsPerTask[A cpu.Accumulator](reduced int64) int64 {
	return min(cpu.BlockLen[A](), max(1, cpu.Grain/max(reduced, 1)))
}

// addRows adds a block of output o, n values that begin at an index of the task, to the sums of
// their rows.
func (h *hostPass[A]) addRows(w *worker[A], sums []float64, o int, at, n, reduced int64) {
	if h.direct || h.op.sumsRuns() { // Block.Sums holds the sum of each run
		run := min(max(1, h.run), n)
		for k, value := range w.blocks[h.op.inputs+o].Sums[:num.CeilDiv(n, run)] {
			sums[(at+int64(k)*run)/reduced] += value
		}
		return
	}
	for values := w.terms[o]; len(values) > 0; {
		row, left := at/reduced, reduced-at%reduced
		n, run := int64(len(values)), reduced
		if left < reduced || n < reduced { // a part of a row
			n = min(n, left)
			run = n
		} else {
			n -= n % reduced
		}
		part := w.part[:n/run]
		cpu.SumRuns(part, values[:n], run)
		for k, value := range part {
			sums[row+int64(k)] += value
		}
		values, at = values[n:], at+n
	}
}

// sumLongRows splits every row into chunks of cpu.Grain elements and adds the sums of the chunks in
// a fixed tree.
func (h *hostPass[A]) sumLongRows(kept, reduced int64) {
	chunks := num.CeilDiv(reduced, cpu.Grain)
	partial := h.partials(kept * chunks)
	h.parallel(h.tasks(), func(w *worker[A], task int64) {
		row, chunk := task/chunks, task%chunks
		first := row*reduced + chunk*cpu.Grain
		end := min(first+cpu.Grain, (row+1)*reduced)
		h.forEachBlock(w, first, end, func(start, n int64) {
			for o := range partial {
				if partial[o] != nil {
					h.addRows(w, partial[o][task:task+1], o, start-first, n, end-first)
				}
			}
		})
	})
	h.finish(partial, kept, chunks, func(sums, values []float64, first int64) {
		for k := range sums {
			row := (first + int64(k)) * chunks
			sums[k] = treeSum(values[row : row+chunks])
		}
	})
}

// partials allocates n partial sums for each summed output.
func (h *hostPass[A]) partials(n int64) [cpu.MaxOperands][]float64 {
	var partial [cpu.MaxOperands][]float64
	for o := range h.op.outputs {
		if h.summed>>o&1 != 0 {
			partial[o] = make([]float64, n)
		}
	}
	return partial
}

// finish adds the chunks of every sum and stores the results. add sets the sums from index first
// on.
func (h *hostPass[A]) finish(partial [cpu.MaxOperands][]float64, total, chunks int64, add func(sums, values []float64, first int64)) {
	size := cpu.BlockLen[A]()
	perTask := max(size, cpu.Grain/chunks/size*size)
	h.parallel(num.CeilDiv(total, perTask), func(w *worker[A], task int64) {
		for first := task * perTask; first < min(total, (task+1)*perTask); first += size {
			n := min(size, total-first)
			for o := range partial {
				if partial[o] == nil {
					continue
				}
				add(w.part[:n], partial[o], first)
				h.storeSums(w, o, first, w.part[:n])
			}
		}
	})
}

// storeSums writes the results of output o from index first on.
func (h *hostPass[A]) storeSums(w *worker[A], o int, first int64, values []float64) {
	i := h.op.inputs + o
	h.scaleSums(w, h.products[o].sumFactor, first, values)
	v := h.space.View(i, 0, h.space.Kept, h.space.Columns)
	wide, short := w.blocks[i].Wide[:len(values)], h.args[i].DType.Size() == 2
	for k, value := range values {
		if short {
			value = float64(cpu.RoundToOdd(value))
		}
		wide[k] = A(value)
	}
	h.table[h.args[i].DType.Row()].Store(&w.blocks[i], &h.args[i], &v, first, wide)
}

// scaleSums multiplies the sums from index first on by an input with one number per sum; input 0:
// no factor. An empty sum stays 0.
func (h *hostPass[A]) scaleSums(w *worker[A], input int, first int64, sums []float64) {
	if _, reduced, _ := h.space.Counts(); input == 0 || reduced == 0 {
		return
	}
	v := h.space.View(input, 0, h.space.Kept, h.space.Columns)
	for k, factor := range h.storageOf(input).Load(&w.blocks[input], &h.args[input], &v, first, int64(len(sums))) {
		sums[k] *= float64(factor)
	}
}

// treeSum adds values in a fixed balanced tree.
func treeSum(values []float64) (sum float64) {
	if half := len(values) / 2; half >= 8 {
		return treeSum(values[:half]) + treeSum(values[half:])
	}
	for _, v := range values {
		sum += v
	}
	return sum
}

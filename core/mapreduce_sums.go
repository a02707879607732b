package core

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

// addRows adds a block of output o, n values that begin at an index of the task, to the sums of their rows.
func (h *hostPass[A]) addRows(w *worker[A], sums []float64, o int, at, n, reduced int64) {
	if h.direct {
		run := min(h.run, n)
		for k, value := range w.blocks[h.op.inputs+o].sums[:ceil(n, run)] {
			sums[(at+int64(k)*run)/reduced] += value
		}
		return
	}
	for values := w.out[o]; len(values) > 0; {
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
		end := min(first+grain, (row+1)*reduced)
		h.each(w, first, end, func(start, n int64) {
			for o := range partial {
				if partial[o] != nil {
					h.addRows(w, partial[o][task:task+1], o, start-first, n, end-first)
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

// addColumns adds the rows of a block to sums, through sums of sixteen rows and of the block, so that error gathers slowly.
func addColumns[A accumulator](sums []float64, rows []A, part []float64) {
	const leaf = 16
	cols := len(sums)
	if cols == 0 {
		return
	}
	if len(rows) <= leaf*cols {
		clear(part)
		for ; len(rows) > 0; rows = rows[cols:] {
			addEach(part, rows[:cols])
		}
		addEach(sums, part)
		return
	}
	middle := len(rows) / cols / 2 * cols
	block := make([]float64, cols)
	addColumns(block, rows[:middle], part)
	addColumns(block, rows[middle:], part)
	addEach(sums, block)
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

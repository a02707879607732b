package elementwise

import (
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
)

// Sums of columns, along slower dimensions. Rows are added in leaves of leafRows, and leaves in
// groups of leafRows, so that the rounding error grows slowly.
const (
	leafRows       = 16
	panelColumns   = 1024 // columns of a task that uses the product loops: their float64 sums stay in the L1 cache
	maxColumnTasks = 256  // tasks beyond which partial sums cost more than they gain
)

// sumColumns sums along slower dimensions. A task owns a panel of adjacent columns and a chunk of
// the reduced indices.
func (h *hostPass[A]) sumColumns(kept, reduced, columns int64) {
	d := h.columnTasks(kept, reduced, columns)
	panels, chunks := d.panels, d.chunks
	total := kept * columns
	partial := h.partials(total * chunks)
	h.parallel(h.tasks(), func(w *worker[A], task int64) {
		outer, panel, chunk := task/chunks/panels, task/chunks%panels, task%chunks
		left := panel * d.width
		at := chunk*total + outer*columns + left
		t := columnTask{index: outer*reduced*columns + left, pitch: columns, width: min(d.width, columns-left)}
		for o := range partial {
			if partial[o] != nil {
				t.sums[o] = partial[o][at : at+t.width]
			}
		}
		first, end := chunk*d.rowsPerTask, min(reduced, (chunk+1)*d.rowsPerTask)
		h.addColumns(w, &t, first, end, max(leafRows, d.rowsPerBlock), d.rowsPerBlock)
	})
	h.finish(partial, total, chunks, func(sums, values []float64, first int64) {
		clear(sums)
		for chunk := range chunks {
			cpu.AddEach(sums, values[chunk*total+first:][:len(sums)])
		}
	})
}

// columnTasks is the division of sums of columns into tasks: panels of `width` adjacent columns,
// chunks of rowsPerTask reduced indices, and the rows that fit a block.
type columnTasks struct{ panels, width, chunks, rowsPerTask, rowsPerBlock int64 }

func (h *hostPass[A]) columnTasks(kept, reduced, columns int64) columnTasks {
	t := columnTasks{width: min(columns, panelColumns), rowsPerBlock: 1}
	if !h.direct { // a block holds several rows if rows are short
		t.width = min(columns, cpu.BlockLen[A]())
		t.rowsPerBlock = max(1, cpu.BlockLen[A]()/max(t.width, 1))
	}
	t.panels = num.CeilDiv(columns, max(t.width, 1))
	t.rowsPerTask = max(t.rowsPerBlock, cpu.Grain/max(t.width, 1), num.CeilDiv(reduced*kept*t.panels, maxColumnTasks))
	t.chunks = max(1, num.CeilDiv(reduced, t.rowsPerTask))
	return t
}

// columnTask is a panel of columns: the index of its first element, the elements from row to row,
// the number of columns, and the sums of each output.
type columnTask struct {
	index, pitch, width int64
	sums                [cpu.MaxOperands][]float64
}

// addColumns adds the rows first..end-1 of a panel to its sums, leaf by leaf.
func (h *hostPass[A]) addColumns(w *worker[A], t *columnTask, first, end, leaf, rowsPerBlock int64) {
	leaves := 0
	for o, sums := range t.sums {
		clear(w.sums[o][:len(sums)])
	}
	for row := first; row < end; row += leaf {
		rows := min(leaf, end-row)
		for o := range t.sums {
			clear(w.leaf[o][:len(t.sums[o])])
		}
		if h.direct {
			h.multiplyColumns(w, t, row, rows)
		}
		for r := row; !h.direct && r < row+rows; r += rowsPerBlock {
			n := min(rowsPerBlock, row+rows-r)
			h.block(w, t.index+r*t.pitch, n*t.width)
			for o, sums := range t.sums {
				if sums != nil {
					addRowsOf(w.leaf[o][:len(sums)], w.terms[o])
				}
			}
		}
		leaves++
		for o, sums := range t.sums {
			cpu.AddEach(w.sums[o][:len(sums)], w.leaf[o][:len(sums)])
			if leaves%leafRows == 0 || row+rows == end {
				cpu.AddEach(sums, w.sums[o][:len(sums)])
				clear(w.sums[o][:len(sums)])
			}
		}
	}
}

// addRowsOf adds the rows of a block to sums, recursively by halves down to a leaf.
func addRowsOf(sums, rows []float64) {
	cols := len(sums)
	if cols > 0 && len(rows) > leafRows*cols {
		middle := len(rows) / cols / 2 * cols
		half := make([]float64, cols)
		addRowsOf(half, rows[:middle])
		addRowsOf(sums, rows[middle:])
		cpu.AddEach(sums, half)
		return
	}
	for ; cols > 0 && len(rows) > 0; rows = rows[cols:] {
		cpu.AddEach(sums, rows[:cols])
	}
}

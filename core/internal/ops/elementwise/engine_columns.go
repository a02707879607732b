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
	width, rowsPerBlock, rowsPerTask := h.columnTasks(kept, reduced, columns)
	panels := num.CeilDiv(columns, max(width, 1))
	chunks := max(1, num.CeilDiv(reduced, rowsPerTask))
	total := kept * columns
	partial := h.partials(total * chunks)
	h.parallel(kept*panels*chunks, func(w *worker[A], task int64) {
		outer, panel, chunk := task/chunks/panels, task/chunks%panels, task%chunks
		left := panel * width
		at := chunk*total + outer*columns + left
		t := columnTask{index: outer*reduced*columns + left, pitch: columns, width: min(width, columns-left)}
		for o := range partial {
			if partial[o] != nil {
				t.sums[o] = partial[o][at : at+t.width]
			}
		}
		h.addColumns(w, &t, chunk*rowsPerTask, min(reduced, (chunk+1)*rowsPerTask), max(leafRows, rowsPerBlock), rowsPerBlock)
	})
	h.finish(partial, total, chunks, func(sums, values []float64, first int64) {
		clear(sums)
		for chunk := range chunks {
			cpu.AddEach(sums, values[chunk*total+first:][:len(sums)])
		}
	})
}

// columnTasks are the columns of a task, the rows that fit a block, and the rows of a task.
func (h *hostPass[A]) columnTasks(kept, reduced, columns int64) (width, rowsPerBlock, rowsPerTask int64) {
	width, rowsPerBlock = min(columns, panelColumns), 1
	if !h.direct { // a block holds several rows if rows are short
		width = min(columns, cpu.BlockLen[A]())
		rowsPerBlock = max(1, cpu.BlockLen[A]()/max(width, 1))
	}
	panels := num.CeilDiv(columns, max(width, 1))
	return width, rowsPerBlock, max(rowsPerBlock, cpu.Grain/max(width, 1), num.CeilDiv(reduced*kept*panels, maxColumnTasks))
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

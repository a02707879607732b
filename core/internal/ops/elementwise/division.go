package elementwise

import (
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file describes how the first pass of a run is divided.

// Division implements ops.Program.
func (m *mapReduce) Division(args []tensor.Tensor, q *launch.Queue) ops.Division {
	switch {
	case q != nil:
		return ops.Division{}
	case m.inFloat64(args):
		return divisionOf[float64](m, args)
	}
	return divisionOf[float32](m, args)
}

func divisionOf[A cpu.Accumulator](m *mapReduce, args []tensor.Tensor) ops.Division {
	space := m.space(args)
	passes, n := m.plan(args)
	if n == 0 {
		return ops.Division{}
	}
	h := &hostPass[A]{mapReduce: m, pass: passes[0], args: args}
	if m.op.dense32 != nil {
		h.dense = func(*[4]float64, *denseBlock, [][]A) {}
	}
	h.space = m.arrange(&h.pass, &space)
	h.prepareReads()
	kept, reduced, columns := h.space.Counts()
	d := ops.Division{Rows: kept, Columns: reduced, RowUnit: "sums", ColumnUnit: "elements", BlockRows: 1, BlockColumns: cpu.Grain}
	switch {
	case h.reduction == nil:
		d.Rows, d.Columns, d.RowUnit = 1, kept, "rows"
	case h.space.Columns:
		width, _, rows := h.columnTasks(kept, reduced, columns)
		d.Rows, d.Columns, d.RowUnit, d.ColumnUnit = kept*reduced, columns, "elements of each sum", "sums"
		d.BlockRows, d.BlockColumns = min(rows, reduced), width
		d.Blocks = kept * num.CeilDiv(columns, max(1, width)) * max(1, num.CeilDiv(reduced, rows))
	case reduced <= cpu.Grain:
		d.BlockRows, d.BlockColumns = sumsPerTask[A](reduced), reduced
	}
	return d.Divide()
}

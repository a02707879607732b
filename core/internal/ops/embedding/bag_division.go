package embedding

import (
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file describes how embedding bags divide their work.

// HostDivisions implements ops.Program: the division of the sums.
func (p *BagProgram) HostDivisions([]tensor.Tensor) []launch.Division {
	return launch.Clipped(p.rowsOfTable(p.rowsPerBucket()))
}

// rowsOfTable divides dweight into blocks of whole rows.
func (p *BagProgram) rowsOfTable(each int64) launch.Division {
	return launch.Division{Rows: p.NumEmbeddings, Columns: p.EmbeddingDim, RowUnit: "rows of the table", ColumnUnit: "elements",
		BlockRows: each, BlockColumns: p.EmbeddingDim}
}

// ofIndices divides the positions among CTAs that take some at once.
func (p *BagProgram) ofIndices(each, atOnce int64) launch.Division {
	return launch.Division{Rows: 1, Columns: p.TotalIndices, ColumnUnit: "indices", BlockRows: 1, BlockColumns: each, TileColumns: atOnce}
}

// ofUnits divides n units, each as wide as a row, among groups of threads. A group takes a slice of
// a unit.
func (l *bagLaunch) ofUnits(n, size int64, unit, slice string) launch.Division {
	groups := launch.BlockThreads / l.lanes
	d := launch.Division{Rows: 1, Columns: n * size, ColumnUnit: unit, BlockRows: 1, BlockColumns: groups * size, TileColumns: size}
	if l.slices > 1 {
		d.Columns, d.ColumnUnit, d.BlockColumns, d.TileColumns = n*l.slices, slice, groups, 0
	}
	return d
}

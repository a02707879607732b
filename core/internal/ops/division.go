package ops

import "github.com/sternway/sternway/core/internal/num"

// Division is how a run with contiguous operands divides its work. The work is a matrix, and each
// block computes a part of it. A block is a CTA on a GPU, and a task of the worker pool on the CPU.
type Division struct {
	Rows         int64  `json:"rows"`
	Columns      int64  `json:"columns"`
	RowUnit      string `json:"row_unit"` // plural: "rows"
	ColumnUnit   string `json:"column_unit"`
	BlockRows    int64  `json:"block_rows"` // of a whole block; those at the edges may be smaller
	BlockColumns int64  `json:"block_columns"`
	TileColumns  int64  `json:"tile_columns"` // columns that a block holds at once
	Blocks       int64  `json:"blocks"`       // parts of the matrix; on a GPU, CTAs may loop over several
}

// Divide fills in the number of blocks, and clips blocks to the matrix.
func (d Division) Divide() Division {
	if d.Rows <= 0 || d.Columns <= 0 {
		return Division{}
	}
	d.BlockRows, d.BlockColumns = min(d.BlockRows, d.Rows), min(d.BlockColumns, d.Columns)
	if d.TileColumns == 0 {
		d.TileColumns = d.BlockColumns
	}
	d.TileColumns = min(d.TileColumns, d.BlockColumns)
	if d.Blocks == 0 {
		d.Blocks = num.CeilDiv(d.Rows, d.BlockRows) * num.CeilDiv(d.Columns, d.BlockColumns)
	}
	return d
}

package launch

import "github.com/sternway/sternway/core/internal/num"

// Division is how a launch, or a run on the CPU, divides its work. The work is one matrix or
// several, and each block computes a part of one. A block is a CTA on a GPU, and a task of the
// worker pool on the CPU.
type Division struct {
	Groups       int64  `json:"groups"`     // matrices, which are divided alike
	GroupUnit    string `json:"group_unit"` // plural; "" if there is one matrix
	Rows         int64  `json:"rows"`       // of a matrix
	Columns      int64  `json:"columns"`
	RowUnit      string `json:"row_unit"` // plural: "rows"; "" of a vector
	ColumnUnit   string `json:"column_unit"`
	BlockRows    int64  `json:"block_rows"` // of a whole block; those at the edges may be smaller
	BlockColumns int64  `json:"block_columns"`
	TileColumns  int64  `json:"tile_columns"` // columns that a block holds at once
	Blocks       int64  `json:"blocks"`       // parts of all matrices; CTAs may loop over several
	// A thread of a GPU holds ThreadVectors vectors at once, each of VectorElements adjacent
	// elements, of one row after another, ThreadRows in all. 0: unknown.
	ThreadRows     int64 `json:"thread_rows"`
	ThreadVectors  int64 `json:"thread_vectors"`
	VectorElements int64 `json:"vector_elements"`
	// IsAuxiliary marks a short step beside the main work, such as the clearing of the workspace.
	// A picture names its launch and draws no matrix.
	IsAuxiliary bool `json:"is_auxiliary"`
}

// clip fills in the number of blocks, and clips blocks to the matrix.
func (d Division) clip() Division {
	d.Groups = max(d.Groups, 1)
	d.BlockRows, d.BlockColumns = min(d.BlockRows, d.Rows), min(d.BlockColumns, d.Columns)
	if d.TileColumns <= 1 {
		d.TileColumns = d.BlockColumns
	}
	d.TileColumns, d.ThreadRows = min(d.TileColumns, d.BlockColumns), min(d.ThreadRows, d.BlockRows)
	if d.GroupUnit != "" && d.Groups == 1 {
		d.GroupUnit = ""
	}
	if d.Blocks == 0 {
		d.Blocks = d.Groups * num.CeilDiv(d.Rows, d.BlockRows) * num.CeilDiv(d.Columns, d.BlockColumns)
	}
	return d
}

// Clipped are the divisions of which there is work, with blocks clipped to the matrices.
func Clipped(divisions ...Division) (list []Division) {
	for _, d := range divisions {
		if d.Rows > 0 && d.Columns > 0 {
			list = append(list, d.clip())
		}
	}
	return list
}

// OfSplits divides rows into splits of `length` columns. Splits are numbered with the row running
// fastest, and a block takes `number` adjacent ones. If these make no rectangle of the matrix, each
// split is a row of its own.
func (d Division) OfSplits(length, number int64) Division {
	length = max(1, min(length, d.Columns))
	splits := num.CeilDiv(d.Columns, length)
	d.BlockRows, d.BlockColumns = number, length
	switch {
	case splits == 1 || d.Rows%number == 0:
	case number%d.Rows == 0:
		d.BlockRows, d.BlockColumns = d.Rows, number/d.Rows*length
	default:
		d.Rows, d.Columns, d.RowUnit = d.Rows*splits, length, "splits of "+d.RowUnit
	}
	return d
}

// Divide adds a division to the next launch, if divisions are wanted. Those of a launch belong to
// different CTAs.
func (q *Queue) Divide(d Division) {
	if q.Divisions != nil {
		q.pending = append(q.pending, Clipped(d)...)
	}
}

// DivideWords is Divide for a kernel that clears n words of the workspace, one in each thread.
func (q *Queue) DivideWords(n int64, threads int64) {
	q.Divide(Division{Rows: 1, Columns: n, ColumnUnit: "words to clear", BlockRows: 1, BlockColumns: threads, IsAuxiliary: true})
}

// divided ends the divisions of a launch, which is not submitted if its grid is empty.
func (q *Queue) divided(submitted bool) {
	if q.Divisions != nil && submitted {
		*q.Divisions = append(*q.Divisions, q.pending)
	}
	q.pending = nil
}

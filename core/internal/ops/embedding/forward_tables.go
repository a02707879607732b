package embedding

import (
	"fmt"
	"slices"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file is the family of embedding bags of many tables (table-batched embedding): descriptor,
// operands and checks. It has the programs and kernels of one table.

// EmbeddingBags reduces rows of many tables at once, as EmbeddingBag reduces those of one. Every
// table has NumBags bags. Bag b of table t has the positions from offsets[t * NumBags + b] up to
// the next offset, and is in row b of y, in the columns of table t. An index counts the rows of its
// own table.
//
// Row t of `tables` has the first row, the first element in weight and the first column in y of
// table t; its last row has the ends of these. So table t has tables[t+1][0] - tables[t][0] rows of
// tables[t+1][2] - tables[t][2] columns, which are contiguous from element tables[t][1] on. Between
// two tables there may be a gap.
//
// Operands: weight [NumElements], indices [TotalIndices] of all tables end to end, offsets
// [NumTables * NumBags + 1], which begin with 0 and end with TotalIndices, tables [NumTables + 1,
// 3] int64, per_sample_weights? [TotalIndices] (sum; of DType or float32) -> y [NumBags,
// NumColumns], max_indices? [NumBags, NumColumns] (max; of IndexDType or int64). A GPU trusts
// `tables`.
type EmbeddingBags struct {
	NumTables    int64         `json:"num_tables"`
	NumBags      int64         `json:"num_bags"`      // of each table
	NumRows      int64         `json:"num_rows"`      // of all tables
	NumElements  int64         `json:"num_elements"`  // of weight
	NumColumns   int64         `json:"num_columns"`   // of y: the sum of the widths
	EmbeddingDim int64         `json:"embedding_dim"` // the largest width
	TotalIndices int64         `json:"total_indices"`
	DType        tensor.DType  `json:"dtype"`
	Mode         string        `json:"mode"`         // "sum", "mean" or "max"
	IndexDType   tensor.DType  `json:"index_dtype"`  // int32 or int64
	OffsetDType  *tensor.DType `json:"offset_dtype"` // nil: IndexDType
	IsAligned    bool          `json:"is_aligned"`   // each table begins at, and each width is, a multiple of 16 bytes
}

var bagsForward = ops.Register(&ops.Family{
	Name: "embedding_bags", Category: bagForward.Category, Image: bagForward.Image, Kinds: bagForward.Kinds,
	Required: []string{"num_tables", "num_bags", "num_rows", "num_elements", "num_columns", "embedding_dim", "total_indices", "dtype"},
	Choices:  bagForwardChoices,
	Decode:   ops.DecodeAs[EmbeddingBags],
})

// Family is "embedding_bags".
func (d EmbeddingBags) Family() string { return bagsForward.Name }

// Problem checks the descriptor. It implements ops.Descriptor.
func (d EmbeddingBags) Problem() (*ops.Problem, error) {
	op, y, flat := bagsForward.Name, []int64{d.NumBags, d.NumColumns}, []int64{d.TotalIndices}
	if err := d.check(op); err != nil {
		return nil, err
	}
	said := "as the descriptor says"
	problem := &ops.Problem{
		Family: bagsForward, Element: d.DType, Aux: d.IndexDType.String(),
		Traffic: gatherTraffic(d.DType, d.TotalIndices, d.NumTables*d.NumBags, d.NumColumns/max(d.NumTables, 1)),
		Operands: slices.Concat([]ops.Operand{
			{Name: "weight", Contiguous: true, DTypes: []tensor.DType{d.DType}, Like: said, Shapes: [][]int64{{d.NumElements}}},
		}, d.positionOperands(), reducedOperands(d.DType, d.IndexDType, flat, y)),
		CheckValues: func(args []tensor.Tensor) *errs.Error {
			return d.checkPositions(op, &args[forwardIndices], &args[forwardOffsets], &args[forwardTables])
		},
		Compile: d.compile,
	}
	problem.CheckPresence = presenceOf(op, d.Mode, forwardOperandsOf(problem))
	return problem, nil
}

// check refuses fields that contradict each other.
func (d EmbeddingBags) check(op string) error {
	return ops.FirstError(
		ops.CheckShape(op, "[num_tables, num_bags]", []int64{d.NumTables, d.NumBags}),
		ops.CheckShape(op, "[num_bags, num_columns]", []int64{d.NumBags, d.NumColumns}),
		ops.CheckShape(op, "[num_tables]", []int64{d.NumTables}), // where there are no bags
		ops.CheckShape(op, "[num_bags]", []int64{d.NumBags}),
		ops.CheckShape(op, "[num_rows]", []int64{d.NumRows}),
		ops.CheckShape(op, "[num_elements]", []int64{d.NumElements}),
		ops.CheckShape(op, "[num_columns]", []int64{d.NumColumns}),
		ops.CheckShape(op, "[embedding_dim]", []int64{d.EmbeddingDim}),
		ops.CheckShape(op, "[total_indices]", []int64{d.TotalIndices}),
		ops.CheckElement(op, "dtype", d.DType, tensor.Floats),
		ops.CheckElement(op, "index_dtype", d.IndexDType, indexDTypes),
		ops.CheckElement(op, "offset_dtype", d.offsetDType(), indexDTypes),
		checkBagMode(op, d.Mode),
		d.checkAlignment(op),
	)
}

// checkAlignment refuses a largest width that is no multiple of 16 bytes, if all widths are.
func (d EmbeddingBags) checkAlignment(op string) error {
	if vector := 16 / max(d.DType.Size(), 1); d.IsAligned && d.EmbeddingDim%vector != 0 {
		return errs.New(errs.InvalidProblem, op, "embedding_dim", fmt.Sprintf("a multiple of %d, as is_aligned says", vector), fmt.Sprint(d.EmbeddingDim), "")
	}
	return nil
}

func (d EmbeddingBags) offsetDType() tensor.DType {
	if d.OffsetDType != nil {
		return *d.OffsetDType
	}
	return d.IndexDType
}

// positionOperands are the operands that say which rows are in which bags.
func (d EmbeddingBags) positionOperands() []ops.Operand {
	said := "as the descriptor says"
	return []ops.Operand{
		{Name: "indices", DTypes: []tensor.DType{d.IndexDType}, Like: said, Shapes: [][]int64{{d.TotalIndices}}},
		{Name: "offsets", DTypes: []tensor.DType{d.offsetDType()}, Like: said, Shapes: [][]int64{{d.NumTables*d.NumBags + 1}}},
		{Name: "tables", Contiguous: true, DTypes: []tensor.DType{tensor.Int64}, Shapes: [][]int64{{d.NumTables + 1, tableWords}}},
	}
}

// Columns of `tables`.
const (
	tableRow = iota
	tableElement
	tableColumn
	tableWords
)

// tableRowsOf are the rows of `tables`, which is contiguous.
func tableRowsOf(t *tensor.Tensor) [][tableWords]int64 {
	words := cpu.Elements[int64](t, 0, t.Shape[0]*tableWords, 1)
	rows := make([][tableWords]int64, t.Shape[0])
	for k := range rows {
		rows[k] = [tableWords]int64(words[k*tableWords:])
	}
	return rows
}

// checkPositions refuses tables that do not fit the descriptor, offsets out of order and indices
// out of range. The operands are in host memory.
func (d EmbeddingBags) checkPositions(op string, indices, offsets, tableRows *tensor.Tensor) *errs.Error {
	tables := tableRowsOf(tableRows)
	if err := d.checkTables(op, tables); err != nil {
		return err
	}
	at := integersOf(offsets)
	b := badOffset(offsets, d.TotalIndices)
	if last := d.NumTables * d.NumBags; b < 0 && at(last) != d.TotalIndices {
		b = last
	}
	if b >= 0 {
		wanted := fmt.Sprintf("in order, from 0 to %d, the number of indices", d.TotalIndices)
		return errs.New(errs.InvalidProblem, op, "offsets", wanted, fmt.Sprintf("%d at position %d", at(b), b), "")
	}
	for t := range d.NumTables {
		first, end, rows := at(t*d.NumBags), at((t+1)*d.NumBags), tables[t+1][tableRow]-tables[t][tableRow]
		part := *indices
		part.Data += uintptr(first * part.Strides[0] * part.DType.Size())
		part.Shape[0] = end - first
		if k, invalid := firstOutside(&part, 0, rows); invalid != nil {
			place := fmt.Sprintf("position %d, of table %d", first+k, t)
			return ops.IndexOutOfRange(op, "indices", place, *invalid, rows)
		}
	}
	return nil
}

// checkTables refuses rows of `tables` that do not follow each other up to the ends that the
// descriptor has.
func (d EmbeddingBags) checkTables(op string, tables [][tableWords]int64) *errs.Error {
	errorAt := func(t, word int64, wanted string) *errs.Error {
		return errs.New(errs.InvalidProblem, op, "tables", wanted, fmt.Sprintf("%d at [%d, %d]", tables[t][word], t, word), "")
	}
	for _, column := range []struct{ word, end int64 }{{tableRow, d.NumRows}, {tableColumn, d.NumColumns}} {
		if tables[0][column.word] != 0 {
			return errorAt(0, column.word, "0 as the first row and as the first column")
		}
		if tables[d.NumTables][column.word] != column.end {
			return errorAt(d.NumTables, column.word, fmt.Sprintf("of %d rows and %d columns in all", d.NumRows, d.NumColumns))
		}
	}
	if tables[0][tableElement] < 0 {
		return errorAt(0, tableElement, "an element that is not negative")
	}
	if tables[d.NumTables][tableElement] > d.NumElements {
		return errorAt(d.NumTables, tableElement, fmt.Sprintf("at most %d, the elements of weight", d.NumElements))
	}
	vector := 16 / d.DType.Size()
	for t := range d.NumTables {
		own, next := tables[t], tables[t+1]
		rows, width := next[tableRow]-own[tableRow], next[tableColumn]-own[tableColumn]
		switch {
		case rows < 0 || rows > d.NumRows:
			return errorAt(t+1, tableRow, "rows that do not fall")
		case width < 0 || width > d.EmbeddingDim:
			return errorAt(t+1, tableColumn, fmt.Sprintf("columns that rise by at most %d", d.EmbeddingDim))
		case next[tableElement] < own[tableElement] || width > 0 && (next[tableElement]-own[tableElement])/width < rows:
			return errorAt(t+1, tableElement, fmt.Sprintf("after the %d rows of %d columns of table %d", rows, width, t))
		case d.IsAligned && width%vector != 0:
			return errorAt(t+1, tableColumn, fmt.Sprintf("multiples of %d, as is_aligned says", vector))
		case d.IsAligned && own[tableElement]%vector != 0:
			return errorAt(t, tableElement, fmt.Sprintf("multiples of %d, as is_aligned says", vector))
		}
	}
	return nil
}

// checkDeviceCounts refuses counts that do not fit the 32-bit integers with which kernels number
// rows, bags and positions.
func (d EmbeddingBags) checkDeviceCounts(op string) error {
	counts := []string{"num_rows", "num_columns", "embedding_dim", "num_tables * num_bags", "num_tables", "total_indices"}
	return ops.CheckCounts(op, counts, d.NumRows, d.NumColumns, d.EmbeddingDim, d.NumTables*d.NumBags, d.NumTables, d.TotalIndices)
}

func (d EmbeddingBags) compile(problem *ops.Problem, _ int, cuda bool, _ ops.Preference) (ops.Program, error) {
	if cuda {
		if err := d.checkDeviceCounts(problem.Op()); err != nil {
			return nil, err
		}
	}
	return &ForwardProgram{
		operands: forwardOperandsOf(problem), dtype: d.DType, mode: d.Mode,
		tables: d.NumTables, bags: d.NumBags, total: d.TotalIndices, rows: d.NumRows, widest: d.EmbeddingDim, columns: d.NumColumns,
		padding: -1, hasLastOffset: true, isAligned: d.IsAligned,
	}, nil
}

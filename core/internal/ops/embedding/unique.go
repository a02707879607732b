package embedding

import (
	"fmt"
	"math"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file is the family of unique rows: descriptor, operands and checks.

// UniqueRows finds the distinct rows among indices, like torch.unique with return_inverse. rows
// holds the `count` distinct rows in ascending order, padded with -1. inverse[i] is the place of
// indices[i] in rows. With PaddingIdx, places are counted from 1, PaddingIdx has place 0 and is not
// among the rows.
//
// Operands: indices [Total] -> rows [min(NumRows, Total)] int64, inverse [Total] int32 (int64 if
// NumRows or Total is 2^31 - 1 or more; CPU only), count [1] int64. On a GPU, an index out of range
// is skipped and has place -1.
type UniqueRows struct {
	NumRows    int64        `json:"num_rows"`
	Total      int64        `json:"total"`
	IndexDType tensor.DType `json:"index_dtype"` // int32 or int64
	PaddingIdx *int64       `json:"padding_idx"` // in [-NumRows, NumRows); negative: from the end; nil: none
}

// indexDTypes are the dtypes of indices and offsets.
var indexDTypes = []tensor.DType{tensor.Int32, tensor.Int64}

var uniqueRows = ops.Register(&ops.Family{
	Name: "unique_rows", Category: "embedding", Image: "unique_rows", Elements: indexDTypes,
	Kinds:    []ops.KindRow{{Kernels: []string{"single", "marked"}}},
	Required: []string{"num_rows", "total"}, Choices: []ops.Choice{ops.DTypes("index_dtype", indexDTypes)}, Decode: ops.DecodeAs[UniqueRows],
})

// Indices of the operands.
const (
	UniqueIndices = iota
	uniqueOut
	uniqueInverse
	uniqueCount
)

// Family is "unique_rows".
func (d UniqueRows) Family() string { return uniqueRows.Name }

// Problem checks the descriptor. It implements ops.Descriptor.
func (d UniqueRows) Problem() (*ops.Problem, error) {
	op, flat := uniqueRows.Name, []int64{d.Total}
	if err := ops.FirstError(
		ops.CheckShape(op, "[num_rows]", []int64{d.NumRows}),
		ops.CheckShape(op, "[total]", flat),
		ops.CheckElement(op, "index_dtype", d.IndexDType, indexDTypes),
		ops.CheckPadding(op, d.PaddingIdx, d.NumRows),
	); err != nil {
		return nil, err
	}
	return &ops.Problem{
		Family: uniqueRows, Element: d.IndexDType, Traffic: d.Total*(d.IndexDType.Size()+d.InverseDType().Size()) + 8*d.MaxRows() + 8,
		Operands: []ops.Operand{
			{Name: "indices", DTypes: []tensor.DType{d.IndexDType}, Like: "as the descriptor says", Shapes: [][]int64{flat}},
			{Name: "rows", Out: true, DTypes: []tensor.DType{tensor.Int64}, Shapes: [][]int64{{d.MaxRows()}}},
			{Name: "inverse", Out: true, DTypes: []tensor.DType{d.InverseDType()}, Shapes: [][]int64{flat}},
			{Name: "count", Out: true, DTypes: []tensor.DType{tensor.Int64}, Shapes: [][]int64{{1}}},
		},
		CheckValues: func(args []tensor.Tensor) *errs.Error {
			if k, invalid := firstOutside(&args[UniqueIndices], 0, d.NumRows); invalid != nil {
				return ops.IndexOutOfRange(op, "indices", fmt.Sprint("position ", k), *invalid, d.NumRows)
			}
			return nil
		},
		Compile: d.compile,
	}, nil
}

// MaxRows is the largest possible number of distinct rows.
func (d UniqueRows) MaxRows() int64 { return min(d.NumRows, d.Total) }

// UniqueWide is the smallest number of rows or indices for which inverse is int64. Tests lower it.
var UniqueWide int64 = math.MaxInt32

// InverseDType is the dtype of inverse.
func (d UniqueRows) InverseDType() tensor.DType {
	if max(d.NumRows, d.Total) >= UniqueWide {
		return tensor.Int64
	}
	return tensor.Int32
}

// Padding is the row of PaddingIdx, or -1.
func (d UniqueRows) Padding() int64 { return ops.PaddingRow(d.PaddingIdx, d.NumRows) }

// UniqueProgram is the program of a UniqueRows.
type UniqueProgram struct {
	D      UniqueRows
	cuda   bool
	numSMs int
	single bool // one block runs all stages in a single launch
}

func (d UniqueRows) compile(p *ops.Problem, numSMs int, cuda bool, preference ops.Preference) (ops.Program, error) {
	u := &UniqueProgram{D: d, cuda: cuda, numSMs: numSMs}
	if cuda {
		if err := ops.CheckCounts(p.Op(), []string{"num_rows", "total"}, d.NumRows, d.Total); err != nil {
			return nil, err
		}
	}
	fits := d.Total <= uniqueSingle && (d.NumRows <= uniqueSingleRows || d.Total == 0)
	if preference.Kernel == "single" && !fits {
		wanted := fmt.Sprintf("\"marked\" for more than %d rows or %d indices", uniqueSingleRows, uniqueSingle)
		return nil, errs.New(errs.Unsupported, p.Op(), "preference.kernel", wanted, `"single"`, "")
	}
	u.single = fits && preference.Kernel != "marked"
	return u, nil
}

// Kernel implements ops.Program.
func (u *UniqueProgram) Kernel() string {
	if u.single {
		return "single"
	}
	return "marked"
}

// InPlace implements ops.Program.
func (u *UniqueProgram) InPlace([]tensor.Tensor, int) bool { return false }

// Tasks implements ops.Program: the ranges of indices.
func (u *UniqueProgram) Tasks([]tensor.Tensor) int64 { return num.CeilDiv(u.D.Total, uniquePart) }

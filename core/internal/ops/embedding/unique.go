package embedding

import (
	"fmt"
	"math"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// UniqueRows finds the rows of a table that occur among indices, as torch.unique with return_inverse does: Rows begins with those that
// count, rising, Count of them, and goes on with -1; Inverse[i] is the place of Indices[i] among them. With PaddingIdx places are
// counted from 1, and 0 is that of PaddingIdx, which is not among the rows.
//
// Operands: indices [Total] -> rows [min(NumRows, Total)] int64, inverse [Total] int32, or int64 where NumRows or Total are 2^31 - 1 or
// more, count [1] int64. On a GPU, which takes fewer than that, an index that is no row counts nowhere, and its place is -1.
type UniqueRows struct {
	NumRows    int64        `json:"num_rows"`
	Total      int64        `json:"total"`
	IndexDType tensor.DType `json:"index_dtype"` // int32 or int64
	PaddingIdx *int64       `json:"padding_idx"` // from -NumRows on, negative ones counted from the end; nil: none
}

var uniqueRows = ops.Register(&ops.Family{
	Name: "unique_rows", Category: "embedding", Image: "unique_rows", Elements: []tensor.DType{tensor.Int32, tensor.Int64}, One: true,
	Kinds:    []ops.KindRow{{Kernels: []string{"single", "marked"}}},
	Required: []string{"num_rows", "total"}, Decode: ops.DecodeAs[UniqueRows],
})

// Operands by number.
const (
	UniqueIndices = iota
	uniqueOut
	uniqueInverse
	uniqueCount
)

// Family is "unique_rows".
func (d UniqueRows) Family() string { return uniqueRows.Name }

func (d UniqueRows) Problem() (*ops.Problem, error) {
	op, flat := uniqueRows.Name, []int64{d.Total}
	if err := ops.FirstError(
		ops.CheckShape(op, "[num_rows]", []int64{d.NumRows}),
		ops.CheckShape(op, "[total]", flat),
		ops.CheckElement(op, "index_dtype", d.IndexDType, uniqueRows.Elements),
		ops.CheckPadding(op, d.PaddingIdx, d.NumRows),
	); err != nil {
		return nil, err
	}
	return &ops.Problem{
		Family: uniqueRows, Element: d.IndexDType, Traffic: d.Total*(d.IndexDType.Size()+d.InverseDType().Size()) + 8*d.MaxRows() + 8,
		Operands: []ops.Operand{
			{Name: "indices", Dtypes: []tensor.DType{d.IndexDType}, Like: "as the descriptor says", Shapes: [][]int64{flat}},
			{Name: "rows", Out: true, Dtypes: []tensor.DType{tensor.Int64}, Shapes: [][]int64{{d.MaxRows()}}},
			{Name: "inverse", Out: true, Dtypes: []tensor.DType{d.InverseDType()}, Shapes: [][]int64{flat}},
			{Name: "count", Out: true, Dtypes: []tensor.DType{tensor.Int64}, Shapes: [][]int64{{1}}},
		},
		CheckValues: func(args []tensor.Tensor) *errs.Error {
			if k, bad := firstOutside(&args[UniqueIndices], 0, d.NumRows); bad != nil {
				return ops.RefuseIndex(op, "indices", fmt.Sprint("position ", k), *bad, d.NumRows)
			}
			return nil
		},
		Compile: d.compile,
	}, nil
}

// Most is how many rows may occur.
func (d UniqueRows) MaxRows() int64 { return min(d.NumRows, d.Total) }

// UniqueWide is the least number of rows or indices whose places take 64 bits. Tests lower it.
var UniqueWide int64 = math.MaxInt32

func (d UniqueRows) InverseDType() tensor.DType {
	if max(d.NumRows, d.Total) >= UniqueWide {
		return tensor.Int64
	}
	return tensor.Int32
}

// Padding is the row that does not count, or -1.
func (d UniqueRows) Padding() int64 { return ops.PaddingRow(d.PaddingIdx, d.NumRows) }

// UniqueProgram is a checked problem.
type UniqueProgram struct {
	D      UniqueRows
	cuda   bool
	numSMs int  // multiprocessors
	single bool // one block does it all
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

func (u *UniqueProgram) Kernel() string {
	if u.single {
		return "single"
	}
	return "marked"
}

func (u *UniqueProgram) InPlace([]tensor.Tensor, int) bool { return false }

func (u *UniqueProgram) Geometry() string {
	return fmt.Sprintf("marks of %d rows for %d indices", u.D.NumRows, u.D.Total)
}

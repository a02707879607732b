package core

import (
	"fmt"
	"math"
)

// UniqueRows finds the rows of a table that occur among indices, as torch.unique with return_inverse does: Rows begins with those that
// count, rising, Count of them, and goes on with -1; Inverse[i] is the place of Indices[i] among them. With PaddingIdx places are
// counted from 1, and 0 is that of PaddingIdx, which is not among the rows.
//
// Operands: indices [Total] -> rows [min(NumRows, Total)] int64, inverse [Total] int32, or int64 where NumRows or Total are 2^31 - 1 or
// more, count [1] int64. On a GPU, which takes fewer than that, an index that is no row counts nowhere, and its place is -1.
type UniqueRows struct {
	NumRows    int64  `json:"num_rows"`
	Total      int64  `json:"total"`
	IndexDType DType  `json:"index_dtype"` // int32 or int64
	PaddingIdx *int64 `json:"padding_idx"` // from -NumRows on, negative ones counted from the end; nil: none
}

var uniqueRows = register(&Family{
	Name: "unique_rows", Category: "embedding", Image: "unique_rows", Elements: []DType{Int32, Int64}, One: true,
	Kinds:    []KindRow{{Kernels: []string{"single", "marked"}}},
	required: []string{"num_rows", "total"}, decode: decodeAs[UniqueRows],
})

// Operands by number.
const (
	uniqueIndices = iota
	uniqueOut
	uniqueInverse
	uniqueCount
)

// Family is "unique_rows".
func (d UniqueRows) Family() string { return uniqueRows.Name }

func (d UniqueRows) problem() (*problem, error) {
	op, flat := uniqueRows.Name, []int64{d.Total}
	if err := firstError(
		checkShape(op, "[num_rows]", []int64{d.NumRows}),
		checkShape(op, "[total]", flat),
		checkElement(op, "index_dtype", d.IndexDType, uniqueRows.Elements),
		checkPadding(op, d.PaddingIdx, d.NumRows),
	); err != nil {
		return nil, err
	}
	return &problem{
		family: uniqueRows, element: d.IndexDType, traffic: d.Total*(d.IndexDType.Size()+d.inverseDType().Size()) + 8*d.most() + 8,
		operands: []operand{
			{name: "indices", dtypes: []DType{d.IndexDType}, like: "as the descriptor says", shapes: [][]int64{flat}},
			{name: "rows", out: true, dtypes: []DType{Int64}, shapes: [][]int64{{d.most()}}},
			{name: "inverse", out: true, dtypes: []DType{d.inverseDType()}, shapes: [][]int64{flat}},
			{name: "count", out: true, dtypes: []DType{Int64}, shapes: [][]int64{{1}}},
		},
		values: func(args []Tensor) *Error {
			if k, bad := firstOutside(&args[uniqueIndices], 0, d.NumRows); bad != nil {
				return refuseIndex(op, "indices", fmt.Sprint("position ", k), *bad, d.NumRows)
			}
			return nil
		},
		compile: d.compile,
	}, nil
}

// most is how many rows may occur.
func (d UniqueRows) most() int64 { return min(d.NumRows, d.Total) }

// uniqueWide is the least number of rows or indices whose places take 64 bits. Tests lower it.
var uniqueWide int64 = math.MaxInt32

func (d UniqueRows) inverseDType() DType {
	if max(d.NumRows, d.Total) >= uniqueWide {
		return Int64
	}
	return Int32
}

// padding is the row that does not count, or -1.
func (d UniqueRows) padding() int64 { return paddingRow(d.PaddingIdx, d.NumRows) }

// uniqueProgram is a checked problem.
type uniqueProgram struct {
	d      UniqueRows
	cuda   bool
	units  int  // multiprocessors
	single bool // one block does it all
}

func (d UniqueRows) compile(p *problem, units int, cuda bool, preference Preference) (program, error) {
	u := &uniqueProgram{d: d, cuda: cuda, units: units}
	if cuda {
		if err := checkCounts(p.op(), []string{"num_rows", "total"}, d.NumRows, d.Total); err != nil {
			return nil, err
		}
	}
	fits := d.Total <= uniqueSingle && (d.NumRows <= uniqueSingleRows || d.Total == 0)
	if preference.Kernel == "single" && !fits {
		wanted := fmt.Sprintf("\"marked\" for more than %d rows or %d indices", uniqueSingleRows, uniqueSingle)
		return nil, refuse(Unsupported, p.op(), "preference.kernel", wanted, `"single"`, "")
	}
	u.single = fits && preference.Kernel != "marked"
	return u, nil
}

func (u *uniqueProgram) kernel() string {
	if u.single {
		return "single"
	}
	return "marked"
}

func (u *uniqueProgram) inPlace([]Tensor, int) bool { return false }

func (u *uniqueProgram) geometry() string {
	return fmt.Sprintf("marks of %d rows for %d indices", u.d.NumRows, u.d.Total)
}

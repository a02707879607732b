// Package scan holds the gradients of the five cumulative operations along a dimension.
package scan

import (
	"fmt"
	"slices"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// ScanBackward is the gradient of a cumulative operation along Dim. With i, k counted in scan order (Reverse mirrors it):
//
//	cumsum         dx[k] = sum_{i>=k} dy[i]
//	cumprod        dx[k] = L[k] R[k],  L[k] = prod_{i<k} x[i],  R[k] = dy[k] + x[k+1] R[k+1]
//	cummax, cummin dx[k] = sum of dy over the run of positions that x[k] won
//	logcumsumexp   dx[k] = sum_{i>=k} dy[i] exp(x[k] - y[i]),  y[i] = log sum_{j<=i} exp(x[j])
//
// cumprod divides by nothing, so zeros need no care; logcumsumexp is formed from x alone through a running maximum and sum, so
// an offset of x costs no accuracy. Among equal values the last in scan order wins, or the first with Tie "first"; NaN beats all.
//
// Operands: dy [Shape], x? [Shape], indices? [Shape] int64 -> dx [Shape]. cumsum takes neither x nor indices, cummax and cummin
// one of the two, the others x. indices are positions along Dim, as the forward returned them; any valid ones are right.
type ScanBackward struct {
	Kind    string       `json:"kind"`
	Shape   []int64      `json:"shape"`
	DType   tensor.DType `json:"dtype"`
	Dim     int64        `json:"dim"` // negative: counted from the end
	Reverse bool         `json:"reverse"`
	Tie     string       `json:"tie"` // "last", "first"; empty: "last"
}

// kernelsOfScans are the variants of a kind: several short rows for a warp, one row for some warps, the tiles of a long row, and
// beside a dense dimension. strips and long have a ring: strips does long columns in aligned rows, long the tiles of aligned rows,
// of cumsum where they are few. Blocks that hold an aligned row together are pieces, those that hold columns slabs. The CPU knows row and
// columns.
var (
	baseKernels     = []string{"rows", "row", "tiles", "columns", "strips", "long"}
	prefixKernels   = append(slices.Clone(baseKernels), "pieces")  // kinds that read numbers
	FastPathKernels = append(slices.Clone(prefixKernels), "slabs") // those that are tried first
	indexKernels    = []string{"rows", "row", "tiles", "columns", "repair"}
	recordKernels   = []string{"strips", "long"} // ahead of those of kinds that have indices
)

var Family = ops.Register(&ops.Family{
	Name: "scan_backward", Category: "scan", Image: "scan",
	Kinds: []ops.KindRow{
		{Name: "cumsum", Kernels: baseKernels},
		{Name: "cumprod", Kernels: FastPathKernels, Image: "scan_products"},
		{Name: "cummax", Kernels: prefixKernels, Code: "cumextremum"},
		{Name: "cummin", Kernels: prefixKernels, Code: "cumextremum"},
		{Name: "logcumsumexp", Kernels: FastPathKernels, Image: "scan_logcumsumexp"},
	},
	Required: []string{"shape", "dtype"}, Decode: ops.DecodeAs[ScanBackward],
})

// kinds is what each kind reads, and its arithmetic on the CPU.
var kinds = map[string]struct {
	x, indices bool // which operands the kind may have; both: exactly one
	recurrence recurrence
}{
	"cumsum":       {false, false, cumulativeSums},
	"cumprod":      {true, false, cumulativeProducts},
	"cummax":       {true, true, maxima},
	"cummin":       {true, true, minima},
	"logcumsumexp": {true, false, softs},
}

// Family is "scan_backward".
func (d ScanBackward) Family() string { return Family.Name }

func (d ScanBackward) Problem() (*ops.Problem, error) {
	row := Family.Kind(d.Kind)
	if row == nil {
		names := make([]string, len(Family.Kinds))
		for i := range Family.Kinds {
			names[i] = Family.Kinds[i].Name
		}
		return nil, errs.New(errs.Unsupported, Family.Name, "kind", errs.OrList(names), fmt.Sprintf("%q", errs.Clip(d.Kind)), "")
	}
	op := Family.Op(d.Kind)
	if err := ops.FirstError(ops.CheckShape(op, "shape", d.Shape), ops.CheckElement(op, "dtype", d.DType, tensor.Floats)); err != nil {
		return nil, err
	}
	if d.Tie != "" && d.Tie != "last" && d.Tie != "first" {
		return nil, errs.New(errs.Unsupported, op, "tie", `"last" or "first"`, fmt.Sprintf("%q", errs.Clip(d.Tie)), "")
	}
	rank := int64(max(1, len(d.Shape))) // a tensor of rank 0 is a row of length 1
	if d.Dim < -rank || d.Dim >= rank {
		return nil, errs.New(errs.InvalidProblem, op, "dim", fmt.Sprintf("between %d and %d", -rank, rank-1), fmt.Sprint(d.Dim), "")
	}
	kind := kinds[d.Kind]
	shapes := [][]int64{d.Shape}
	operands := []ops.Operand{
		{Name: "dy", Dtypes: []tensor.DType{d.DType}, Like: "as the descriptor says", Shapes: shapes},
		{Name: "x", Optional: true, Dtypes: []tensor.DType{d.DType}, Like: "like dy", Shapes: shapes},
		{Name: "indices", Optional: true, Dtypes: []tensor.DType{tensor.Int64}, Shapes: shapes},
		{Name: "dx", Out: true, Dtypes: []tensor.DType{d.DType}, Like: "like dy", Shapes: shapes},
	}
	n, _ := tensor.Product(d.Shape)
	traffic := 2 * n * d.DType.Size()
	if kind.x {
		traffic += n * d.DType.Size()
	}
	p := &ops.Problem{Family: Family, Kind: d.Kind, Element: d.DType, Operands: operands, Traffic: traffic}
	p.Presence = func(args []tensor.Tensor) *errs.Error {
		x, indices := args[1].Given(), args[2].Given()
		switch {
		case x && !kind.x:
			return errs.New(errs.InvalidProblem, op, "x", "left out", "an operand", "the gradient needs dy alone")
		case indices && !kind.indices:
			return errs.New(errs.InvalidProblem, op, "indices", "left out", "an operand", "only cummax and cummin have indices")
		case kind.indices && x == indices:
			return errs.New(errs.InvalidProblem, op, "x or indices", "given, one of the two", map[bool]string{true: "both", false: "nothing"}[x], "")
		case kind.x && !kind.indices && !x:
			return errs.New(errs.InvalidProblem, op, "x", "given", "nothing", "")
		}
		return nil
	}
	s := Program{kind: d.Kind, recurrence: kind.recurrence, element: d.DType, shape: d.Shape,
		dim: int((d.Dim + rank) % rank), reverse: d.Reverse, first: d.Tie == "first"}
	p.Values = s.checkValues
	p.Compile = func(p *ops.Problem, units int, cuda bool, preference ops.Preference) (ops.Program, error) {
		chosen := s
		chosen.NumSMs, chosen.bandwidth, chosen.clusters, chosen.columnClusters = units, p.Bandwidth, hasClusters(p.Arch), hasColumnClusters(p.Arch)
		return chosen.prepare(cuda, preference)
	}
	return p, nil
}

// Program is the program of a scan: its problem, and the kernel that was chosen for it.
type Program struct {
	kind           string
	recurrence     recurrence
	element        tensor.DType
	shape          []int64
	dim            int
	reverse, first bool
	NumSMs         int
	bandwidth      int64
	clusters       bool // the device has them
	columnClusters bool // and room for slabs
	Variant        string
	cuda, forced   bool // forced: the variant was asked for
	generalOnly    bool // without a ring
	bytes          int64
}

// Length is the number of positions of a row.
func (s *Program) Length() int64 {
	if len(s.shape) == 0 {
		return 1
	}
	return s.shape[s.dim]
}

// space is the index space with the scanned dimension last. A reversed scan walks it with negative strides, so that positions
// run in scan order.
func (s *Program) space(args []tensor.Tensor) cpu.Space {
	var a cpu.Space
	var whole cpu.Space
	whole.N = len(s.shape)
	copy(whole.Extent[:], s.shape)
	for i := range args {
		if args[i].Given() {
			copy(whole.Stride[i][:], args[i].ElementStrides())
		}
	}
	for d := range whole.N {
		if d != s.dim {
			a.Append(&whole, d)
		}
	}
	a.Kept = a.N
	if whole.N > 0 {
		a.Append(&whole, s.dim)
	} else {
		a.Extent[0], a.N = 1, 1
	}
	return a
}

func (s *Program) prepare(cuda bool, preference ops.Preference) (ops.Program, error) {
	if cuda {
		return s.prepareCUDA(preference)
	}
	s.Variant = "row"
	if inner := s.shape[min(s.dim+1, len(s.shape)):]; slices.ContainsFunc(inner, func(n int64) bool { return n != 1 }) {
		s.Variant = "columns"
	}
	if k := preference.Kernel; k != "" && k != s.Variant {
		return nil, errs.New(errs.Unsupported, Family.Op(s.kind), "preference.kernel", fmt.Sprintf("%q for this problem", s.Variant), fmt.Sprintf("%q", k), "")
	}
	return s, nil
}

func (s *Program) Kernel() string { return s.Variant }

// InPlace refuses: rows are read again after parts of them are written.
func (s *Program) InPlace([]tensor.Tensor, int) bool { return false }

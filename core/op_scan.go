package core

import (
	"fmt"
	"slices"
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
	Kind    string  `json:"kind"`
	Shape   []int64 `json:"shape"`
	DType   DType   `json:"dtype"`
	Dim     int64   `json:"dim"` // negative: counted from the end
	Reverse bool    `json:"reverse"`
	Tie     string  `json:"tie"` // "last", "first"; empty: "last"
}

// kernelsOfScans are the variants of a kind: several short rows for a warp, one row for some warps, the tiles of a long row, and
// beside a dense dimension. strips and long have a ring: strips does long columns in aligned rows, long the tiles of aligned rows,
// of cumsum where they are few. Blocks that hold an aligned row together are pieces, those that hold columns slabs. The CPU knows row and
// columns.
var (
	kernelsOfScans   = []string{"rows", "row", "tiles", "columns", "strips", "long"}
	kernelsOfHeads   = append(slices.Clone(kernelsOfScans), "pieces") // kinds that read numbers
	kernelsOfTamed   = append(slices.Clone(kernelsOfHeads), "slabs")  // those that are tried first
	kernelsOfIndices = []string{"rows", "row", "tiles", "columns", "repair"}
	kernelsOfRecords = []string{"strips", "long"} // ahead of those of kinds that have indices
)

var scan = register(&Family{
	Name: "scan_backward", Category: "scan", Image: "scan",
	Kinds: []KindRow{
		{Name: "cumsum", Kernels: kernelsOfScans},
		{Name: "cumprod", Kernels: kernelsOfTamed, Image: "scan_cumprod"},
		{Name: "cummax", Kernels: kernelsOfHeads, Code: "cumextremum"},
		{Name: "cummin", Kernels: kernelsOfHeads, Code: "cumextremum"},
		{Name: "logcumsumexp", Kernels: kernelsOfTamed, Image: "scan_logcumsumexp"},
	},
	required: []string{"shape", "dtype"}, decode: decodeAs[ScanBackward],
})

// scanKinds is what each kind reads, and its arithmetic on the CPU.
var scanKinds = map[string]struct {
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
func (d ScanBackward) Family() string { return scan.Name }

func (d ScanBackward) problem() (*problem, error) {
	row := scan.kind(d.Kind)
	if row == nil {
		names := make([]string, len(scan.Kinds))
		for i := range scan.Kinds {
			names[i] = scan.Kinds[i].Name
		}
		return nil, refuse(Unsupported, scan.Name, "kind", orList(names), fmt.Sprintf("%q", clip(d.Kind)), "")
	}
	op := scan.op(d.Kind)
	if err := firstError(checkShape(op, "shape", d.Shape), checkElement(op, "dtype", d.DType, Floats)); err != nil {
		return nil, err
	}
	if d.Tie != "" && d.Tie != "last" && d.Tie != "first" {
		return nil, refuse(Unsupported, op, "tie", `"last" or "first"`, fmt.Sprintf("%q", clip(d.Tie)), "")
	}
	rank := int64(max(1, len(d.Shape))) // a tensor of rank 0 is a row of length 1
	if d.Dim < -rank || d.Dim >= rank {
		return nil, refuse(InvalidProblem, op, "dim", fmt.Sprintf("between %d and %d", -rank, rank-1), fmt.Sprint(d.Dim), "")
	}
	kind := scanKinds[d.Kind]
	shapes := [][]int64{d.Shape}
	operands := []operand{
		{name: "dy", dtypes: []DType{d.DType}, like: "as the descriptor says", shapes: shapes},
		{name: "x", optional: true, dtypes: []DType{d.DType}, like: "like dy", shapes: shapes},
		{name: "indices", optional: true, dtypes: []DType{Int64}, shapes: shapes},
		{name: "dx", out: true, dtypes: []DType{d.DType}, like: "like dy", shapes: shapes},
	}
	n, _ := product(d.Shape)
	traffic := 2 * n * d.DType.Size()
	if kind.x {
		traffic += n * d.DType.Size()
	}
	p := &problem{family: scan, kind: d.Kind, element: d.DType, operands: operands, traffic: traffic}
	p.presence = func(args []Tensor) *Error {
		x, indices := args[1].present(), args[2].present()
		switch {
		case x && !kind.x:
			return refuse(InvalidProblem, op, "x", "left out", "an operand", "the gradient needs dy alone")
		case indices && !kind.indices:
			return refuse(InvalidProblem, op, "indices", "left out", "an operand", "only cummax and cummin have indices")
		case kind.indices && x == indices:
			return refuse(InvalidProblem, op, "x or indices", "given, one of the two", map[bool]string{true: "both", false: "nothing"}[x], "")
		case kind.x && !kind.indices && !x:
			return refuse(InvalidProblem, op, "x", "given", "nothing", "")
		}
		return nil
	}
	s := scanProgram{kind: d.Kind, recurrence: kind.recurrence, element: d.DType, shape: d.Shape,
		dim: int((d.Dim + rank) % rank), reverse: d.Reverse, first: d.Tie == "first"}
	p.values = s.checkValues
	p.compile = func(p *problem, units int, cuda bool, preference Preference) (program, error) {
		chosen := s
		chosen.units, chosen.bandwidth, chosen.clusters, chosen.slabs = units, p.bandwidth, hasClusters(p.arch), hasSlabs(p.arch)
		return chosen.prepare(cuda, preference)
	}
	return p, nil
}

// scanProgram is the program of a scan: its problem, and the kernel that was chosen for it.
type scanProgram struct {
	kind           string
	recurrence     recurrence
	element        DType
	shape          []int64
	dim            int
	reverse, first bool
	units          int
	bandwidth      int64
	clusters       bool // the device has them
	slabs          bool // and room for slabs
	variant        string
	cuda, forced   bool // forced: the variant was asked for
	plain          bool // without a ring
	bytes          int64
}

// length is the number of positions of a row.
func (s *scanProgram) length() int64 {
	if len(s.shape) == 0 {
		return 1
	}
	return s.shape[s.dim]
}

// space is the index space with the scanned dimension last. A reversed scan walks it with negative strides, so that positions
// run in scan order.
func (s *scanProgram) space(args []Tensor) space {
	var a space
	var whole space
	whole.n = len(s.shape)
	copy(whole.extent[:], s.shape)
	for i := range args {
		if args[i].present() {
			copy(whole.stride[i][:], args[i].strides())
		}
	}
	for d := range whole.n {
		if d != s.dim {
			a.append(&whole, d)
		}
	}
	a.kept = a.n
	if whole.n > 0 {
		a.append(&whole, s.dim)
	} else {
		a.extent[0], a.n = 1, 1
	}
	return a
}

func (s *scanProgram) prepare(cuda bool, preference Preference) (program, error) {
	if cuda {
		return s.prepareCUDA(preference)
	}
	s.variant = "row"
	if inner := s.shape[min(s.dim+1, len(s.shape)):]; slices.ContainsFunc(inner, func(n int64) bool { return n != 1 }) {
		s.variant = "columns"
	}
	if k := preference.Kernel; k != "" && k != s.variant {
		return nil, refuse(Unsupported, scan.op(s.kind), "preference.kernel", fmt.Sprintf("%q for this problem", s.variant), fmt.Sprintf("%q", k), "")
	}
	return s, nil
}

func (s *scanProgram) kernel() string { return s.variant }

// inPlace refuses: rows are read again after parts of them are written.
func (s *scanProgram) inPlace([]Tensor, int) bool { return false }

// Package scan computes the cumulative operations along a dimension (scans) and their gradients:
// descriptors, kinds and the compiled program. Package host has their code for the CPU; package gpu
// selects and launches their CUDA kernels.
package scan

import (
	"fmt"
	"slices"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan/host"
	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// ScanBackward is the gradient of a cumulative operation along Dim; docs/semantics.md has the
// formula of each kind. Among equal values the last in scan order wins, or the first with Tie
// "first"; NaN beats all.
//
// Operands: dy [Shape], x? [Shape], indices? [Shape] int64, carry_in?, dcarry_out?, cu_seqlens?
// [NumSequences + 1] -> dx? [Shape], dcarry_in?. Kinds says which of x and indices a kind takes; of
// both, a run takes one. cu_seqlens has the bounds of sequences that are scanned apart
// (ops.Sequences).
// indices are positions along Dim, as the forward returns them; any indices in range are accepted.
// The comments of packages gpu and host call a run with x a scan by x, and one with indices a scan
// by indices. The carries (carry.go), with the field Carries, connect the chunks of a row: carry_in
// is that of the forward, dcarry_out comes from the chunk after this one in scan order, and
// dcarry_in goes to the one before it. dx may be left out if dcarry_in is given.
type ScanBackward struct {
	Kind    string       `json:"kind"`
	Shape   []int64      `json:"shape"`
	DType   tensor.DType `json:"dtype"`
	Dim     int64        `json:"dim"` // negative: counted from the end
	Reverse bool         `json:"reverse"`
	Tie     string       `json:"tie"`     // "last", "first"; empty: "last"
	Carries bool         `json:"carries"` // runs take carries: rows are chunks of longer ones
	// The number of sequences that are packed along Dim; nil: rows are one sequence each.
	NumSequences *int64 `json:"num_sequences"`
	Exclusive    bool   `json:"exclusive"` // y[i] is the scan of the positions before i
}

// Family is "scan_backward".
func (d ScanBackward) Family() string { return BackwardFamily.Name }

// Problem checks the descriptor. It implements ops.Descriptor.
func (d ScanBackward) Problem() (*ops.Problem, error) {
	onHost, packed, err := checkFields(BackwardFamily, Scan(d))
	if err != nil {
		return nil, err
	}
	op, kind := onHost.Op, ByName[d.Kind]
	shapes := [][]int64{d.Shape}
	operands := []ops.Operand{
		{Name: "dy", DTypes: []tensor.DType{d.DType}, Like: "as the descriptor says", Shapes: shapes},
		{Name: "x", Optional: true, DTypes: []tensor.DType{d.DType}, Like: "like dy", Shapes: shapes},
		{Name: "indices", Optional: true, DTypes: []tensor.DType{tensor.Int64}, Shapes: shapes},
		carryOperand("carry_in", false, d.Shape, onHost.Dim, kind.CarrySize),
		carryOperand("dcarry_out", false, d.Shape, onHost.Dim, kind.gradientCarrySize(d.DType)),
		packed.Operand(),
		{Name: "dx", Out: true, Optional: true, DTypes: []tensor.DType{d.DType}, Like: "like dy", Shapes: shapes},
		carryOperand("dcarry_in", true, d.Shape, onHost.Dim, kind.gradientCarrySize(d.DType)),
	}
	n, _ := tensor.Product(d.Shape)
	traffic := 2 * n * d.DType.Size()
	if kind.ReadsX {
		traffic += n * d.DType.Size()
	}
	p := &ops.Problem{Family: BackwardFamily, Kind: d.Kind, Element: d.DType, Operands: operands, Traffic: traffic}
	p.CheckPresence = func(args []tensor.Tensor) *errs.Error {
		x, indices := args[operand.X].Given(), args[operand.Indices].Given()
		switch {
		case x && !kind.ReadsX:
			return errs.New(errs.InvalidProblem, op, "x", "left out", "an operand", "the gradient needs dy alone")
		case indices && !kind.ReadsIndices:
			return errs.New(errs.InvalidProblem, op, "indices", "left out", "an operand", "only cummax and cummin have indices")
		case kind.ReadsIndices && x == indices:
			return errs.New(errs.InvalidProblem, op, "x or indices", "given, one of the two", map[bool]string{true: "both", false: "nothing"}[x], "")
		case kind.ReadsX && !kind.ReadsIndices && !x:
			return errs.New(errs.InvalidProblem, op, "x", "given", "nothing", "")
		}
		if err := packed.CheckGiven(&args[operand.Seqlens]); err != nil {
			return err
		}
		return d.checkBackward(op, args)
	}
	p.CheckValues = func(args []tensor.Tensor) *errs.Error {
		if err := packed.CheckBounds(&args[operand.Seqlens]); err != nil {
			return err
		}
		return onHost.CheckIndices(args)
	}
	p.Compile = compiler(onHost)
	return p, nil
}

// checkFields checks the fields that a scan and its gradient share. It returns the checked problem
// in the form of package host, from which the one of package gpu is made as well, and its
// sequences.
func checkFields(family *ops.Family, d Scan) (*host.Scan, *ops.Sequences, error) {
	if family.Kind(d.Kind) == nil {
		return nil, nil, errs.New(errs.Unsupported, family.Name, "kind", errs.OrList(family.KindNames()), fmt.Sprintf("%q", errs.Clip(d.Kind)), "")
	}
	op := family.Op(d.Kind)
	if err := ops.FirstError(ops.CheckShape(op, "shape", d.Shape), ops.CheckElement(op, "dtype", d.DType, tensor.Floats)); err != nil {
		return nil, nil, err
	}
	if d.Tie != "" && !slices.Contains(ties, d.Tie) {
		return nil, nil, errs.New(errs.Unsupported, op, "tie", errs.OrList(ties), fmt.Sprintf("%q", errs.Clip(d.Tie)), "")
	}
	dim, err := checkDim(op, d.Shape, d.Dim)
	if err != nil {
		return nil, nil, err
	}
	scan := &host.Scan{
		Recurrence: ByName[d.Kind].recurrence, Op: op, Shape: d.Shape, Dim: dim, IsReversed: d.Reverse, FirstWins: d.Tie == "first",
		Carries: d.Carries, IsExclusive: d.Exclusive, IsPacked: d.NumSequences != nil,
	}
	packed := &ops.Sequences{Op: op, Count: d.NumSequences, Length: scan.Length(), Extent: extentAlongDim, IsCut: d.Carries}
	if err := packed.CheckCount(len(d.Shape)); err != nil {
		return nil, nil, err
	}
	switch {
	case d.Exclusive && ByName[d.Kind].ReadsIndices:
		return nil, nil, errs.New(errs.Unsupported, op, "exclusive", "False", "True", "no position comes before the first")
	case d.Carries && d.Exclusive:
		return nil, nil, errs.New(errs.Unsupported, op, "exclusive", "False with carries", "True", "")
	}
	return scan, packed, nil
}

// checkDim is a dimension counted from the first one. A tensor of rank 0 is a row of length 1.
func checkDim(op string, shape []int64, dim int64) (int, error) {
	rank := int64(max(1, len(shape)))
	if dim < -rank || dim >= rank {
		return 0, errs.New(errs.InvalidProblem, op, "dim", fmt.Sprintf("between %d and %d", -rank, rank-1), fmt.Sprint(dim), "")
	}
	return int((dim + rank) % rank), nil
}

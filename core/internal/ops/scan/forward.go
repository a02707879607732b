package scan

import (
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Scan is a cumulative operation along Dim; docs/semantics.md has the formula of each kind. Among
// equal values the last in scan order wins, or the first with Tie "first"; NaN beats all. Indices
// are positions along Dim, with Reverse too.
//
// Operands: x [Shape], carry_in?, cu_seqlens? [NumSequences + 1] -> y? [Shape], indices? [Shape]
// int64, carry_out?. Only cummax and cummin have indices, which are not computed if they are left
// out. The carries (carry.go), with the field Carries, connect the chunks of a row: carry_in comes
// from the chunks before this one in scan order, and carry_out goes to the next. With carry_in,
// indices are positions in the whole row. y may be left out if carry_out is given. cu_seqlens has
// the bounds of sequences that are scanned apart (ops.Sequences).
type Scan struct {
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

// Family is "scan".
func (d Scan) Family() string { return ForwardFamily.Name }

// Problem checks the descriptor. It implements ops.Descriptor.
func (d Scan) Problem() (*ops.Problem, error) {
	onHost, packed, err := checkFields(ForwardFamily, d)
	if err != nil {
		return nil, err
	}
	kind := ByName[d.Kind]
	shapes := [][]int64{d.Shape}
	n, _ := tensor.Product(d.Shape)
	p := &ops.Problem{Family: ForwardFamily, Kind: d.Kind, Element: d.DType, Operands: []ops.Operand{
		{Name: "x", DTypes: []tensor.DType{d.DType}, Like: "as the descriptor says", Shapes: shapes},
		carryOperand("carry_in", false, d.Shape, onHost.Dim, kind.CarrySize),
		packed.Operand(),
		{Name: "y", Out: true, Optional: true, DTypes: []tensor.DType{d.DType}, Like: "like x", Shapes: shapes},
		{Name: "indices", Out: true, Optional: true, DTypes: []tensor.DType{tensor.Int64}, Shapes: shapes},
		carryOperand("carry_out", true, d.Shape, onHost.Dim, kind.CarrySize),
	}}
	p.Traffic = 2 * n * d.DType.Size()
	if kind.ReadsIndices {
		p.Traffic += n * tensor.Int64.Size()
	}
	p.CheckPresence = func(args []tensor.Tensor) *errs.Error {
		if args[operand.ForwardIndices].Given() && !kind.ReadsIndices {
			return errs.New(errs.InvalidProblem, onHost.Op, "indices", "left out", "an operand", "only cummax and cummin have indices")
		}
		if err := packed.CheckGiven(&args[operand.ForwardSeqlens]); err != nil {
			return err
		}
		return d.checkForward(onHost.Op, args)
	}
	p.CheckValues = func(args []tensor.Tensor) *errs.Error { return packed.CheckBounds(&args[operand.ForwardSeqlens]) }
	p.Compile = compiler(onHost)
	return p, nil
}

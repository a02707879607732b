package selective

import (
	"fmt"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// problem is a checked descriptor of either family.
type problem struct {
	SelectiveScan
	op     string
	groups int64
	packed ops.Sequences
	wide   tensor.DType // of A, D, delta_bias, states and constant B and C
}

func (d SelectiveScan) check(family *ops.Family) (*problem, error) {
	p := &problem{SelectiveScan: d, op: family.Name, groups: 1, wide: d.DType.Accumulator()}
	p.packed = ops.Sequences{Op: p.op, Count: d.NumSequences, Length: d.Length, Extent: "the number of positions"}
	if err := ops.CheckElement(p.op, "dtype", d.DType, tensor.Floats); err != nil {
		return nil, err
	}
	if d.Groups != nil {
		p.groups = *d.Groups
	}
	for _, extent := range []struct {
		field       string
		value       int64
		least, most int64
	}{{"batch", d.Batch, 0, 0}, {"dim", d.Dim, 0, 0}, {"length", d.Length, 0, maxLength}, {"n", d.N, 1, maxStates}, {"groups", p.groups, 1, 0}} {
		if err := checkExtent(p.op, extent.field, extent.value, extent.least, extent.most); err != nil {
			return nil, err
		}
	}
	if d.Dim%p.groups != 0 {
		return nil, errs.New(errs.InvalidProblem, p.op, "groups", fmt.Sprintf("a divisor of the number of channels, %d", d.Dim), fmt.Sprint(p.groups), "")
	}
	return p, ops.FirstError(
		p.packed.CheckCount(1),
		ops.CheckShape(p.op, "the shape of u", p.rows()), ops.CheckShape(p.op, "the shape of A", p.numbers()),
		ops.CheckShape(p.op, "the shape of B and C", []int64{d.Batch, p.groups, d.N, d.Length}),
		ops.CheckShape(p.op, "the shape of states", p.states()), ops.CheckShape(p.op, "the shape of chunk_states", p.chunkStates()),
	)
}

// checkExtent refuses a number below the least one, which is a contradiction, and one above the
// most, unless that is 0.
func checkExtent(op, field string, value, least, most int64) error {
	switch {
	case value < least:
		return errs.New(errs.InvalidProblem, op, field, fmt.Sprintf("at least %d", least), fmt.Sprint(value), "")
	case most > 0 && value > most:
		return errs.New(errs.Unsupported, op, field, fmt.Sprintf("at most %d", most), fmt.Sprint(value), "")
	}
	return nil
}

func (p *problem) rows() []int64     { return []int64{p.Batch, p.Dim, p.Length} }
func (p *problem) numbers() []int64  { return []int64{p.Dim, p.N} }
func (p *problem) channels() []int64 { return []int64{p.Dim} }
func (p *problem) numChunks() int64  { return num.CeilDiv(p.Length, Chunk) }

func (p *problem) chunkStates() []int64 { return []int64{p.Batch, p.Dim, p.numChunks(), p.N} }

// states is the shape of the states of sequences.
func (p *problem) states() []int64 {
	if p.NumSequences == nil {
		return []int64{p.Batch, p.Dim, p.N}
	}
	return []int64{p.Batch, *p.NumSequences, p.Dim, p.N}
}

// row describes an operand of DType with positions.
func (p *problem) row(name string) ops.Operand {
	like := "like u"
	if name == "u" {
		like = "as the descriptor says"
	}
	return ops.Operand{Name: name, DTypes: []tensor.DType{p.DType}, Like: like, Shapes: [][]int64{p.rows()}}
}

// number describes an operand of the dtype of sums.
func (p *problem) number(name string, shape []int64) ops.Operand {
	return ops.Operand{Name: name, DTypes: []tensor.DType{p.wide}, Like: "beside " + p.DType.String(), Shapes: [][]int64{shape}}
}

// factor describes B, C or the gradient of one.
func (p *problem) factor(name string, isConstant bool) ops.Operand {
	if isConstant {
		return p.number(name, p.numbers())
	}
	o := p.row(name)
	o.Shapes = [][]int64{{p.Batch, p.groups, p.N, p.Length}}
	if p.groups == 1 {
		o.Shapes = append(o.Shapes, []int64{p.Batch, p.N, p.Length})
	}
	return o
}

func optional(o ops.Operand) ops.Operand { o.Optional = true; return o }

func optionalOut(o ops.Operand) ops.Operand { o.Out, o.Optional = true, true; return o }

// inputs are the operands that both families have, from u to initial_state.
func (p *problem) inputs() []ops.Operand {
	return []ops.Operand{
		p.row("u"), p.row("delta"), p.number("A", p.numbers()), p.factor("B", p.ConstantB), p.factor("C", p.ConstantC),
		optional(p.number("D", p.channels())), optional(p.row("z")), optional(p.number("delta_bias", p.channels())),
		optional(p.number("initial_state", p.states())),
	}
}

// Problem checks the descriptor. It implements ops.Descriptor.
func (d SelectiveScan) Problem() (*ops.Problem, error) {
	p, err := d.check(forward)
	if err != nil {
		return nil, err
	}
	y := p.row("y")
	y.Out = true
	return &ops.Problem{
		Family: forward, Element: d.DType, Traffic: p.traffic(3, 1),
		Operands: append(p.inputs(), p.packed.Operand(), y,
			optionalOut(p.number("last_state", p.states())), optionalOut(p.number("chunk_states", p.chunkStates()))),
		CheckPresence: func(args []tensor.Tensor) *errs.Error { return p.checkGiven(args, &args[opSeqlens]) },
		CheckValues:   func(args []tensor.Tensor) *errs.Error { return p.packed.CheckBounds(&args[opSeqlens]) },
		Compile:       p.compiler(false),
	}, nil
}

// Problem checks the descriptor. It implements ops.Descriptor.
func (d SelectiveScanBackward) Problem() (*ops.Problem, error) {
	p, err := SelectiveScan(d).check(backward)
	if err != nil {
		return nil, err
	}
	operands := append([]ops.Operand{p.row("dy")}, p.inputs()...)
	operands = append(operands,
		optional(p.number("dlast_state", p.states())), p.packed.Operand(), optional(p.number("chunk_states", p.chunkStates())),
		optionalOut(p.row("du")), optionalOut(p.row("ddelta")), optionalOut(p.number("dA", p.numbers())),
		optionalOut(p.factor("dB", p.ConstantB)), optionalOut(p.factor("dC", p.ConstantC)), optionalOut(p.number("dD", p.channels())),
		optionalOut(p.row("dz")), optionalOut(p.number("ddelta_bias", p.channels())), optionalOut(p.number("dinitial_state", p.states())))
	return &ops.Problem{
		Family: backward, Element: d.DType, Traffic: p.traffic(5, 2), Operands: operands,
		CheckPresence: p.checkBackward,
		CheckValues:   func(args []tensor.Tensor) *errs.Error { return p.packed.CheckBounds(&args[backSeqlens]) },
		Compile:       p.compiler(true),
	}, nil
}

// traffic is the size [bytes] of so many operands of the shape of u, and more if there is a z.
func (p *problem) traffic(rows, ofZ int64) int64 {
	if p.HasZ {
		rows += ofZ
	}
	n, _ := tensor.Product(p.rows())
	return rows * n * p.DType.Size()
}

// checkGiven refuses a run in which D, z or delta_bias is given although the descriptor has none,
// or the other way round. args begins with u.
func (p *problem) checkGiven(args []tensor.Tensor, seqlens *tensor.Tensor) *errs.Error {
	for _, o := range []struct {
		name, field string
		has         bool
		arg         *tensor.Tensor
	}{{"D", "has_d", p.HasD, &args[opD]}, {"z", "has_z", p.HasZ, &args[opZ]}, {"delta_bias", "has_bias", p.HasBias, &args[opBias]}} {
		switch {
		case o.has && !o.arg.Given():
			return errs.New(errs.InvalidProblem, p.op, o.name, "given", "nothing", "the descriptor has "+o.field)
		case !o.has && o.arg.Given():
			return errs.New(errs.InvalidProblem, p.op, o.name, "left out", "an operand", "select a plan whose descriptor has "+o.field)
		}
	}
	return p.packed.CheckGiven(seqlens)
}

// checkBackward refuses a run without outputs, and gradients of operands that are not given.
func (p *problem) checkBackward(args []tensor.Tensor) *errs.Error {
	if err := p.checkGiven(args[backU:], &args[backSeqlens]); err != nil {
		return err
	}
	isGiven := false
	for _, gradient := range []struct {
		out, of int
		name    string
	}{
		{backDU, backU, ""}, {backDDelta, backDelta, ""}, {backDA, backA, ""}, {backDB, backB, ""}, {backDC, backC, ""},
		{backDD, backD, "D"}, {backDZ, backZ, "z"}, {backDBias, backBias, "delta_bias"}, {backDInitial, backInitial, "initial_state"},
	} {
		if !args[gradient.out].Given() {
			continue
		}
		isGiven = true
		if !args[gradient.of].Given() {
			return errs.New(errs.InvalidProblem, p.op, gradient.name, "given for its gradient", "nothing", "")
		}
	}
	if !isGiven {
		return errs.New(errs.InvalidProblem, p.op, "one of the gradients", "given", "nothing", "")
	}
	return nil
}

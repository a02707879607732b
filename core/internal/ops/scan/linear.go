package scan

import (
	"slices"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
	"github.com/sternway/sternway/core/internal/ops/scan/host"
	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// LinearRecurrence is h[t] = a[t] h[t-1] + b[t] along Dim, or from the last position to the first
// with Reverse. Without an initial state the first h of a sequence is its b. A factor of 0 cuts off
// what came before, NaN included.
//
// Operands: a [AShape], b [BShape], initial_state?, cu_seqlens? [NumSequences + 1] int32 or int64
// -> h [Shape], final_state?. A state has Shape without Dim; with NumSequences, that number takes
// the place of Dim. initial_state has StateDType, final_state float32 beside 16 bits and else
// DType. Sequence k has the positions cu_seqlens[k] to cu_seqlens[k+1] - 1 of every row; the
// final state of an empty one is its initial state.
type LinearRecurrence struct {
	Shape        []int64       `json:"shape"` // of h
	DType        tensor.DType  `json:"dtype"`
	Dim          int64         `json:"dim"` // negative: counted from the end
	Reverse      bool          `json:"reverse"`
	AShape       []int64       `json:"a_shape"`       // nil: Shape
	BShape       []int64       `json:"b_shape"`       // nil: Shape
	NumSequences *int64        `json:"num_sequences"` // nil: rows are one sequence each
	StateDType   *tensor.DType `json:"state_dtype"`   // of initial_state; nil: that of final_state
}

// LinearRecurrenceBackward is the gradient of LinearRecurrence. In scan order,
//
//	g[t] = dh[t] + a[t+1] g[t+1]    db[t] = g[t]    da[t] = g[t] h[t-1]
//
// where dfinal_state is added to the last g of a sequence, and its first position has
// dinitial_state = a[0] g[0], and as h[-1] the initial state; without one, da[0] is 0. da and db
// are summed, in a fixed order, over the dimensions that their operands were broadcast along.
//
// Operands: dh [Shape], a [AShape], h [Shape], initial_state?, dfinal_state?, cu_seqlens? -> da?
// [AShape], db? [BShape], dinitial_state?. At least one output is given.
type LinearRecurrenceBackward LinearRecurrence

// Families of linear recurrences and their gradients.
var (
	linearFamily         = registerLinear("linear_recurrence", gpu.Linear, ops.DecodeAs[LinearRecurrence])
	linearBackwardFamily = registerLinear("linear_recurrence_backward", gpu.LinearBackward, ops.DecodeAs[LinearRecurrenceBackward])
)

func registerLinear(name string, kernels *gpu.Kind, decode ops.Decoder) *ops.Family {
	return ops.Register(&ops.Family{
		Name: name, Category: "scan", Required: []string{"shape", "dtype"}, Decode: decode, HostKernels: []string{host.Lanes},
		Kinds:   []ops.KindRow{{Kernels: kernels.Kernels()}},
		Choices: []ops.Choice{ops.DTypes("dtype", tensor.Floats), ops.DTypes("state_dtype", tensor.Floats)},
	})
}

// Family is "linear_recurrence".
func (d LinearRecurrence) Family() string { return linearFamily.Name }

// Family is "linear_recurrence_backward".
func (d LinearRecurrenceBackward) Family() string { return linearBackwardFamily.Name }

// extentAlongDim is the length of rows in messages.
const extentAlongDim = "the extent along dim"

// linearProblem is a checked descriptor.
type linearProblem struct {
	LinearRecurrence
	op             string
	dim            int
	packed         ops.Sequences
	aShape, bShape []int64
	stateShape     []int64
	finalDType     tensor.DType
	initialDType   tensor.DType
}

func (d LinearRecurrence) check(family *ops.Family) (*linearProblem, error) {
	op := family.Name
	if err := ops.FirstError(ops.CheckShape(op, "shape", d.Shape), ops.CheckElement(op, "dtype", d.DType, tensor.Floats)); err != nil {
		return nil, err
	}
	dim, err := checkDim(op, d.Shape, d.Dim)
	if err != nil {
		return nil, err
	}
	p := &linearProblem{LinearRecurrence: d, op: op, dim: dim, packed: ops.Sequences{Op: op, Count: d.NumSequences, Length: 1, Extent: extentAlongDim}, aShape: d.AShape, bShape: d.BShape, finalDType: d.DType.Accumulator()}
	if len(d.Shape) > 0 {
		p.packed.Length = d.Shape[dim]
	}
	if p.aShape == nil {
		p.aShape = d.Shape
	}
	if p.bShape == nil {
		p.bShape = d.Shape
	}
	if d.StateDType != nil {
		if err := ops.CheckElement(op, "state_dtype", *d.StateDType, tensor.Floats); err != nil {
			return nil, err
		}
	}
	allowed := []tensor.DType{d.DType}
	if p.initialDType = p.finalDType; p.finalDType != d.DType {
		allowed = append(allowed, p.finalDType)
	}
	if d.StateDType != nil {
		p.initialDType = *d.StateDType
	}
	if err := ops.FirstError(
		ops.CheckBroadcast(op, "a_shape", p.aShape, d.Shape),
		ops.CheckBroadcast(op, "b_shape", p.bShape, d.Shape),
		ops.CheckElement(op, "state_dtype", p.initialDType, allowed),
	); err != nil {
		return nil, err
	}
	p.stateShape = slices.Delete(slices.Clone(d.Shape), dim, min(dim+1, len(d.Shape)))
	if err := p.packed.CheckCount(len(d.Shape)); err != nil {
		return nil, err
	}
	if d.NumSequences != nil {
		p.stateShape = slices.Insert(p.stateShape, dim, *d.NumSequences)
		if err := ops.CheckShape(op, "states", p.stateShape); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Problem checks the descriptor. It implements ops.Descriptor.
func (d LinearRecurrence) Problem() (*ops.Problem, error) {
	p, err := d.check(linearFamily)
	if err != nil {
		return nil, err
	}
	return &ops.Problem{
		Family: linearFamily, Element: d.DType, Traffic: p.traffic(p.aShape, p.bShape, d.Shape),
		Operands: []ops.Operand{
			p.factor(p.aShape), p.element("b", false, p.bShape),
			p.state("initial_state", false, p.initialDType), p.packed.Operand(),
			p.element("h", true, d.Shape), p.state("final_state", true, p.finalDType),
		},
		CheckPresence: func(args []tensor.Tensor) *errs.Error { return p.packed.CheckGiven(&args[operand.LinearSeqlens]) },
		CheckValues:   func(args []tensor.Tensor) *errs.Error { return p.packed.CheckBounds(&args[operand.LinearSeqlens]) },
		Compile:       p.compiler(false),
	}, nil
}

// Problem checks the descriptor. It implements ops.Descriptor.
func (d LinearRecurrenceBackward) Problem() (*ops.Problem, error) {
	p, err := LinearRecurrence(d).check(linearBackwardFamily)
	if err != nil {
		return nil, err
	}
	optional := func(o ops.Operand) ops.Operand { o.Optional = true; return o }
	return &ops.Problem{
		Family: linearBackwardFamily, Element: d.DType, Traffic: p.traffic(d.Shape, p.aShape, d.Shape, p.aShape, p.bShape),
		Operands: []ops.Operand{
			p.element("dh", false, d.Shape), p.factor(p.aShape, d.Shape), p.element("h", false, d.Shape),
			p.state("initial_state", false, p.initialDType), p.state("dfinal_state", false, p.finalDType), p.packed.Operand(),
			optional(p.element("da", true, p.aShape)), optional(p.element("db", true, p.bShape)),
			p.state("dinitial_state", true, p.initialDType),
		},
		CheckPresence: p.checkBackward,
		CheckValues: func(args []tensor.Tensor) *errs.Error {
			return p.packed.CheckBounds(&args[operand.LinearBackwardSeqlens])
		},
		Compile: p.compiler(true),
	}, nil
}

// element describes an operand with positions.
func (p *linearProblem) element(name string, isOut bool, shape []int64) ops.Operand {
	return ops.Operand{Name: name, Out: isOut, DTypes: []tensor.DType{p.DType}, Like: "as the descriptor says", Shapes: [][]int64{shape}}
}

// factor describes a, of one of some shapes. A single number keeps the precision of the accumulator
// beside 16 bits.
func (p *linearProblem) factor(shapes ...[]int64) ops.Operand {
	o := p.element("a", false, nil)
	o.Shapes = shapes
	if n, _ := tensor.Product(p.aShape); n == 1 && p.finalDType != p.DType {
		o.DTypes = append(o.DTypes, p.finalDType)
	}
	return o
}

// state describes an operand with a number for each row and sequence.
func (p *linearProblem) state(name string, isOut bool, dtype tensor.DType) ops.Operand {
	return ops.Operand{Name: name, Out: isOut, Optional: true, DTypes: []tensor.DType{dtype}, Shapes: [][]int64{p.stateShape}}
}

// traffic is the size of tensors of some shapes [bytes].
func (p *linearProblem) traffic(shapes ...[]int64) (bytes int64) {
	for _, shape := range shapes {
		n, _ := tensor.Product(shape)
		bytes += n * p.DType.Size()
	}
	return bytes
}

func (p *linearProblem) checkBackward(args []tensor.Tensor) *errs.Error {
	switch {
	case !args[operand.LinearDA].Given() && !args[operand.LinearDB].Given() && !args[operand.LinearDInitial].Given():
		return errs.New(errs.InvalidProblem, p.op, "da, db or dinitial_state", "given", "nothing", "")
	case args[operand.LinearDInitial].Given() && !args[operand.LinearBackwardInitial].Given():
		return errs.New(errs.InvalidProblem, p.op, "initial_state", "given for dinitial_state", "nothing", "")
	}
	return p.packed.CheckGiven(&args[operand.LinearBackwardSeqlens])
}

package elementwise

import (
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// LerpBackward is the gradient of y = a + weight (b - a), elementwise with broadcasting:
//
//	da = (1 - weight) dy,  db = weight dy,  dweight = dy (b - a)
//
// each summed, in a fixed order, over the dimensions that its operand was broadcast along.
//
// Operands: dy [Shape], weight? [WeightShape], a? [AShape], b? [BShape] -> da? [AShape], db?
// [BShape], dweight? [WeightShape]. At least one output is given; da and db need weight, dweight
// needs a and b.
type LerpBackward struct {
	Shape       []int64      `json:"shape"` // of dy
	DType       tensor.DType `json:"dtype"`
	Weight      *ops.Scalar  `json:"weight"`  // nil: weight is an operand
	AShape      []int64      `json:"a_shape"` // nil: Shape
	BShape      []int64      `json:"b_shape"`
	WeightShape []int64      `json:"weight_shape"`
}

// Lerp is the family of LerpBackward.
var Lerp = ops.Register(&ops.Family{
	Name: "lerp_backward", Category: "elementwise", Image: "lerp",
	Kinds:    []ops.KindRow{{Kernels: mapKernels}},
	Required: []string{"shape", "dtype"}, Choices: []ops.Choice{ops.DTypes("dtype", tensor.Floats)}, Decode: ops.DecodeAs[LerpBackward],
})

const lerpNeedsDy, lerpNeedsWeight, lerpNeedsEnds = 1, 2, 4 | 8

// lerpOp describes lerp to the engine. Inputs: dy, weight, a, b.
var lerpOp = newOp(Op{
	inputs: 4, outputs: 3, denseInputs: lerpNeedsDy,
	Kernels: []KernelSet{
		{"lerp_backward", []int{0}, []int{4, 5}, unroll{1, 4, 4, 2}},
		{"lerp_weight_backward", []int{0, 1, 2, 3}, []int{4, 5, 6}, unroll{2, 2, 2, 2}},
	},
	inputsOf: [3]uint8{lerpNeedsDy | lerpNeedsWeight, lerpNeedsDy | lerpNeedsWeight, lerpNeedsDy | lerpNeedsEnds},
	products: lerpProducts,
})

// Family is "lerp_backward".
func (d LerpBackward) Family() string { return Lerp.Name }

// Problem checks the descriptor. It implements ops.Descriptor.
func (d LerpBackward) Problem() (*ops.Problem, error) {
	orShape := func(shape []int64) []int64 {
		if shape == nil {
			return d.Shape
		}
		return shape
	}
	aShape, bShape, weightShape := orShape(d.AShape), orShape(d.BShape), orShape(d.WeightShape)
	if err := ops.FirstError(
		ops.CheckShape(Lerp.Name, "shape", d.Shape),
		ops.CheckElement(Lerp.Name, "dtype", d.DType, tensor.Floats),
		ops.CheckBroadcast(Lerp.Name, "a_shape", aShape, d.Shape),
		ops.CheckBroadcast(Lerp.Name, "b_shape", bShape, d.Shape),
		ops.CheckBroadcast(Lerp.Name, "weight_shape", weightShape, d.Shape),
	); err != nil {
		return nil, err
	}
	if d.Weight != nil && d.WeightShape != nil {
		return nil, errs.New(errs.InvalidProblem, Lerp.Name, "weight_shape", "left out beside a weight that is a number", tensor.ShapeText(weightShape), "")
	}
	row := func(name string, out bool, shape []int64) ops.Operand {
		like := "like dy"
		if name == "dy" {
			like = "as the descriptor says"
		}
		return ops.Operand{Name: name, Out: out, Optional: name != "dy", DTypes: []tensor.DType{d.DType}, Like: like, Shapes: [][]int64{shape}}
	}
	moved := int64(0) // dy, da and db
	for _, shape := range [][]int64{d.Shape, aShape, bShape} {
		n, _ := tensor.Product(shape)
		moved += n
	}
	return &ops.Problem{
		Family: Lerp, Element: d.DType, Traffic: moved * d.DType.Size(),
		Operands: []ops.Operand{
			row("dy", false, d.Shape), row("weight", false, weightShape), row("a", false, aShape), row("b", false, bShape),
			row("da", true, aShape), row("db", true, bShape), row("dweight", true, weightShape),
		},
		CheckPresence: d.checkPresence,
		Compile: func(p *ops.Problem, numSMs int, cuda bool, preference ops.Preference) (ops.Program, error) {
			m := &mapReduce{family: Lerp, op: lerpOp, element: d.DType, shape: d.Shape}
			if d.Weight != nil {
				m.scalar = [4]float64{float64(*d.Weight), 1 - float64(*d.Weight)}
			}
			for i, shape := range [][]int64{d.Shape, weightShape, aShape, bShape, aShape, bShape, weightShape} {
				m.alignRight(i, shape)
			}
			if d.Weight != nil {
				m.alignRight(6, d.Shape) // never given
			}
			return m.prepare(numSMs, cuda, preference)
		},
	}, nil
}

func (d LerpBackward) checkPresence(args []tensor.Tensor) *errs.Error {
	weight, a, b, da, db, dweight := &args[1], &args[2], &args[3], &args[4], &args[5], &args[6]
	number := d.Weight != nil
	switch {
	case number && weight.Given():
		return errs.New(errs.InvalidProblem, Lerp.Name, "weight", "left out", "an operand", "the descriptor says that weight is a number")
	case number && dweight.Given():
		return errs.New(errs.InvalidProblem, Lerp.Name, "dweight", "left out", "an operand", "a weight that is a number has no gradient")
	case !da.Given() && !db.Given() && !dweight.Given():
		return errs.New(errs.InvalidProblem, Lerp.Name, "da, db or dweight", "given", "nothing", "")
	case !number && !weight.Given() && (da.Given() || db.Given()):
		return errs.New(errs.InvalidProblem, Lerp.Name, "weight", "given for da and db", "nothing", "")
	case dweight.Given() && !a.Given():
		return errs.New(errs.InvalidProblem, Lerp.Name, "a", "given for dweight", "nothing", "")
	case dweight.Given() && !b.Given():
		return errs.New(errs.InvalidProblem, Lerp.Name, "b", "given for dweight", "nothing", "")
	}
	return nil
}

func lerpProducts(scalar *[4]float64, args []tensor.Tensor) [3]product {
	weight, a, b := factor{input: 1}, factor{input: 2}, factor{input: 3}
	da, db := product{y: factor{number: 1}, z: weight}, product{y: weight}
	if !args[1].Given() {
		da, db = product{y: factor{number: scalar[1]}}, product{y: factor{number: scalar[0]}} // 1 - weight, formed in float64
	}
	return [3]product{da, db, {y: b, z: a}}
}

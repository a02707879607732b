package core

// LerpBackward is the gradient of y = a + weight (b - a), elementwise with broadcasting:
//
//	da = (1 - weight) dy,  db = weight dy,  dweight = dy (b - a)
//
// each summed, in a fixed order, over the dimensions that its operand was broadcast along.
//
// Operands: dy [Shape], weight? [WeightShape], a? [AShape], b? [BShape] -> da? [AShape], db? [BShape], dweight? [WeightShape].
// At least one output is given; da and db need weight, dweight needs a and b.
type LerpBackward struct {
	Shape       []int64 `json:"shape"` // of dy
	DType       DType   `json:"dtype"`
	Weight      *Scalar `json:"weight"`  // nil: weight is an operand
	AShape      []int64 `json:"a_shape"` // nil: Shape
	BShape      []int64 `json:"b_shape"`
	WeightShape []int64 `json:"weight_shape"`
}

var lerp = register(&Family{
	Name: "lerp_backward", Category: "elementwise", Image: "lerp",
	Kinds:    []KindRow{{Kernels: kernelsOfMaps}},
	required: []string{"shape", "dtype"}, decode: decodeAs[LerpBackward],
})

const lerpReadsDy, lerpReadsWeight, lerpReadsEnds = 1, 2, 4 | 8

var lerpOp = elementOp{
	inputs: 4, outputs: 3, whole: lerpReadsDy,
	sets: []kernelSet{
		{"lerp_backward", []int{0}, []int{4, 5}, unroll{1, 4, 4}},
		{"lerp_weight_backward", []int{0, 1, 2, 3}, []int{4, 5, 6}, unroll{2, 2, 2}},
	},
	reads:     [3]uint8{lerpReadsDy | lerpReadsWeight, lerpReadsDy | lerpReadsWeight, lerpReadsDy | lerpReadsEnds},
	multiples: lerpMultiples,
}

// Family is "lerp_backward".
func (d LerpBackward) Family() string { return lerp.Name }

func (d LerpBackward) problem() (*problem, error) {
	orShape := func(shape []int64) []int64 {
		if shape == nil {
			return d.Shape
		}
		return shape
	}
	aShape, bShape, weightShape := orShape(d.AShape), orShape(d.BShape), orShape(d.WeightShape)
	if err := firstError(
		checkShape(lerp.Name, "shape", d.Shape),
		checkElement(lerp.Name, "dtype", d.DType, Floats),
		checkBroadcast(lerp.Name, "a_shape", aShape, d.Shape),
		checkBroadcast(lerp.Name, "b_shape", bShape, d.Shape),
		checkBroadcast(lerp.Name, "weight_shape", weightShape, d.Shape),
	); err != nil {
		return nil, err
	}
	if d.Weight != nil && d.WeightShape != nil {
		return nil, refuse(InvalidProblem, lerp.Name, "weight_shape", "left out beside a weight that is a number", shapeText(weightShape), "")
	}
	row := func(name string, out bool, shape []int64) operand {
		like := "like dy"
		if name == "dy" {
			like = "as the descriptor says"
		}
		return operand{name: name, out: out, optional: name != "dy", dtypes: []DType{d.DType}, like: like, shapes: [][]int64{shape}}
	}
	moved := int64(0) // dy, da and db
	for _, shape := range [][]int64{d.Shape, aShape, bShape} {
		n, _ := product(shape)
		moved += n
	}
	return &problem{
		family: lerp, element: d.DType, traffic: moved * d.DType.Size(),
		operands: []operand{
			row("dy", false, d.Shape), row("weight", false, weightShape), row("a", false, aShape), row("b", false, bShape),
			row("da", true, aShape), row("db", true, bShape), row("dweight", true, weightShape),
		},
		presence: d.presence,
		compile: func(p *problem, units int, cuda bool, preference Preference) (program, error) {
			m := &mapReduce{family: lerp, op: &lerpOp, element: d.DType, shape: d.Shape}
			if d.Weight != nil {
				m.scalar = [4]float64{float64(*d.Weight), 1 - float64(*d.Weight)}
			}
			for i, shape := range [][]int64{d.Shape, weightShape, aShape, bShape, aShape, bShape, weightShape} {
				m.alignRight(i, shape)
			}
			if d.Weight != nil {
				m.alignRight(6, d.Shape) // never given
			}
			return m.prepare(units, cuda, preference)
		},
	}, nil
}

func (d LerpBackward) presence(args []Tensor) *Error {
	weight, a, b, da, db, dweight := &args[1], &args[2], &args[3], &args[4], &args[5], &args[6]
	number := d.Weight != nil
	switch {
	case number && weight.present():
		return refuse(InvalidProblem, lerp.Name, "weight", "left out", "an operand", "the descriptor says that weight is a number")
	case number && dweight.present():
		return refuse(InvalidProblem, lerp.Name, "dweight", "left out", "an operand", "a weight that is a number has no gradient")
	case !da.present() && !db.present() && !dweight.present():
		return refuse(InvalidProblem, lerp.Name, "da, db or dweight", "given", "nothing", "")
	case !number && !weight.present() && (da.present() || db.present()):
		return refuse(InvalidProblem, lerp.Name, "weight", "given for da and db", "nothing", "")
	case dweight.present() && !a.present():
		return refuse(InvalidProblem, lerp.Name, "a", "given for dweight", "nothing", "")
	case dweight.present() && !b.present():
		return refuse(InvalidProblem, lerp.Name, "b", "given for dweight", "nothing", "")
	}
	return nil
}

func lerpMultiples(scalar *[4]float64, args []Tensor) [3]multiple {
	weight, a, b := factor{input: 1}, factor{input: 2}, factor{input: 3}
	da, db := multiple{y: factor{number: 1}, z: weight}, multiple{y: weight}
	if !args[1].present() {
		da, db = multiple{y: factor{number: scalar[1]}}, multiple{y: factor{number: scalar[0]}} // 1 - weight, formed in float64
	}
	return [3]multiple{da, db, {y: b, z: a}}
}

package core

// #include "op_dequantize.h"
import "C"

import (
	"fmt"
	"math"
)

// DequantizePerTokenBackward is the gradient of x = (q - zero_point[n]) scale[n], a scale for each token n, that is, for each
// index of the leading dimensions of Shape:
//
//	dx = dy scale[n],  dscale[n] = sum_d dy (q - zero_point[n]),  dzero_point[n] = -scale[n] sum_d dy
//
// Operands: dy [Shape], scale, q? [Shape], zero_point? -> dx [Shape], dscale?, dzero_point?. Values for a token have the shape
// of the leading dimensions, with or without a last extent of 1. dscale needs q; dzero_point needs a floating zero_point.
type DequantizePerTokenBackward struct {
	Shape      []int64 `json:"shape"`
	DType      DType   `json:"dtype"`
	QDType     DType   `json:"qdtype"`      // int8 or uint8
	ScaleDType *DType  `json:"scale_dtype"` // nil: DType
}

// FakeQuantizePerTokenBackward is the gradient of quantise-dequantise with a straight-through rounding. With
// t = round(x / scale) + zero_point and q = clamp(t, QuantMin, QuantMax), t inside the bounds or on them:
//
//	dx = dy inside, 0 outside
//	dscale[n] = sum_d dy ((q - zero_point) - x / scale) inside, dy (q - zero_point) outside
//	dzero_point[n] = sum_d 0 inside, -dy scale outside
//
// (learned step size quantisation, Esser et al. 2020, arXiv:1902.08153, without its gradient scale).
//
// Operands: dy [Shape], x [Shape], scale, zero_point? -> dx [Shape], dscale?, dzero_point?.
type FakeQuantizePerTokenBackward struct {
	Shape      []int64 `json:"shape"`
	DType      DType   `json:"dtype"`
	QuantMin   int64   `json:"quant_min"`
	QuantMax   int64   `json:"quant_max"`
	ScaleDType *DType  `json:"scale_dtype"` // nil: DType
}

var (
	dequantize = register(&Family{
		Name: "dequantize_per_token_backward", Category: "quantization", Image: "dequantize",
		Kinds:    []KindRow{{Kernels: kernelsOfTokens}},
		required: []string{"shape", "dtype"}, decode: decodeAs[DequantizePerTokenBackward],
	})
	fakeQuantize = register(&Family{
		Name: "fake_quantize_per_token_backward", Category: "quantization", Image: "dequantize",
		Kinds:    []KindRow{{Kernels: kernelsOfTokens}},
		required: []string{"shape", "dtype", "quant_min", "quant_max"}, decode: decodeAs[FakeQuantizePerTokenBackward],
	})
)

// Inputs: dy, then scale, q, zero_point of dequantise, or x, scale, zero_point of fake quantise.
var (
	dequantizeOp = elementOp{
		inputs: 4, outputs: 3, whole: 1, tokens: true,
		sets:      []kernelSet{{"dequantize_per_token_backward", []int{0, 1, 2, 3}, []int{4, 5, 6}, unroll{2, 4, 0}}},
		reads:     [3]uint8{1 | 2, 1 | 4 | 8, 1 | 2},
		multiples: dequantizeMultiples,
	}
	fakeQuantizeOp = elementOp{
		inputs: 4, outputs: 3, whole: 1 | 2, tokens: true,
		sets:  []kernelSet{{"fake_quantize_per_token_backward", []int{0, 1, 2, 3}, []int{4, 5, 6}, unroll{4, 2, 0}}},
		reads: [3]uint8{1 | 2 | 4 | 8, 1 | 2 | 4 | 8, 1 | 2 | 4 | 8},
		f32:   fakeQuantizeBody[float32], f64: fakeQuantizeBody[float64],
		scalars: func(scalar *[4]float64, args []Tensor) {
			if !args[3].DType.floating() {
				scalar[2] = 1
			}
		},
	}
)

// Family is "dequantize_per_token_backward".
func (d DequantizePerTokenBackward) Family() string { return dequantize.Name }

// Family is "fake_quantize_per_token_backward".
func (d FakeQuantizePerTokenBackward) Family() string { return fakeQuantize.Name }

func (d DequantizePerTokenBackward) problem() (*problem, error) {
	t, err := newTokens(dequantize, d.Shape, d.DType, d.ScaleDType)
	if err == nil {
		err = checkElement(dequantize.Name, "qdtype", d.QDType, []DType{Int8, Uint8})
	}
	if err != nil {
		return nil, err
	}
	q := operand{name: "q", optional: true, dtypes: []DType{d.QDType}, like: "as the descriptor says", shapes: [][]int64{d.Shape}}
	p := t.problem([]operand{t.data("dy"), t.scale(), q, t.zeroPoint()}, &dequantizeOp, 1, [4]float64{})
	p.aux = d.QDType.String()
	p.presence = func(args []Tensor) *Error {
		if args[5].present() && !args[2].present() {
			return refuse(InvalidProblem, dequantize.Name, "q", "given for dscale", "nothing", "")
		}
		return t.presence(args)
	}
	return p, nil
}

func (d FakeQuantizePerTokenBackward) problem() (*problem, error) {
	t, err := newTokens(fakeQuantize, d.Shape, d.DType, d.ScaleDType)
	if err != nil {
		return nil, err
	}
	if d.QuantMin > d.QuantMax {
		return nil, refuse(InvalidProblem, fakeQuantize.Name, "quant_min", fmt.Sprintf("at most quant_max = %d", d.QuantMax), fmt.Sprint(d.QuantMin), "")
	}
	p := t.problem([]operand{t.data("dy"), t.data("x"), t.scale(), t.zeroPoint()}, &fakeQuantizeOp, 2, [4]float64{float64(d.QuantMin), float64(d.QuantMax)})
	p.traffic += p.traffic / 2 // x is read as well
	p.presence = t.presence
	return p, nil
}

// tokens is what the two families share: a row of Shape for each token, and values of one number for each token.
type tokens struct {
	family     *Family
	shape      []int64
	element    DType
	scaleDType DType
}

func newTokens(f *Family, shape []int64, element DType, scaleDType *DType) (*tokens, error) {
	t := &tokens{f, shape, element, element}
	scales := []DType{element, Float32}
	if scaleDType != nil {
		t.scaleDType = *scaleDType
	}
	if err := firstError(
		checkShape(f.Name, "shape", shape),
		checkElement(f.Name, "dtype", element, Floats),
		checkElement(f.Name, "scale_dtype", t.scaleDType, scales),
	); err != nil {
		return nil, err
	}
	return t, nil
}

// perToken are the shapes of one number for each token: [...] and [..., 1]. A tensor of rank 0 is one token of one element.
func (t *tokens) perToken() [][]int64 {
	lead := t.shape[:max(1, len(t.shape))-1]
	return [][]int64{lead, append(append([]int64{}, lead...), 1)}
}

func (t *tokens) data(name string) operand {
	return operand{name: name, dtypes: []DType{t.element}, like: "as the descriptor says", shapes: [][]int64{t.shape}}
}

func (t *tokens) scale() operand {
	return operand{name: "scale", dtypes: []DType{t.scaleDType}, like: "as the descriptor says", shapes: t.perToken()}
}

func (t *tokens) zeroPoint() operand {
	dtypes := append([]DType{Int8, Uint8, Int32, Int64}, Floats...)
	return operand{name: "zero_point", optional: true, dtypes: dtypes, shapes: t.perToken()}
}

func (t *tokens) outputs() []operand {
	return []operand{
		{name: "dx", out: true, dtypes: []DType{t.element}, like: "like dy", shapes: [][]int64{t.shape}},
		{name: "dscale", out: true, optional: true, dtypes: []DType{t.scaleDType}, like: "like scale", shapes: t.perToken()},
		{name: "dzero_point", out: true, optional: true, dtypes: Floats, shapes: t.perToken()},
	}
}

// problem puts the operands together; scale is the place of scale among the inputs.
func (t *tokens) problem(inputs []operand, op *elementOp, scale int, scalar [4]float64) *problem {
	n, _ := product(t.shape)
	p := &problem{family: t.family, element: t.element, operands: append(inputs, t.outputs()...), traffic: 2 * n * t.element.Size()}
	m := mapReduce{family: t.family, op: op, element: t.element, scalar: scalar, shape: t.shape}
	if len(m.shape) == 0 {
		m.shape = []int64{1}
	}
	for i := range p.operands {
		m.alignRight(i, m.shape)
	}
	for _, i := range []int{scale, 3, 5, 6} {
		m.alignLeft(i)
	}
	p.compile = func(_ *problem, units int, cuda bool, preference Preference) (program, error) {
		chosen := m
		return chosen.prepare(units, cuda, preference)
	}
	return p
}

func (t *tokens) presence(args []Tensor) *Error {
	zeroPoint, dzeroPoint := &args[3], &args[6]
	if !dzeroPoint.present() {
		return nil
	}
	if !zeroPoint.present() || !zeroPoint.DType.floating() {
		got := "nothing"
		if zeroPoint.present() {
			got = zeroPoint.DType.String()
		}
		return refuse(InvalidProblem, t.family.Name, "zero_point", "floating for dzero_point", got, "an integer zero point has no gradient")
	}
	if dzeroPoint.DType != zeroPoint.DType {
		return refuse(InvalidProblem, t.family.Name, "dzero_point", zeroPoint.DType.String()+" like zero_point", dzeroPoint.DType.String(), "")
	}
	return nil
}

func dequantizeMultiples(*[4]float64, []Tensor) [3]multiple {
	scale, q, zeroPoint := factor{input: 1}, factor{input: 2}, factor{input: 3}
	return [3]multiple{{y: scale}, {y: q, z: zeroPoint}, {z: factor{number: 1}, times: 1}} // the last: -dy, and the sum times scale
}

func fakeQuantizeBody[A accumulator](scalar *[4]float64, in, out [][]A, sums [][]float64) {
	dy, x, scale, zeroPoint := in[0], in[1], in[2], in[3]
	low, high, integer := A(scalar[0]), A(scalar[1]), scalar[2] != 0
	zero := make([]A, len(scale))
	copy(zero, zeroPoint)
	if !integer { // a learned zero point is rounded and clamped first
		for i, z := range zeroPoint {
			zero[i] = min(max(A(math.RoundToEven(float64(z))), low), high)
		}
	}
	fakeQuantizeBlock(out[0], sums[1], sums[2], dy, x, scale, zero, low, high)
}

// fakeQuantizeBlock runs the loop of op_dequantize.c.
func fakeQuantizeBlock[A accumulator](dx []A, dscale, dzeroPoint []float64, dy, x, scale, zero []A, low, high A) {
	n, run := C.long(len(dy)), runOf(scale, len(dy))
	switch s := any(scale).(type) {
	case []float32:
		f := func(values []A) *C.float { return cFloats(any(values).([]float32)) }
		C.sw_fake_quantize_f32(f(dx), cDoubles(dscale), cDoubles(dzeroPoint), f(dy), f(x), cFloats(s), f(zero), run, C.float(low), C.float(high), n)
	case []float64:
		f := func(values []A) *C.double { return cDoubles(any(values).([]float64)) }
		C.sw_fake_quantize_f64(f(dx), cDoubles(dscale), cDoubles(dzeroPoint), f(dy), f(x), cDoubles(s), f(zero), run, C.double(low), C.double(high), n)
	}
}

package elementwise

// #cgo CFLAGS: -O2
// #include "dequantize.h"
import "C"

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// DequantizePerTokenBackward is the gradient of DequantizePerToken, x = (q - zero_point[n])
// scale[n], where a token n is an index of the leading dimensions of Shape:
//
//	dx = dy scale[n]
//	dscale[n] = sum_d dy (q - zero_point[n])
//	dzero_point[n] = -scale[n] sum_d dy
//
// Operands: dy [Shape], scale, q? [Shape], zero_point? -> dx [Shape], dscale?, dzero_point?. Values
// for a token have the shape of the leading dimensions, with or without a last extent of 1. dscale
// needs q; dzero_point needs a floating zero_point.
type DequantizePerTokenBackward struct {
	Shape      []int64       `json:"shape"`
	DType      tensor.DType  `json:"dtype"`
	QDType     tensor.DType  `json:"qdtype"`      // int8 or uint8
	ScaleDType *tensor.DType `json:"scale_dtype"` // nil: DType
}

// FakeQuantizePerTokenBackward is the gradient of FakeQuantizePerToken with a straight-through
// rounding. With t = round(x / scale) + zero_point and q = clamp(t, QuantMin, QuantMax), t inside
// the bounds or on them:
//
//	dx = dy inside, 0 outside
//	dscale[n] = sum_d dy ((q - zero_point) - x / scale) inside, dy (q - zero_point) outside
//	dzero_point[n] = sum_d 0 inside, -dy scale outside
//
// (learned step size quantization, Esser et al. 2020, arXiv:1902.08153, without its gradient
// scale).
//
// Operands: dy [Shape], x [Shape], scale, zero_point? -> dx [Shape], dscale?, dzero_point?.
type FakeQuantizePerTokenBackward struct {
	Shape      []int64       `json:"shape"`
	DType      tensor.DType  `json:"dtype"`
	QuantMin   int64         `json:"quant_min"`
	QuantMax   int64         `json:"quant_max"`
	ScaleDType *tensor.DType `json:"scale_dtype"` // nil: DType
}

// Dequantize and FakeQuantize are the families of the two backwards.
var (
	Dequantize = ops.Register(&ops.Family{
		Name: "dequantize_per_token_backward", Category: "quantization", Image: "dequantize",
		Kinds:    []ops.KindRow{{Kernels: tokenKernels}},
		Required: []string{"shape", "dtype"}, Choices: dequantizeChoices, Decode: ops.DecodeAs[DequantizePerTokenBackward],
	})
	FakeQuantize = ops.Register(&ops.Family{
		Name: "fake_quantize_per_token_backward", Category: "quantization", Image: "dequantize",
		Kinds:    []ops.KindRow{{Kernels: tokenKernels}},
		Required: []string{"shape", "dtype", "quant_min", "quant_max"}, Choices: fakeQuantizeChoices, Decode: ops.DecodeAs[FakeQuantizePerTokenBackward],
	})
)

// qDTypes are the dtypes of quantized values.
var qDTypes = []tensor.DType{tensor.Int8, tensor.Uint8}

// The choices of both directions. scale_dtype is dtype or float32, which newTokens checks.
var (
	dequantizeChoices   = append([]ops.Choice{ops.DTypes("qdtype", qDTypes)}, fakeQuantizeChoices...)
	fakeQuantizeChoices = []ops.Choice{ops.DTypes("dtype", tensor.Floats), ops.DTypes("scale_dtype", tensor.Floats)}
)

// dequantizeOp and fakeQuantizeOp describe the operations to the engine. Inputs: dy, scale, q,
// zero_point of dequantize; dy, x, scale, zero_point of fake quantize.
var (
	dequantizeOp = newOp(Op{
		inputs: 4, outputs: 3, denseInputs: 1, perToken: true,
		Kernels:  []KernelSet{{"dequantize_per_token_backward", []int{0, 1, 2, 3}, []int{4, 5, 6}, unroll{2, 4, 0}}},
		inputsOf: [3]uint8{1 | 2, 1 | 4 | 8, 1 | 2},
		products: dequantizeProducts,
	})
	fakeQuantizeOp = newOp(Op{
		inputs: 4, outputs: 3, denseInputs: 1 | 2, perToken: true,
		Kernels:  []KernelSet{{"fake_quantize_per_token_backward", []int{0, 1, 2, 3}, []int{4, 5, 6}, unroll{4, 2, 0}}},
		inputsOf: [3]uint8{1 | 2 | 4 | 8, 1 | 2 | 4 | 8, 1 | 2 | 4 | 8},
		f32:      fakeQuantizeBody[float32], f64: fakeQuantizeBody[float64],
		scalars: fakeQuantizeScalars(3),
	})
)

// Family is "dequantize_per_token_backward".
func (d DequantizePerTokenBackward) Family() string { return Dequantize.Name }

// Family is "fake_quantize_per_token_backward".
func (d FakeQuantizePerTokenBackward) Family() string { return FakeQuantize.Name }

// Problem checks the descriptor. It implements ops.Descriptor.
func (d DequantizePerTokenBackward) Problem() (*ops.Problem, error) {
	t, err := newTokens(Dequantize, d.Shape, d.DType, d.ScaleDType)
	if err == nil {
		err = ops.CheckElement(Dequantize.Name, "qdtype", d.QDType, qDTypes)
	}
	if err != nil {
		return nil, err
	}
	q := ops.Operand{Name: "q", Optional: true, DTypes: []tensor.DType{d.QDType}, Like: "as the descriptor says", Shapes: [][]int64{d.Shape}}
	gradients := t.gradients()
	gradients[0].Optional = true
	p := t.problem(append([]ops.Operand{t.data("dy"), t.scale(), q, t.zeroPoint()}, gradients...), dequantizeOp, []int{1, 3, 5, 6}, [4]float64{})
	p.Aux = d.QDType.String()
	p.CheckPresence = func(args []tensor.Tensor) *errs.Error {
		dx, dscale, dzeroPoint := &args[4], &args[5], &args[6]
		switch {
		case !dx.Given() && !dscale.Given() && !dzeroPoint.Given():
			return errs.New(errs.InvalidProblem, Dequantize.Name, "dx, dscale or dzero_point", "given", "nothing", "")
		case dscale.Given() && !args[2].Given():
			return errs.New(errs.InvalidProblem, Dequantize.Name, "q", "given for dscale", "nothing", "")
		}
		return t.checkPresence(args)
	}
	return p, nil
}

// Problem checks the descriptor. It implements ops.Descriptor.
func (d FakeQuantizePerTokenBackward) Problem() (*ops.Problem, error) {
	t, err := newTokens(FakeQuantize, d.Shape, d.DType, d.ScaleDType)
	if err != nil {
		return nil, err
	}
	bounds, err := t.bounds(d.QuantMin, d.QuantMax)
	if err != nil {
		return nil, err
	}
	operands := append([]ops.Operand{t.data("dy"), t.data("x"), t.scale(), t.zeroPoint()}, t.gradients()...)
	p := t.problem(operands, fakeQuantizeOp, []int{2, 3, 5, 6}, bounds)
	p.Traffic += p.Traffic / 2 // x is read as well
	p.CheckPresence = t.checkPresence
	return p, nil
}

// tokenProblem builds the problems of quantization, forward and backward: a row of Shape per token,
// and operands with one number per token.
type tokenProblem struct {
	family     *ops.Family
	shape      []int64
	element    tensor.DType
	scaleDType tensor.DType
}

func newTokens(f *ops.Family, shape []int64, element tensor.DType, scaleDType *tensor.DType) (*tokenProblem, error) {
	t := &tokenProblem{f, shape, element, element}
	scales := []tensor.DType{element}
	if element != tensor.Float32 {
		scales = append(scales, tensor.Float32)
	}
	if scaleDType != nil {
		t.scaleDType = *scaleDType
	}
	if err := ops.FirstError(
		ops.CheckShape(f.Name, "shape", shape),
		ops.CheckElement(f.Name, "dtype", element, tensor.Floats),
		ops.CheckElement(f.Name, "scale_dtype", t.scaleDType, scales),
	); err != nil {
		return nil, err
	}
	return t, nil
}

// perToken are the accepted shapes of an operand with one number per token: [...] and [..., 1]. A
// tensor of rank 0 is one token of one element.
func (t *tokenProblem) perToken() [][]int64 {
	lead := t.shape[:max(1, len(t.shape))-1]
	return [][]int64{lead, append(append([]int64{}, lead...), 1)}
}

func (t *tokenProblem) data(name string) ops.Operand {
	return ops.Operand{Name: name, DTypes: []tensor.DType{t.element}, Like: "as the descriptor says", Shapes: [][]int64{t.shape}}
}

func (t *tokenProblem) scale() ops.Operand {
	return ops.Operand{Name: "scale", DTypes: []tensor.DType{t.scaleDType}, Like: "as the descriptor says", Shapes: t.perToken()}
}

func (t *tokenProblem) zeroPoint() ops.Operand {
	dtypes := append([]tensor.DType{tensor.Int8, tensor.Uint8, tensor.Int32, tensor.Int64}, tensor.Floats...)
	return ops.Operand{Name: "zero_point", Optional: true, DTypes: dtypes, Shapes: t.perToken()}
}

// gradients are the outputs of a backward.
func (t *tokenProblem) gradients() []ops.Operand {
	return []ops.Operand{
		{Name: "dx", Out: true, DTypes: []tensor.DType{t.element}, Like: "like dy", Shapes: [][]int64{t.shape}},
		{Name: "dscale", Out: true, Optional: true, DTypes: []tensor.DType{t.scaleDType}, Like: "like scale", Shapes: t.perToken()},
		{Name: "dzero_point", Out: true, Optional: true, DTypes: tensor.Floats, Shapes: t.perToken()},
	}
}

// bounds are the scalars of a fake quantization.
func (t *tokenProblem) bounds(low, high int64) ([4]float64, error) {
	if low > high {
		return [4]float64{}, errs.New(errs.InvalidProblem, t.family.Name, "quant_min", fmt.Sprintf("at most quant_max = %d", high), fmt.Sprint(low), "")
	}
	return [4]float64{float64(low), float64(high)}, nil
}

// problem assembles a problem; perToken are the indices of the operands with one number per token.
func (t *tokenProblem) problem(operands []ops.Operand, op *Op, perToken []int, scalar [4]float64) *ops.Problem {
	n, _ := tensor.Product(t.shape)
	p := &ops.Problem{Family: t.family, Element: t.element, Operands: operands, Traffic: 2 * n * t.element.Size()}
	m := mapReduce{family: t.family, op: op, element: t.element, scalar: scalar, shape: t.shape}
	if len(m.shape) == 0 {
		m.shape = []int64{1}
	}
	for i := range p.Operands {
		m.alignRight(i, m.shape)
	}
	for _, i := range perToken {
		m.alignLeft(i)
	}
	p.Compile = func(_ *ops.Problem, numSMs int, cuda bool, preference ops.Preference) (ops.Program, error) {
		chosen := m
		return chosen.prepare(numSMs, cuda, preference)
	}
	return p
}

// checkPresence refuses dzero_point without a floating zero_point of its dtype.
func (t *tokenProblem) checkPresence(args []tensor.Tensor) *errs.Error {
	zeroPoint, dzeroPoint := &args[3], &args[6]
	if !dzeroPoint.Given() {
		return nil
	}
	if !zeroPoint.Given() || !zeroPoint.DType.Floating() {
		got := "nothing"
		if zeroPoint.Given() {
			got = zeroPoint.DType.String()
		}
		return errs.New(errs.InvalidProblem, t.family.Name, "zero_point", "floating for dzero_point", got, "an integer zero point has no gradient")
	}
	if dzeroPoint.DType != zeroPoint.DType {
		return errs.New(errs.InvalidProblem, t.family.Name, "dzero_point", zeroPoint.DType.String()+" like zero_point", dzeroPoint.DType.String(), "")
	}
	return nil
}

func dequantizeProducts(*[4]float64, []tensor.Tensor) [3]product {
	scale, q, zeroPoint := factor{input: 1}, factor{input: 2}, factor{input: 3}
	return [3]product{{y: scale}, {y: q, z: zeroPoint}, {z: factor{number: 1}, sumFactor: 1}} // the last: -dy, and the sum times scale
}

func fakeQuantizeBody[A cpu.Accumulator](scalar *[4]float64, in, out [][]A, sums [][]float64) {
	dy, x, scale, zeroPoint := in[0], in[1], in[2], in[3]
	zero, low, high := fakeQuantizeLevels(scalar, zeroPoint, len(scale))
	fakeQuantizeBlock(out[0], sums[1], sums[2], dy, x, scale, zero, low, high)
}

// fakeQuantizeScalars tells the body whether zero points are integers: scalar 2 is 1 then. zero is
// the operand zero_point.
func fakeQuantizeScalars(zero int) func(scalar *[4]float64, args []tensor.Tensor) {
	return func(scalar *[4]float64, args []tensor.Tensor) {
		if !args[zero].DType.Floating() {
			scalar[2] = 1
		}
	}
}

// fakeQuantizeLevels are the zero points of n tokens, 0 where none are given, and the bounds. A
// floating zero point, which may be learned, is rounded and clamped.
func fakeQuantizeLevels[A cpu.Accumulator](scalar *[4]float64, zeroPoint []A, n int) (zero []A, low, high A) {
	low, high = A(scalar[0]), A(scalar[1])
	zero = make([]A, n)
	copy(zero, zeroPoint)
	if integer := scalar[2] != 0; !integer {
		for i, z := range zeroPoint {
			zero[i] = min(max(A(math.RoundToEven(float64(z))), low), high)
		}
	}
	return zero, low, high
}

// fakeQuantizeBlock calls the loop in dequantize.c.
func fakeQuantizeBlock[A cpu.Accumulator](dx []A, dscale, dzeroPoint []float64, dy, x, scale, zero []A, low, high A) {
	n, run := C.long(len(dy)), deqRun(scale, len(dy))
	switch s := any(scale).(type) {
	case []float32:
		f := func(values []A) *C.float { return deqFloats(any(values).([]float32)) }
		C.sw_fake_quantize_f32(f(dx), deqDoubles(dscale), deqDoubles(dzeroPoint), f(dy), f(x), deqFloats(s), f(zero), run, C.float(low), C.float(high), n)
	case []float64:
		f := func(values []A) *C.double { return deqDoubles(any(values).([]float64)) }
		C.sw_fake_quantize_f64(f(dx), deqDoubles(dscale), deqDoubles(dzeroPoint), f(dy), f(x), deqDoubles(s), f(zero), run, C.double(low), C.double(high), n)
	}
}

func deqFloats(s []float32) *C.float                     { return (*C.float)(unsafe.Pointer(unsafe.SliceData(s))) }
func deqDoubles(s []float64) *C.double                   { return (*C.double)(unsafe.Pointer(unsafe.SliceData(s))) }
func deqRun[A cpu.Accumulator](values []A, n int) C.long { return C.long(n / len(values)) }

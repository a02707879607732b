package elementwise

// #include "dequantize.h"
import "C"

import (
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// DequantizePerToken is y = (q - zero_point[n]) scale[n], a scale for each token n, that is, for
// each index of the leading dimensions of Shape. It is formed in float32 (float64 for float64) and
// rounded once.
//
// Operands: q [Shape], scale, zero_point? -> y [Shape]. Values for a token have the shape of the
// leading dimensions, with or without a last extent of 1.
type DequantizePerToken struct {
	Shape      []int64       `json:"shape"`
	DType      tensor.DType  `json:"dtype"`       // of y
	QDType     tensor.DType  `json:"qdtype"`      // int8 or uint8
	ScaleDType *tensor.DType `json:"scale_dtype"` // nil: DType
}

// FakeQuantizePerToken quantizes and dequantizes with a scale for each token n:
//
//	t = round(x / scale[n]) + zero_point[n], to nearest, ties to even
//	y = (clamp(t, QuantMin, QuantMax) - zero_point[n]) scale[n]
//
// A floating zero point is rounded and clamped first. A scale of 0 gives y = 0, and a NaN in x or
// zero_point a NaN.
//
// Operands: x [Shape], scale, zero_point? -> y [Shape]. y may be x.
type FakeQuantizePerToken struct {
	Shape      []int64       `json:"shape"`
	DType      tensor.DType  `json:"dtype"`
	QuantMin   int64         `json:"quant_min"`
	QuantMax   int64         `json:"quant_max"`
	ScaleDType *tensor.DType `json:"scale_dtype"` // nil: DType
}

// DequantizeForward and FakeQuantizeForward are the families of the two descriptors.
var (
	DequantizeForward = ops.Register(&ops.Family{
		Name: "dequantize_per_token", Category: Dequantize.Category, Image: Dequantize.Image,
		Kinds:    []ops.KindRow{{Kernels: []string{"map"}}},
		Required: []string{"shape", "dtype"}, Choices: dequantizeChoices, Decode: ops.DecodeAs[DequantizePerToken],
	})
	FakeQuantizeForward = ops.Register(&ops.Family{
		Name: "fake_quantize_per_token", Category: FakeQuantize.Category, Image: FakeQuantize.Image,
		Kinds:    []ops.KindRow{{Kernels: []string{"map"}}},
		Required: FakeQuantize.Required, Choices: fakeQuantizeChoices, Decode: ops.DecodeAs[FakeQuantizePerToken],
	})
)

// dequantizeForwardOp and fakeQuantizeForwardOp describe the operations to the engine. Inputs: q or
// x, scale, zero_point.
var (
	dequantizeForwardOp = newOp(Op{
		inputs: 3, outputs: 1, denseInputs: 1, perToken: true,
		Kernels:  []KernelSet{{"dequantize_per_token", []int{0, 1, 2}, []int{3}, unroll{8, 0, 0}}},
		inputsOf: [3]uint8{1 | 2 | 4},
		f32:      dequantizeBody[float32], f64: dequantizeBody[float64],
		dense32: dequantizeDense[float32], dense64: dequantizeDense[float64],
	})
	fakeQuantizeForwardOp = newOp(Op{
		inputs: 3, outputs: 1, denseInputs: 1, perToken: true,
		Kernels:  []KernelSet{{"fake_quantize_per_token", []int{0, 1, 2}, []int{3}, unroll{8, 0, 0}}},
		inputsOf: [3]uint8{1 | 2 | 4},
		f32:      fakeQuantizeForwardBody[float32], f64: fakeQuantizeForwardBody[float64],
		dense32: fakeQuantizeDense[float32], dense64: fakeQuantizeDense[float64],
		scalars: fakeQuantizeScalars(2),
	})
)

// Family is "dequantize_per_token".
func (d DequantizePerToken) Family() string { return DequantizeForward.Name }

// Family is "fake_quantize_per_token".
func (d FakeQuantizePerToken) Family() string { return FakeQuantizeForward.Name }

// Problem checks the descriptor. It implements ops.Descriptor.
func (d DequantizePerToken) Problem() (*ops.Problem, error) {
	t, err := newTokens(DequantizeForward, d.Shape, d.DType, d.ScaleDType)
	if err == nil {
		err = ops.CheckElement(DequantizeForward.Name, "qdtype", d.QDType, qDTypes)
	}
	if err != nil {
		return nil, err
	}
	q := ops.Operand{Name: "q", DTypes: []tensor.DType{d.QDType}, Like: "as the descriptor says", Shapes: [][]int64{d.Shape}}
	p := t.problem([]ops.Operand{q, t.scale(), t.zeroPoint(), t.result()}, dequantizeForwardOp, []int{1, 2}, [4]float64{})
	p.Aux = d.QDType.String()
	p.Traffic = p.Traffic/2 + p.Traffic/2/d.DType.Size() // q has one byte per element
	return p, nil
}

// Problem checks the descriptor. It implements ops.Descriptor.
func (d FakeQuantizePerToken) Problem() (*ops.Problem, error) {
	t, err := newTokens(FakeQuantizeForward, d.Shape, d.DType, d.ScaleDType)
	if err != nil {
		return nil, err
	}
	bounds, err := t.bounds(d.QuantMin, d.QuantMax)
	if err != nil {
		return nil, err
	}
	return t.problem([]ops.Operand{t.data("x"), t.scale(), t.zeroPoint(), t.result()}, fakeQuantizeForwardOp, []int{1, 2}, bounds), nil
}

// result is the output of a forward.
func (t *tokenProblem) result() ops.Operand {
	return ops.Operand{Name: "y", Out: true, DTypes: []tensor.DType{t.element}, Like: "as the descriptor says", Shapes: [][]int64{t.shape}}
}

func dequantizeBody[A cpu.Accumulator](_ *[4]float64, in, out [][]A, _ [][]float64) {
	y, q, scale, zero := out[0], in[0], in[1], in[2]
	if zero == nil {
		zero = make([]A, len(scale))
	}
	n, run := C.long(len(q)), deqRun(scale, len(q))
	switch y := any(y).(type) {
	case []float32:
		f := func(values []A) *C.float { return deqFloats(any(values).([]float32)) }
		C.sw_dequantize_forward_f32(deqFloats(y), f(q), f(scale), f(zero), run, n)
	case []float64:
		f := func(values []A) *C.double { return deqDoubles(any(values).([]float64)) }
		C.sw_dequantize_forward_f64(deqDoubles(y), f(q), f(scale), f(zero), run, n)
	}
}

func fakeQuantizeForwardBody[A cpu.Accumulator](scalar *[4]float64, in, out [][]A, _ [][]float64) {
	y, x, scale := out[0], in[0], in[1]
	zero, low, high := fakeQuantizeLevels(scalar, in[2], len(scale))
	n, run := C.long(len(x)), deqRun(scale, len(x))
	switch y := any(y).(type) {
	case []float32:
		f := func(values []A) *C.float { return deqFloats(any(values).([]float32)) }
		C.sw_fake_quantize_forward_f32(deqFloats(y), f(x), f(scale), f(zero), run, C.float(low), C.float(high), n)
	case []float64:
		f := func(values []A) *C.double { return deqDoubles(any(values).([]float64)) }
		C.sw_fake_quantize_forward_f64(deqDoubles(y), f(x), f(scale), f(zero), run, C.double(low), C.double(high), n)
	}
}

func dequantizeDense[A cpu.Accumulator](_ *[4]float64, block *denseBlock, in [][]A) {
	scale, zero := in[1], in[2]
	if zero == nil {
		zero = make([]A, len(scale))
	}
	C.sw_dequantize_dense(block.c(), unsafe.Pointer(&scale[0]), unsafe.Pointer(&zero[0]))
}

func fakeQuantizeDense[A cpu.Accumulator](scalar *[4]float64, block *denseBlock, in [][]A) {
	scale := in[1]
	zero, low, high := fakeQuantizeLevels(scalar, in[2], len(scale))
	C.sw_fake_quantize_dense(block.c(), unsafe.Pointer(&scale[0]), unsafe.Pointer(&zero[0]), C.double(low), C.double(high))
}

func (b *denseBlock) c() C.sw_dense_block {
	return C.sw_dense_block{in: C.uintptr_t(b.in), out: C.uintptr_t(b.out), run: C.long(b.run), n: C.long(b.n),
		in_dtype: C.long(b.inDType.Row()), out_dtype: C.long(b.outDType.Row())}
}

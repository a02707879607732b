package elementwise

// #include "dequantize.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// FakeQuantize quantizes and dequantizes with a value of scale and of zero_point for each block,
// as [Dequantize] has them:
//
//	t = round(x / scale) + zero_point, to nearest, ties to even
//	y = (clamp(t, QuantMin, QuantMax) - zero_point) scale
//
// A floating zero point is rounded and clamped first. A scale of 0 gives y = 0, and a NaN in x or
// zero_point a NaN. If Reciprocal, x * (1 / scale) takes the place of x / scale, as in
// torch.fake_quantize_per_tensor_affine, which decides otherwise for a few x between two levels;
// 1 / scale must be finite then.
//
// Operands: x [Shape], scale, zero_point? [ScaleShape] -> y [Shape]. y may be x.
type FakeQuantize struct {
	Shape      []int64       `json:"shape"`
	DType      tensor.DType  `json:"dtype"`
	QuantMin   int64         `json:"quant_min"`
	QuantMax   int64         `json:"quant_max"`
	ScaleShape []int64       `json:"scale_shape"`
	ScaleDType *tensor.DType `json:"scale_dtype"` // nil: DType
	Reciprocal bool          `json:"reciprocal"`  // x * (1 / scale) in place of x / scale
}

// FakeQuantizeBackward is the gradient of FakeQuantize, as [FakeQuantizePerTokenBackward] is for
// tokens: the sums run over blocks.
//
// Operands: dy [Shape], x [Shape], scale, zero_point? [ScaleShape] -> dx [Shape], dscale?,
// dzero_point? [ScaleShape].
type FakeQuantizeBackward struct {
	Shape      []int64       `json:"shape"`
	DType      tensor.DType  `json:"dtype"`
	QuantMin   int64         `json:"quant_min"`
	QuantMax   int64         `json:"quant_max"`
	ScaleShape []int64       `json:"scale_shape"`
	ScaleDType *tensor.DType `json:"scale_dtype"` // nil: DType
	Reciprocal bool          `json:"reciprocal"`  // x * (1 / scale) in place of x / scale
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

// The families of fake quantization.
var (
	FakeQuantizeFamily         = quantizeFamily("fake_quantize", ops.DecodeAs[FakeQuantize], fakeQuantizeChoices, []string{"map", "columns"}, "quant_min", "quant_max", "scale_shape")
	FakeQuantizeBackwardFamily = quantizeFamily("fake_quantize_backward", ops.DecodeAs[FakeQuantizeBackward], fakeQuantizeChoices, mapKernels, "quant_min", "quant_max", "scale_shape")

	FakeQuantizePerTokenFamily         = quantizeFamily("fake_quantize_per_token", ops.DecodeAs[FakeQuantizePerToken], fakeQuantizeChoices, tokenKernels[:1], "quant_min", "quant_max")
	FakeQuantizePerTokenBackwardFamily = quantizeFamily("fake_quantize_per_token_backward", ops.DecodeAs[FakeQuantizePerTokenBackward], fakeQuantizeChoices, tokenKernels, "quant_min", "quant_max")
)

// The operations of the engine. Inputs: x, scale, zero_point of the forward; dy, x, scale,
// zero_point of the backward.
var (
	fakeQuantizeOps = quantizeOps{
		byRow: newOp(Op{
			inputs: 3, outputs: 1, denseInputs: 1, perToken: true,
			Kernels:  []KernelSet{{"fake_quantize_per_token", []int{0, 1, 2}, []int{3}, unroll{8, 0, 0, 4}}},
			inputsOf: [3]uint8{1 | 2 | 4},
			f32:      fakeQuantizeForwardBody[float32], f64: fakeQuantizeForwardBody[float64],
			dense32: fakeQuantizeDense[float32], dense64: fakeQuantizeDense[float64],
			scalars: fakeQuantizeScalars(2),
		}),
		byColumn: newOp(Op{
			inputs: 3, outputs: 1, denseInputs: 1 | 2 | 4, columnInputs: 2 | 4,
			Kernels:  []KernelSet{{"fake_quantize_per_channel", []int{0, 1, 2}, []int{3}, unroll{0, 0, 4, 0}}},
			inputsOf: [3]uint8{1 | 2 | 4},
			f32:      fakeQuantizeForwardEach[float32], f64: fakeQuantizeForwardEach[float64],
			scalars: fakeQuantizeScalars(2),
		}),
	}
	fakeQuantizeBackwardOps = quantizeOps{
		byRow: newOp(Op{
			inputs: 4, outputs: 3, denseInputs: 1 | 2, perToken: true,
			Kernels:  []KernelSet{{"fake_quantize_per_token_backward", []int{0, 1, 2, 3}, []int{4, 5, 6}, unroll{4, 2, 0, 4}}},
			inputsOf: [3]uint8{1 | 2 | 4 | 8, 1 | 2 | 4 | 8, 1 | 2 | 4 | 8},
			f32:      fakeQuantizeBody[float32], f64: fakeQuantizeBody[float64],
			scalars: fakeQuantizeScalars(3),
		}),
		byColumn: newOp(Op{
			inputs: 4, outputs: 3, denseInputs: 1 | 2 | 4 | 8, columnInputs: 4 | 8,
			Kernels:  []KernelSet{{"fake_quantize_per_channel_backward", []int{0, 1, 2, 3}, []int{4, 5, 6}, unroll{0, 0, 2, 0}}},
			inputsOf: [3]uint8{1 | 2 | 4 | 8, 1 | 2 | 4 | 8, 1 | 2 | 4 | 8},
			f32:      fakeQuantizeEach[float32], f64: fakeQuantizeEach[float64],
			scalars: fakeQuantizeScalars(3),
		}),
	}
)

// Family is "fake_quantize".
func (d FakeQuantize) Family() string { return FakeQuantizeFamily.Name }

// Family is "fake_quantize_backward".
func (d FakeQuantizeBackward) Family() string { return FakeQuantizeBackwardFamily.Name }

// Family is "fake_quantize_per_token".
func (d FakeQuantizePerToken) Family() string { return FakeQuantizePerTokenFamily.Name }

// Family is "fake_quantize_per_token_backward".
func (d FakeQuantizePerTokenBackward) Family() string { return FakeQuantizePerTokenBackwardFamily.Name }

// Problem checks the descriptor. It implements ops.Descriptor.
func (d FakeQuantize) Problem() (*ops.Problem, error) {
	t, err := newBlocks(FakeQuantizeFamily, d.Shape, d.DType, d.ScaleDType, d.ScaleShape)
	return t.fakeQuantize(d.QuantMin, d.QuantMax, d.Reciprocal, err)
}

// Problem checks the descriptor. It implements ops.Descriptor.
func (d FakeQuantizePerToken) Problem() (*ops.Problem, error) {
	t, err := newPerToken(FakeQuantizePerTokenFamily, d.Shape, d.DType, d.ScaleDType)
	return t.fakeQuantize(d.QuantMin, d.QuantMax, false, err)
}

// Problem checks the descriptor. It implements ops.Descriptor.
func (d FakeQuantizeBackward) Problem() (*ops.Problem, error) {
	t, err := newBlocks(FakeQuantizeBackwardFamily, d.Shape, d.DType, d.ScaleDType, d.ScaleShape)
	return t.fakeQuantizeBackward(d.QuantMin, d.QuantMax, d.Reciprocal, err)
}

// Problem checks the descriptor. It implements ops.Descriptor.
func (d FakeQuantizePerTokenBackward) Problem() (*ops.Problem, error) {
	t, err := newPerToken(FakeQuantizePerTokenBackwardFamily, d.Shape, d.DType, d.ScaleDType)
	return t.fakeQuantizeBackward(d.QuantMin, d.QuantMax, false, err)
}

// fakeQuantize is the problem of the forward, unless there is an error.
func (t *quantization) fakeQuantize(low, high int64, reciprocal bool, err error) (*ops.Problem, error) {
	if err != nil {
		return nil, err
	}
	scalar, err := t.levels(low, high, reciprocal)
	if err != nil {
		return nil, err
	}
	return t.problem([]ops.Operand{t.data("x"), t.scale(), t.zeroPoint(), t.result()}, fakeQuantizeOps, []int{1, 2}, scalar, packing{}), nil
}

// fakeQuantizeBackward is the problem of the backward, unless there is an error.
func (t *quantization) fakeQuantizeBackward(low, high int64, reciprocal bool, err error) (*ops.Problem, error) {
	if err != nil {
		return nil, err
	}
	scalar, err := t.levels(low, high, reciprocal)
	if err != nil {
		return nil, err
	}
	operands := append([]ops.Operand{t.data("dy"), t.data("x"), t.scale(), t.zeroPoint()}, t.gradients()...)
	p := t.problem(operands, fakeQuantizeBackwardOps, []int{2, 3, 5, 6}, scalar, packing{})
	p.Traffic += p.Traffic / 2 // x is read as well
	p.CheckPresence = t.checkPresence
	return p, nil
}

func fakeQuantizeBody[A cpu.Accumulator](scalar *[4]float64, in, out [][]A, sums [][]float64) {
	dy, x, scale, zeroPoint := in[0], in[1], in[2], in[3]
	zero := zeroPoints(scalar, zeroPoint, len(scale))
	fakeQuantizeBlock(out[0], sums[1], sums[2], dy, x, scale, zero, levelsOf(scalar))
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

// levelsOf are the levels of scalars.
func levelsOf(scalar *[4]float64) C.sw_levels {
	return C.sw_levels{low: C.double(scalar[0]), high: C.double(scalar[1]), reciprocal: C.int(scalar[3])}
}

// zeroPoints are the zero points of n scale values, 0 where none are given. A floating zero point,
// which may be learned, is rounded and clamped.
func zeroPoints[A cpu.Accumulator](scalar *[4]float64, zeroPoint []A, n int) []A {
	zero := make([]A, n)
	copy(zero, zeroPoint)
	if integer := scalar[2] != 0; !integer {
		for i, z := range zeroPoint {
			zero[i] = min(max(A(math.RoundToEven(float64(z))), A(scalar[0])), A(scalar[1]))
		}
	}
	return zero
}

// The bodies of operations with a scale for each element.

func dequantizeEach[A cpu.Accumulator](_ *[4]float64, in, out [][]A, _ [][]float64) {
	n := C.long(len(in[0]))
	switch y := any(out[0]).(type) {
	case []float32:
		C.sw_dequantize_each_f32(deqFloats(y), floatsOf(in[0]), floatsOf(in[1]), floatsOf(in[2]), n)
	case []float64:
		C.sw_dequantize_each_f64(deqDoubles(y), doublesOf(in[0]), doublesOf(in[1]), doublesOf(in[2]), n)
	}
}

func fakeQuantizeForwardEach[A cpu.Accumulator](scalar *[4]float64, in, out [][]A, _ [][]float64) {
	n, zero := C.long(len(in[0])), zeroPointsOfEach(scalar, in[2])
	switch y := any(out[0]).(type) {
	case []float32:
		C.sw_fake_quantize_forward_each_f32(deqFloats(y), floatsOf(in[0]), floatsOf(in[1]), floatsOf(zero), levelsOf(scalar), n)
	case []float64:
		C.sw_fake_quantize_forward_each_f64(deqDoubles(y), doublesOf(in[0]), doublesOf(in[1]), doublesOf(zero), levelsOf(scalar), n)
	}
}

func fakeQuantizeEach[A cpu.Accumulator](scalar *[4]float64, in, out [][]A, sums [][]float64) {
	n, zero := C.long(len(in[0])), zeroPointsOfEach(scalar, in[3])
	dscale, dzeroPoint := deqDoubles(sums[1]), deqDoubles(sums[2])
	switch dx := any(out[0]).(type) {
	case []float32:
		C.sw_fake_quantize_each_f32(deqFloats(dx), dscale, dzeroPoint, floatsOf(in[0]), floatsOf(in[1]), floatsOf(in[2]), floatsOf(zero), levelsOf(scalar), n)
	case []float64:
		C.sw_fake_quantize_each_f64(deqDoubles(dx), dscale, dzeroPoint, doublesOf(in[0]), doublesOf(in[1]), doublesOf(in[2]), doublesOf(zero), levelsOf(scalar), n)
	}
}

// zeroPointsOfEach are zeroPoints where one is given for each element; nil: none is.
func zeroPointsOfEach[A cpu.Accumulator](scalar *[4]float64, zeroPoint []A) []A {
	if zeroPoint == nil {
		return nil
	}
	return zeroPoints(scalar, zeroPoint, len(zeroPoint))
}

func floatsOf[A cpu.Accumulator](values []A) *C.float   { return deqFloats(any(values).([]float32)) }
func doublesOf[A cpu.Accumulator](values []A) *C.double { return deqDoubles(any(values).([]float64)) }

// fakeQuantizeBlock calls the loop in dequantize.c.
func fakeQuantizeBlock[A cpu.Accumulator](dx []A, dscale, dzeroPoint []float64, dy, x, scale, zero []A, levels C.sw_levels) {
	n, run := C.long(len(dy)), deqRun(scale, len(dy))
	switch s := any(scale).(type) {
	case []float32:
		C.sw_fake_quantize_f32(floatsOf(dx), deqDoubles(dscale), deqDoubles(dzeroPoint), floatsOf(dy), floatsOf(x), deqFloats(s), floatsOf(zero), run, levels, n)
	case []float64:
		C.sw_fake_quantize_f64(doublesOf(dx), deqDoubles(dscale), deqDoubles(dzeroPoint), doublesOf(dy), doublesOf(x), deqDoubles(s), doublesOf(zero), run, levels, n)
	}
}

func fakeQuantizeForwardBody[A cpu.Accumulator](scalar *[4]float64, in, out [][]A, _ [][]float64) {
	y, x, scale := out[0], in[0], in[1]
	zero, levels := zeroPoints(scalar, in[2], len(scale)), levelsOf(scalar)
	n, run := C.long(len(x)), deqRun(scale, len(x))
	switch y := any(y).(type) {
	case []float32:
		C.sw_fake_quantize_forward_f32(deqFloats(y), floatsOf(x), floatsOf(scale), floatsOf(zero), run, levels, n)
	case []float64:
		C.sw_fake_quantize_forward_f64(deqDoubles(y), doublesOf(x), doublesOf(scale), doublesOf(zero), run, levels, n)
	}
}

func fakeQuantizeDense[A cpu.Accumulator](scalar *[4]float64, block *denseBlock, in [][]A) {
	scale := in[1]
	zero := zeroPoints(scalar, in[2], len(scale))
	C.sw_fake_quantize_dense(block.c(), unsafe.Pointer(&scale[0]), unsafe.Pointer(&zero[0]), levelsOf(scalar))
}

package elementwise

// #include "dequantize.h"
import "C"

import (
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Dequantize is y = (q - zero_point) scale with a value of scale and of zero_point for each block:
// an index of ScaleShape, which has the rank of Shape and extents that divide those of Shape, or
// rank 0. It is formed in float32 (float64 for float64) and rounded once. int4 and uint4 are
// packed: q is uint8 with half the last extent of Shape, and the lower four bits of a byte are the
// first.
//
// Operands: q [Shape], scale, zero_point? [ScaleShape] -> y [Shape].
type Dequantize struct {
	Shape      []int64       `json:"shape"`
	DType      tensor.DType  `json:"dtype"` // of y
	ScaleShape []int64       `json:"scale_shape"`
	ScaleDType *tensor.DType `json:"scale_dtype"` // nil: DType
	QDType     tensor.DType  `json:"qdtype"`      // int8, uint8, float8_e4m3fn, float8_e5m2, int4 or uint4
}

// DequantizeBackward is the gradient of Dequantize:
//
//	dx = dy scale
//	dscale = sum of dy (q - zero_point) over a block
//	dzero_point = -scale times the sum of dy over a block
//
// Operands: dy [Shape], scale [ScaleShape], q? [Shape], zero_point? [ScaleShape] -> dx [Shape],
// dscale?, dzero_point? [ScaleShape]. dscale needs q; dzero_point needs a floating zero_point.
type DequantizeBackward struct {
	Shape      []int64       `json:"shape"`
	DType      tensor.DType  `json:"dtype"`
	ScaleShape []int64       `json:"scale_shape"`
	ScaleDType *tensor.DType `json:"scale_dtype"` // nil: DType
	QDType     tensor.DType  `json:"qdtype"`      // int8, uint8, float8_e4m3fn, float8_e5m2, int4 or uint4
}

// DequantizePerToken is y = (q - zero_point[n]) scale[n], a scale for each token n, that is, for
// each index of the leading dimensions of Shape. It is formed in float32 (float64 for float64) and
// rounded once.
//
// Operands: q [Shape], scale, zero_point? -> y [Shape]. Values for a token have the shape of the
// leading dimensions, with or without a last extent of 1.
type DequantizePerToken struct {
	Shape      []int64       `json:"shape"`
	DType      tensor.DType  `json:"dtype"`       // of y
	QDType     tensor.DType  `json:"qdtype"`      // int8, uint8, float8_e4m3fn, float8_e5m2, int4 or uint4
	ScaleDType *tensor.DType `json:"scale_dtype"` // nil: DType
}

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
	QDType     tensor.DType  `json:"qdtype"`      // int8, uint8, float8_e4m3fn, float8_e5m2, int4 or uint4
	ScaleDType *tensor.DType `json:"scale_dtype"` // nil: DType
}

// The families of dequantization.
var (
	DequantizeFamily         = quantizeFamily("dequantize", ops.DecodeAs[Dequantize], dequantizeChoices, []string{"map", "columns"}, "scale_shape")
	DequantizeBackwardFamily = quantizeFamily("dequantize_backward", ops.DecodeAs[DequantizeBackward], dequantizeChoices, mapKernels, "scale_shape")

	DequantizePerTokenFamily         = quantizeFamily("dequantize_per_token", ops.DecodeAs[DequantizePerToken], dequantizeChoices, tokenKernels[:1])
	DequantizePerTokenBackwardFamily = quantizeFamily("dequantize_per_token_backward", ops.DecodeAs[DequantizePerTokenBackward], dequantizeChoices, tokenKernels)
)

// The operations of the engine. Inputs: q, scale, zero_point of the forward; dy, scale, q,
// zero_point of the backward.
var (
	dequantizeOps = quantizeOps{
		byRow: newOp(Op{
			inputs: 3, outputs: 1, denseInputs: 1, perToken: true,
			Kernels:  []KernelSet{{"dequantize_per_token", []int{0, 1, 2}, []int{3}, unroll{8, 0, 0, 4}}},
			inputsOf: [3]uint8{1 | 2 | 4},
			f32:      dequantizeBody[float32], f64: dequantizeBody[float64],
			dense32: dequantizeDense[float32], dense64: dequantizeDense[float64],
		}),
		byColumn: newOp(Op{
			inputs: 3, outputs: 1, denseInputs: 1 | 2 | 4, columnInputs: 2 | 4,
			Kernels:  []KernelSet{{"dequantize_per_channel", []int{0, 1, 2}, []int{3}, unroll{0, 0, 4, 0}}},
			inputsOf: [3]uint8{1 | 2 | 4},
			f32:      dequantizeEach[float32], f64: dequantizeEach[float64],
		}),
	}
	dequantizeBackwardOps = quantizeOps{
		byRow: newOp(Op{
			inputs: 4, outputs: 3, denseInputs: 1, perToken: true,
			Kernels:  []KernelSet{{"dequantize_per_token_backward", []int{0, 1, 2, 3}, []int{4, 5, 6}, unroll{2, 4, 0, 4}}},
			inputsOf: [3]uint8{1 | 2, 1 | 4 | 8, 1 | 2},
			products: dequantizeProducts,
		}),
		byColumn: newOp(Op{
			inputs: 4, outputs: 3, denseInputs: 1, columnInputs: 2 | 8,
			Kernels:  []KernelSet{{"dequantize_per_channel_backward", []int{0, 1, 2, 3}, []int{4, 5, 6}, unroll{0, 0, 4, 0}}},
			inputsOf: [3]uint8{1 | 2, 1 | 4 | 8, 1 | 2},
			products: dequantizeProducts,
		}),
	}
)

// Family is "dequantize".
func (d Dequantize) Family() string { return DequantizeFamily.Name }

// Family is "dequantize_backward".
func (d DequantizeBackward) Family() string { return DequantizeBackwardFamily.Name }

// Family is "dequantize_per_token".
func (d DequantizePerToken) Family() string { return DequantizePerTokenFamily.Name }

// Family is "dequantize_per_token_backward".
func (d DequantizePerTokenBackward) Family() string { return DequantizePerTokenBackwardFamily.Name }

// Problem checks the descriptor. It implements ops.Descriptor.
func (d Dequantize) Problem() (*ops.Problem, error) {
	t, err := newBlocks(DequantizeFamily, d.Shape, d.DType, d.ScaleDType, d.ScaleShape)
	return t.dequantize(d.QDType, err)
}

// Problem checks the descriptor. It implements ops.Descriptor.
func (d DequantizePerToken) Problem() (*ops.Problem, error) {
	t, err := newPerToken(DequantizePerTokenFamily, d.Shape, d.DType, d.ScaleDType)
	return t.dequantize(d.QDType, err)
}

// Problem checks the descriptor. It implements ops.Descriptor.
func (d DequantizeBackward) Problem() (*ops.Problem, error) {
	t, err := newBlocks(DequantizeBackwardFamily, d.Shape, d.DType, d.ScaleDType, d.ScaleShape)
	return t.dequantizeBackward(d.QDType, err)
}

// Problem checks the descriptor. It implements ops.Descriptor.
func (d DequantizePerTokenBackward) Problem() (*ops.Problem, error) {
	t, err := newPerToken(DequantizePerTokenBackwardFamily, d.Shape, d.DType, d.ScaleDType)
	return t.dequantizeBackward(d.QDType, err)
}

// dequantize is the problem of the forward, unless there is an error.
func (t *quantization) dequantize(q tensor.DType, err error) (*ops.Problem, error) {
	if err == nil {
		err = t.checkQ(q)
	}
	if err != nil {
		return nil, err
	}
	p := t.problem([]ops.Operand{t.quantized(q, false), t.scale(), t.zeroPoint(), t.result()}, dequantizeOps, []int{1, 2}, [4]float64{}, packing{0, q})
	p.Aux = q.String()
	p.Traffic = p.Traffic/2 + p.Traffic/2/t.element.Size()*int64(q.Bits)/8
	p.CheckPresence = func(args []tensor.Tensor) *errs.Error { return t.checkPacked(&args[0], q) }
	return p, nil
}

// dequantizeBackward is the problem of the backward, unless there is an error.
func (t *quantization) dequantizeBackward(q tensor.DType, err error) (*ops.Problem, error) {
	if err == nil {
		err = t.checkQ(q)
	}
	if err != nil {
		return nil, err
	}
	gradients := t.gradients()
	gradients[0].Optional = true
	p := t.problem(append([]ops.Operand{t.data("dy"), t.scale(), t.quantized(q, true), t.zeroPoint()}, gradients...), dequantizeBackwardOps, []int{1, 3, 5, 6}, [4]float64{}, packing{2, q})
	p.Aux = q.String()
	p.CheckPresence = func(args []tensor.Tensor) *errs.Error {
		dx, dscale, dzeroPoint := &args[4], &args[5], &args[6]
		switch {
		case !dx.Given() && !dscale.Given() && !dzeroPoint.Given():
			return errs.New(errs.InvalidProblem, t.family.Name, "dx, dscale or dzero_point", "given", "nothing", "")
		case dscale.Given() && !args[2].Given():
			return errs.New(errs.InvalidProblem, t.family.Name, "q", "given for dscale", "nothing", "")
		}
		if err := t.checkPacked(&args[2], q); err != nil {
			return err
		}
		return t.checkPresence(args)
	}
	return p, nil
}

func dequantizeProducts(*[4]float64, []tensor.Tensor) [3]product {
	scale, q, zeroPoint := factor{input: 1}, factor{input: 2}, factor{input: 3}
	return [3]product{{y: scale}, {y: q, z: zeroPoint}, {z: factor{number: 1}, sumFactor: 1}} // the last: -dy, and the sum times scale
}

func dequantizeBody[A cpu.Accumulator](_ *[4]float64, in, out [][]A, _ [][]float64) {
	y, q, scale, zero := out[0], in[0], in[1], in[2]
	if zero == nil {
		zero = make([]A, len(scale))
	}
	n, run := C.long(len(q)), deqRun(scale, len(q))
	switch y := any(y).(type) {
	case []float32:
		C.sw_dequantize_forward_f32(deqFloats(y), floatsOf(q), floatsOf(scale), floatsOf(zero), run, n)
	case []float64:
		C.sw_dequantize_forward_f64(deqDoubles(y), doublesOf(q), doublesOf(scale), doublesOf(zero), run, n)
	}
}

func dequantizeDense[A cpu.Accumulator](_ *[4]float64, block *denseBlock, in [][]A) {
	scale, zero := in[1], in[2]
	if zero == nil {
		zero = make([]A, len(scale))
	}
	C.sw_dequantize_dense(block.c(), unsafe.Pointer(&scale[0]), unsafe.Pointer(&zero[0]))
}

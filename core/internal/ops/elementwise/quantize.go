package elementwise

// #cgo CFLAGS: -O2
// #include "dequantize.h"
import "C"

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file has the parts that dequantization and fake quantization share.
//
// A block is the elements that share a scale value. The scale of a shape has its rank, or rank
// 0, and in each dimension an extent that divides that of the shape: element i has the number i /
// (extent of the shape / extent of the scale). To the engine a divided dimension is two dimensions,
// along the second of which the scale is broadcast.

// qDTypes are the dtypes of quantized values.
var qDTypes = []tensor.DType{tensor.Int8, tensor.Uint8, tensor.Float8E4M3, tensor.Float8E5M2, tensor.Int4, tensor.Uint4}

// The choices of descriptors. scale_dtype is dtype or float32, which newQuantization checks.
var (
	fakeQuantizeChoices = []ops.Choice{ops.DTypes("dtype", tensor.Floats), ops.DTypes("scale_dtype", tensor.Floats)}
	dequantizeChoices   = append([]ops.Choice{ops.DTypes("qdtype", qDTypes)}, fakeQuantizeChoices...)
)

// quantizeFamily registers a family.
func quantizeFamily(name string, decode ops.Decoder, choices []ops.Choice, kernels []string, required ...string) *ops.Family {
	return ops.Register(&ops.Family{
		Name: name, Category: "quantization", Image: "dequantize",
		Kinds:    []ops.KindRow{{Kernels: kernels}},
		Required: append([]string{"shape", "dtype"}, required...), Choices: choices, Decode: decode,
	})
}

// quantizeOps are the two forms of an operation of the engine: of blocks with several elements of
// the fastest dimension, and of blocks with one.
type quantizeOps struct{ byRow, byColumn *Op }

// quantization builds the problems of an operation with a scale value for each block.
type quantization struct {
	family      *ops.Family
	shape       []int64
	element     tensor.DType
	scaleDType  tensor.DType
	scaleShapes [][]int64 // that are accepted
	extents     []int64   // of the scale, a divisor for each dimension of the shape
}

// newPerToken is the quantization with a block for each index of the leading dimensions. A tensor
// of rank 0 is one token of one element.
func newPerToken(f *ops.Family, shape []int64, element tensor.DType, scaleDType *tensor.DType) (*quantization, error) {
	lead := shape[:max(1, len(shape))-1]
	column := append(append([]int64{}, lead...), 1)
	return newQuantization(f, shape, element, scaleDType, [][]int64{lead, column}, column[:len(shape)])
}

// newBlocks is the quantization with the blocks of a scale of some shape.
func newBlocks(f *ops.Family, shape []int64, element tensor.DType, scaleDType *tensor.DType, scaleShape []int64) (*quantization, error) {
	if err := ops.FirstError(ops.CheckShape(f.Name, "shape", shape), ops.CheckShape(f.Name, "scale_shape", scaleShape)); err != nil {
		return nil, err
	}
	wrong := func(wanted string) error {
		return errs.New(errs.InvalidProblem, f.Name, "scale_shape", wanted, tensor.ShapeText(scaleShape), "")
	}
	extents := scaleShape
	switch len(scaleShape) {
	case len(shape):
	case 0:
		extents = make([]int64, len(shape))
		for d := range extents {
			extents[d] = 1
		}
	default:
		return nil, wrong(fmt.Sprintf("of rank %d, as shape, or of rank 0", len(shape)))
	}
	for d, extent := range extents {
		if n := shape[d]; extent == 0 && n != 0 || extent != 0 && n%extent != 0 {
			return nil, wrong(fmt.Sprintf("of extents that divide those of shape, %s", tensor.ShapeText(shape)))
		}
	}
	return newQuantization(f, shape, element, scaleDType, [][]int64{scaleShape}, extents)
}

func newQuantization(
	f *ops.Family, shape []int64, element tensor.DType, scaleDType *tensor.DType, scaleShapes [][]int64, extents []int64,
) (*quantization, error) {
	t := &quantization{f, shape, element, element, scaleShapes, extents}
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
	if n := len(t.engineShape(&mapReduce{}, nil, nil)); n > tensor.MaxRank {
		return nil, errs.New(errs.Unsupported, f.Name, "scale_shape", fmt.Sprintf("such that blocks have at most %d dimensions: those of shape, one more for each that is divided, and one if none is divided or shared", tensor.MaxRank), fmt.Sprint(n), "")
	}
	return t, nil
}

// checkQ refuses a dtype that quantized values do not have, and a shape that packed ones do not
// fill.
func (t *quantization) checkQ(q tensor.DType) error {
	err := ops.CheckElement(t.family.Name, "qdtype", q, qDTypes)
	if last := len(t.shape) - 1; err == nil && q.IsPacked() && (last < 0 || t.shape[last]%2 != 0) {
		wanted := fmt.Sprintf("with an even last extent for %s, which has two numbers in a byte", q)
		return errs.New(errs.InvalidProblem, t.family.Name, "shape", wanted, tensor.ShapeText(t.shape), "")
	}
	return err
}

func (t *quantization) data(name string) ops.Operand {
	return ops.Operand{Name: name, DTypes: []tensor.DType{t.element}, Like: "as the descriptor says", Shapes: [][]int64{t.shape}}
}

// quantized is the operand q. Packed values are uint8, with two of them along the last dimension.
func (t *quantization) quantized(q tensor.DType, optional bool) ops.Operand {
	shape := t.shape
	if q.IsPacked() {
		last := len(shape) - 1
		shape = append(slices.Clone(shape[:last]), shape[last]/2)
		q = tensor.Uint8
	}
	return ops.Operand{Name: "q", Optional: optional, DTypes: []tensor.DType{q}, Like: "as the descriptor says", Shapes: [][]int64{shape}}
}

func (t *quantization) scale() ops.Operand {
	return ops.Operand{Name: "scale", DTypes: []tensor.DType{t.scaleDType}, Like: "as the descriptor says", Shapes: t.scaleShapes}
}

func (t *quantization) zeroPoint() ops.Operand {
	dtypes := append([]tensor.DType{tensor.Int8, tensor.Uint8, tensor.Int32, tensor.Int64}, tensor.Floats...)
	return ops.Operand{Name: "zero_point", Optional: true, DTypes: dtypes, Shapes: t.scaleShapes}
}

// result is the output of a forward.
func (t *quantization) result() ops.Operand {
	return ops.Operand{Name: "y", Out: true, DTypes: []tensor.DType{t.element}, Like: "as the descriptor says", Shapes: [][]int64{t.shape}}
}

// gradients are the outputs of a backward.
func (t *quantization) gradients() []ops.Operand {
	return []ops.Operand{
		{Name: "dx", Out: true, DTypes: []tensor.DType{t.element}, Like: "like dy", Shapes: [][]int64{t.shape}},
		{Name: "dscale", Out: true, Optional: true, DTypes: []tensor.DType{t.scaleDType}, Like: "like scale", Shapes: t.scaleShapes},
		{Name: "dzero_point", Out: true, Optional: true, DTypes: tensor.Floats, Shapes: t.scaleShapes},
	}
}

// levels are the scalars of a fake quantization: the bounds, whether zero points are integers,
// which each run says, and whether x times the reciprocal of scale takes the place of x / scale.
func (t *quantization) levels(low, high int64, reciprocal bool) (scalar [4]float64, err error) {
	if low > high {
		return scalar, errs.New(errs.InvalidProblem, t.family.Name, "quant_min", fmt.Sprintf("at most quant_max = %d", high), fmt.Sprint(low), "")
	}
	scalar[0], scalar[1] = float64(low), float64(high)
	if reciprocal {
		scalar[3] = 1
	}
	return scalar, nil
}

// engineShape is the shape to the engine: for [T, D] and a scale [T, D / 32] it is [T, D / 32, 32].
// A scale that is broadcast along no dimension, as it has the shape itself, gets one of extent 1,
// over which the kernels sum. It also matches the operands to these dimensions: whole are those of
// the shape, and ofBlocks those with a value for each block.
func (t *quantization) engineShape(m *mapReduce, whole, ofBlocks []int) (shape []int64) {
	add := func(d int, extent, multiple int64, isOfBlocks bool) {
		for _, i := range whole {
			m.match(i, len(shape), d, multiple)
		}
		for _, i := range ofBlocks {
			if isOfBlocks {
				m.match(i, len(shape), d, 1)
			} else {
				m.match(i, len(shape), -1, 1)
			}
		}
		shape = append(shape, extent)
	}
	if len(t.shape) > 0 && slices.Equal(t.shape, t.extents) && !slices.Contains(t.extents, 1) {
		add(0, 1, 0, false) // of stride 0
	}
	for d, n := range t.shape {
		switch extent := t.extents[d]; {
		case extent == 1:
			add(d, n, 1, false)
		case extent == n:
			add(d, n, 1, true)
		default:
			add(d, extent, n/extent, true)
			add(d, n/extent, 1, false)
		}
	}
	return shape
}

// problem assembles a problem; ofBlocks are the indices of the operands with a number for each
// block, and q is that of the operand of quantized values, if there are any.
func (t *quantization) problem(operands []ops.Operand, op quantizeOps, ofBlocks []int, scalar [4]float64, q packing) *ops.Problem {
	n, _ := tensor.Product(t.shape)
	p := &ops.Problem{Family: t.family, Element: t.element, Operands: operands, Traffic: 2 * n * t.element.Size()}
	m := mapReduce{family: t.family, op: op.byRow, element: t.element, scalar: scalar, packed: q}
	var whole []int
	for i := range operands {
		if !slices.Contains(ofBlocks, i) {
			whole = append(whole, i)
		}
	}
	m.shape = t.engineShape(&m, whole, ofBlocks)
	if len(m.shape) == 0 {
		m.shape = []int64{1}
		for i := range operands {
			m.match(i, 0, -1, 1)
		}
		for _, i := range whole {
			m.match(i, 0, 0, 1)
		}
	}
	if last := len(m.shape) - 1; m.axis[ofBlocks[0]][last] >= 0 {
		m.op = op.byColumn
	}
	p.Compile = func(_ *ops.Problem, numSMs int, cuda bool, preference ops.Preference) (ops.Program, error) {
		chosen := m
		return chosen.prepare(numSMs, cuda, preference)
	}
	return p
}

// checkPacked refuses packed values that are not adjacent along the last dimension.
func (t *quantization) checkPacked(q *tensor.Tensor, dtype tensor.DType) *errs.Error {
	last := q.NDim - 1
	if !q.Given() || !dtype.IsPacked() || last < 0 || last >= tensor.MaxRank {
		return nil // the rank is checked later
	}
	if q.Shape[last] > 1 && q.Strides[last] != 1 {
		return errs.New(errs.Unsupported, t.family.Name, "q", fmt.Sprintf("of stride 1 along the last dimension for %s", dtype), fmt.Sprint(q.Strides[last]), "")
	}
	return nil
}

// checkPresence refuses dzero_point without a floating zero_point of its dtype.
func (t *quantization) checkPresence(args []tensor.Tensor) *errs.Error {
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

func deqFloats(s []float32) *C.float                     { return (*C.float)(unsafe.Pointer(unsafe.SliceData(s))) }
func deqDoubles(s []float64) *C.double                   { return (*C.double)(unsafe.Pointer(unsafe.SliceData(s))) }
func deqRun[A cpu.Accumulator](values []A, n int) C.long { return C.long(n / len(values)) }

func (b *denseBlock) c() C.sw_dense_block {
	return C.sw_dense_block{in: C.uintptr_t(b.in), out: C.uintptr_t(b.out), run: C.long(b.run), n: C.long(b.n),
		in_dtype: C.long(b.inDType.Row()), out_dtype: C.long(b.outDType.Row())}
}

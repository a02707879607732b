package coretest

import (
	"fmt"
	"math"
	"slices"

	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/tensor"
)

// definition says what a family computes, in float64 and one element at a time.
type definition struct {
	inputs    int
	perToken  []int  // operands that hold one number for each token
	gradients [3]int // of each output: the input that it is the gradient of
	// forward is the operation itself; rounded numbers move with their argument from where they lie
	// in frozen, which is how a straight-through estimator differentiates them.
	forward func(in, frozen *[4]float64) float64
	// terms is what an element adds to each output. Absent inputs are 0.
	terms func(in *[4]float64) [3]Term
}

// Term is a number and the magnitude that its rounding errors grow with.
type Term struct{ Value, Size float64 }

// TermOf is a term with the magnitude of its value.
func TermOf(v float64) Term { return Term{v, math.Abs(v)} }

// sumOf adds terms with the error of each addition carried along (Neumaier), so that float64 can be
// checked too.
type sumOf struct{ plain, kept, lost, size float64 }

func (s *sumOf) add(t Term) {
	next := s.kept + t.Value
	if math.Abs(s.kept) >= math.Abs(t.Value) {
		s.lost += (s.kept - next) + t.Value
	} else {
		s.lost += (t.Value - next) + s.kept
	}
	s.kept = next
	s.plain += t.Value
	s.size += t.Size
}

func (s *sumOf) value() float64 {
	if math.IsInf(s.plain, 0) || math.IsNaN(s.plain) {
		return s.plain
	}
	return s.kept + s.lost
}

// along are the strides of a row-major operand under a shape that it broadcasts to, 0 where it
// repeats.
func (d *definition) along(operand int, shape, operandShape []int64) []int64 {
	if slices.Contains(d.perToken, operand) && len(operandShape) < len(shape) {
		operandShape = append(slices.Clone(operandShape), 1)
	}
	own, strides := tensor.Compact(operandShape), make([]int64, len(shape))
	lead := len(shape) - len(operandShape)
	for i := range operandShape {
		if operandShape[i] != 1 {
			strides[lead+i] = own[i]
		}
	}
	return strides
}

// offsets lists, for every index of a shape in row-major order, where each operand has its element.
func (d *definition) offsets(shape []int64, operands [][]int64) [][]int64 {
	list := make([][]int64, len(operands))
	for i, operandShape := range operands {
		if operandShape != nil {
			odometer(shape, d.along(i, shape, operandShape), func(at int64) { list[i] = append(list[i], at) })
		}
	}
	return list
}

// evaluate is every output in row-major order. Shapes of absent operands are nil.
func (d *definition) evaluate(shape []int64, operands [][]int64, in [4][]float64) (out [3][]sumOf) {
	if len(shape) == 0 { // a number is a token of one
		shape = []int64{1}
	}
	offsets := d.offsets(shape, operands)
	for o, s := range operands[d.inputs:] {
		if s != nil {
			n, _ := tensor.Product(s)
			out[o] = make([]sumOf, n)
		}
	}
	n, _ := tensor.Product(shape)
	for k := range n {
		var element [4]float64
		for i := range in {
			if in[i] != nil {
				element[i] = in[i][offsets[i][k]]
			}
		}
		for o, t := range d.terms(&element) {
			if out[o] != nil {
				out[o][offsets[d.inputs+o][k]].add(t)
			}
		}
	}
	return out
}

// loss is the sum of dy * forward, whose gradient the outputs are.
func (d *definition) loss(offsets [][]int64, in, frozen [4][]float64) (total float64) {
	for k := range offsets[0] {
		var element, at [4]float64
		for i := range in {
			if in[i] != nil {
				element[i], at[i] = in[i][offsets[i][k]], frozen[i][offsets[i][k]]
			}
		}
		total += element[0] * d.forward(&element, &at)
	}
	return total
}

// definitionOf is the oracle of a descriptor; floatingZero says that a zero point comes as a
// floating number.
func definitionOf(d ops.Descriptor, floatingZero bool) *definition {
	switch d := d.(type) {
	case elementwise.LerpBackward:
		return lerpDefinition(d)
	case elementwise.DequantizePerToken:
		return dequantizeForwardDefinition()
	case elementwise.FakeQuantizePerToken:
		return fakeQuantizeForwardDefinition(float64(d.QuantMin), float64(d.QuantMax), floatingZero)
	case elementwise.DequantizePerTokenBackward:
		return dequantizeDefinition()
	case elementwise.FakeQuantizePerTokenBackward:
		return fakeQuantizeDefinition(float64(d.QuantMin), float64(d.QuantMax), floatingZero)
	}
	panic(fmt.Sprintf("no definition of %T", d))
}

func lerpDefinition(d elementwise.LerpBackward) *definition {
	weight := func(in *[4]float64) float64 {
		if d.Weight != nil {
			return float64(*d.Weight)
		}
		return in[1]
	}
	return &definition{
		inputs: 4, gradients: [3]int{2, 3, 1},
		forward: func(in, _ *[4]float64) float64 { return in[2] + weight(in)*(in[3]-in[2]) },
		terms: func(in *[4]float64) [3]Term {
			w := weight(in)
			return [3]Term{TermOf((1 - w) * in[0]), TermOf(w * in[0]), TermOf(in[0] * (in[3] - in[2]))}
		},
	}
}

// Inputs: dy, scale, q, zero_point.
func dequantizeDefinition() *definition {
	return &definition{
		inputs: 4, perToken: []int{1, 3, 5, 6}, gradients: [3]int{2, 1, 3},
		forward: func(in, _ *[4]float64) float64 { return (in[2] - in[3]) * in[1] },
		terms: func(in *[4]float64) [3]Term {
			dy, scale, q, zero := in[0], in[1], in[2], in[3]
			return [3]Term{TermOf(dy * scale), {dy * (q - zero), math.Abs(dy) * (math.Abs(q) + math.Abs(zero))}, TermOf(-scale * dy)}
		},
	}
}

// limitRatio is x / scale, where a scale of 0 is the limit of small ones above it.
func limitRatio(x, scale float64) float64 {
	switch {
	case scale != 0:
		return x / scale
	case x == 0:
		return 0
	}
	return x * math.Inf(1)
}

// Inputs: q, scale, zero_point.
func dequantizeForwardDefinition() *definition {
	return &definition{
		inputs: 3, perToken: []int{1, 2},
		terms: func(in *[4]float64) [3]Term {
			q, scale, zero := in[0], in[1], in[2]
			return [3]Term{{(q - zero) * scale, math.Abs(scale) * (math.Abs(q) + math.Abs(zero))}}
		},
	}
}

// levelsOf returns two functions: clip clamps a level to the bounds; whole rounds and clamps a zero
// point if it is floating.
func levelsOf(low, high float64, floatingZero bool) (clip, whole func(float64) float64) {
	clip = func(t float64) float64 { return math.Max(low, math.Min(t, high)) }
	whole = func(zero float64) float64 {
		if floatingZero {
			return clip(math.RoundToEven(zero))
		}
		return zero
	}
	return clip, whole
}

// Inputs: x, scale, zero_point. Any level times a scale of 0 is 0, that of a NaN aside.
func fakeQuantizeForwardDefinition(low, high float64, floatingZero bool) *definition {
	clip, whole := levelsOf(low, high, floatingZero)
	return &definition{
		inputs: 3, perToken: []int{1, 2},
		terms: func(in *[4]float64) [3]Term {
			scale, zero := in[1], whole(in[2])
			level := clip(math.RoundToEven(limitRatio(in[0], scale)) + zero)
			return [3]Term{{(level - zero) * scale, math.Abs(scale) * (math.Abs(level) + math.Abs(zero))}}
		},
	}
}

// Inputs: dy, x, scale, zero_point.
func fakeQuantizeDefinition(low, high float64, floatingZero bool) *definition {
	clip, whole := levelsOf(low, high, floatingZero)
	return &definition{
		inputs: 4, perToken: []int{2, 3, 5, 6}, gradients: [3]int{1, 2, 3},
		forward: func(in, frozen *[4]float64) float64 {
			ratio, zero := frozen[1]/frozen[2], whole(frozen[3])+in[3]-frozen[3]
			t := math.RoundToEven(ratio) + (in[1]/in[2] - ratio) + zero
			return (clip(t) - zero) * in[2]
		},
		terms: func(in *[4]float64) [3]Term {
			dy, scale, ratio, zero := in[0], in[2], limitRatio(in[1], in[2]), whole(in[3])
			t := math.RoundToEven(ratio) + zero
			size := math.Abs(dy) * (math.Abs(clip(t)) + math.Abs(zero))
			if low <= t && t <= high {
				return [3]Term{TermOf(dy), {dy * ((t - zero) - ratio), size + math.Abs(dy*ratio)}, TermOf(0)}
			}
			return [3]Term{TermOf(0), {dy * (clip(t) - zero), size}, TermOf(-dy * scale)}
		},
	}
}

// difference is the slope of the loss along one element of one operand.
func (d *definition) difference(offsets [][]int64, in [4][]float64, operand, element int) float64 {
	const step = 1e-4
	moved := in
	moved[operand] = slices.Clone(in[operand])
	moved[operand][element] += step
	up := d.loss(offsets, moved, in)
	moved[operand][element] -= 2 * step
	return (up - d.loss(offsets, moved, in)) / (2 * step)
}

package coretest

import (
	"math"
	"slices"

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

// along are the extents of a shape and the strides of a row-major operand along them, 0 where it
// repeats. A dimension of the shape that an extent of the operand divides is two.
func (d *definition) along(operand int, shape, operandShape []int64) (extents, strides []int64) {
	if slices.Contains(d.perToken, operand) && len(operandShape) == len(shape)-1 {
		operandShape = append(slices.Clone(operandShape), 1)
	}
	own, lead := tensor.Compact(operandShape), len(shape)-len(operandShape)
	for i, n := range shape {
		switch {
		case i < lead || operandShape[i-lead] == 1:
			extents, strides = append(extents, n), append(strides, 0)
		case operandShape[i-lead] == n:
			extents, strides = append(extents, n), append(strides, own[i-lead])
		default:
			blocks := operandShape[i-lead]
			extents, strides = append(extents, blocks, n/blocks), append(strides, own[i-lead], 0)
		}
	}
	return extents, strides
}

// offsets lists, for every index of a shape in row-major order, where each operand has its element.
func (d *definition) offsets(shape []int64, operands [][]int64) [][]int64 {
	list := make([][]int64, len(operands))
	for i, operandShape := range operands {
		if operandShape != nil {
			extents, strides := d.along(i, shape, operandShape)
			odometer(extents, strides, func(at int64) { list[i] = append(list[i], at) })
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

// slope is that of the loss along one element of one operand, by a central difference.
func (d *definition) slope(offsets [][]int64, in [4][]float64, operand, element int) float64 {
	const step = 1e-4
	moved := in
	moved[operand] = slices.Clone(in[operand])
	moved[operand][element] += step
	up := d.loss(offsets, moved, in)
	moved[operand][element] -= 2 * step
	return (up - d.loss(offsets, moved, in)) / (2 * step)
}

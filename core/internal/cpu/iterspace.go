package cpu

import (
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file is the iteration space of a pass: broadcast, strided and merged dimensions.

// MaxOperands is the largest number of operands of an element operation.
const MaxOperands = 8

// Space is the iteration space of one pass over the operands, slowest dimension first. Kept
// dimensions come first, then reduced dimensions, then, if Columns is set, one more kept dimension.
type Space struct {
	N       int  // number of dimensions
	Kept    int  // number of leading kept dimensions
	Columns bool // the fastest dimension is kept, and sums run along slower ones
	Extent  [tensor.MaxRank]int64
	Stride  [MaxOperands][tensor.MaxRank]int64 // by operand of the plan, in elements; 0 where it is broadcast
}

// Append adds dimension d of another space as the fastest dimension.
func (s *Space) Append(from *Space, d int) {
	s.Extent[s.N] = from.Extent[d]
	for i := range s.Stride {
		s.Stride[i][s.N] = from.Stride[i][d]
	}
	s.N++
}

// merges reports whether dimensions d and d+1 can be merged: for every operand, stride d is stride
// d+1 times extent d+1.
func (s *Space) merges(d int) bool {
	for i := range s.Stride {
		if s.Stride[i][d] != s.Stride[i][d+1]*s.Extent[d+1] {
			return false
		}
	}
	return true
}

// Size is the product of the extents of dimensions low..high-1.
func (s *Space) Size(low, high int) int64 {
	n := int64(1)
	for _, e := range s.Extent[low:high] {
		n *= e
	}
	return n
}

// Counts are the numbers of leading kept indices, of reduced indices, and of kept columns.
func (s *Space) Counts() (kept, reduced, columns int64) {
	last := s.N
	columns = 1
	if s.Columns {
		last--
		columns = s.Extent[last]
	}
	return s.Size(0, s.Kept), s.Size(s.Kept, last), columns
}

// Arrange orders and merges the dimensions of a row-major space for one pass. trailing is the set
// of dimensions that must be the fastest: the pass sums over them if reduces is set. Without
// trailing dimensions, the pass follows the memory order of operand firstOut; otherwise it keeps
// the order of the shape.
func (s *Space) Arrange(trailing uint8, reduces, columns bool, firstOut int) Space {
	if trailing == 0 {
		arranged, _ := s.sorted(firstOut).merged(0)
		arranged.Kept = arranged.N
		return arranged
	}
	natural, trailing := s.merged(trailing)
	var arranged Space
	last := -1 // if columns is set: the kept dimension that becomes the fastest
	for d := range natural.N {
		if columns && trailing>>d&1 == 0 {
			last = d
		}
	}
	for d := range natural.N {
		if trailing>>d&1 == 0 && d != last {
			arranged.Append(&natural, d)
		}
	}
	arranged.Kept = arranged.N
	for d := range natural.N {
		if trailing>>d&1 != 0 {
			arranged.Append(&natural, d)
		}
	}
	if arranged.Columns = last >= 0; arranged.Columns {
		arranged.Append(&natural, last)
	}
	if !reduces {
		arranged.Kept = arranged.N
	}
	return arranged
}

// merged drops dimensions of extent 1 that are not trailing, and merges neighbours that are both
// trailing or both not, where strides allow it. It also returns the set of trailing dimensions of
// the result.
func (s *Space) merged(trailing uint8) (Space, uint8) {
	var m Space
	var trailingOfResult uint8
	for d := range s.N {
		trails := trailing >> d & 1
		if s.Extent[d] == 1 && trails == 0 {
			continue
		}
		m.Append(s, d)
		k := m.N - 1
		if k > 0 && trailingOfResult>>(k-1)&1 == trails && m.merges(k-1) {
			m.Extent[k-1] *= m.Extent[k]
			for i := range m.Stride {
				m.Stride[i][k-1] = m.Stride[i][k]
			}
			m.N--
			continue
		}
		trailingOfResult |= trails << k
	}
	return m, trailingOfResult
}

// sorted orders dimensions by descending stride of operand o, so that its memory order becomes the
// iteration order.
func (s *Space) sorted(o int) *Space {
	var a Space
	order := make([]int, 0, tensor.MaxRank)
	for d := range s.N {
		at := len(order)
		order = append(order, d)
		for at > 0 && num.Abs(s.Stride[o][order[at-1]]) < num.Abs(s.Stride[o][d]) {
			order[at] = order[at-1]
			at--
		}
		order[at] = d
	}
	for _, d := range order {
		a.Append(s, d)
	}
	return &a
}

// View is the memory layout of one operand over some dimensions of a space.
type View struct {
	N       int // number of dimensions
	Extent  [tensor.MaxRank]int64
	Stride  [tensor.MaxRank]int64 // in elements
	Regular bool                  // element k is at offset k * Step
	Step    int64                 // stride of the fastest dimension in elements
}

// View is the layout of an operand over dimensions low..high-1, and over the fastest dimension too
// if fastest is set.
func (s *Space) View(operand, low, high int, fastest bool) View {
	var v View
	for d := low; d < s.N; d++ {
		if d < high || fastest && d == s.N-1 {
			v.Extent[v.N], v.Stride[v.N] = s.Extent[d], s.Stride[operand][d]
			v.N++
		}
	}
	v.Regular = true
	if v.N > 0 {
		v.Step = v.Stride[v.N-1]
	}
	for d := 0; d+1 < v.N; d++ {
		v.Regular = v.Regular && v.Stride[d] == v.Stride[d+1]*v.Extent[d+1]
	}
	return v
}

// Repeats reports whether an operand is dense along the fastest dimension and constant along the
// others.
func (s *Space) Repeats(operand int) bool {
	for d, stride := range s.Stride[operand][:s.N] {
		if d < s.N-1 && stride != 0 && s.Extent[d] != 1 || d == s.N-1 && stride != 1 {
			return false
		}
	}
	return true
}

// VisitRuns visits the elements start..start+n-1 in runs of one stride: at counts from start,
// offset is in elements of the operand.
func (v *View) VisitRuns(start, n int64, visit func(at, offset, count, step int64)) {
	if v.Regular {
		visit(0, start*v.Step, n, v.Step)
		return
	}
	var index [tensor.MaxRank]int64
	offset, rest := int64(0), start
	for d := v.N - 1; d >= 0; d-- {
		index[d] = rest % v.Extent[d]
		rest /= v.Extent[d]
		offset += index[d] * v.Stride[d]
	}
	last := v.N - 1
	for at := int64(0); at < n; {
		count := min(v.Extent[last]-index[last], n-at)
		visit(at, offset, count, v.Stride[last])
		at += count
		index[last] += count
		offset += count * v.Stride[last]
		for d := last; d > 0 && index[d] == v.Extent[d]; d-- {
			offset += v.Stride[d-1] - index[d]*v.Stride[d]
			index[d] = 0
			index[d-1]++
		}
	}
}

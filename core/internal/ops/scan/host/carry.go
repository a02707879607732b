package host

import (
	"math"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file converts the carries of chunks between tensors and the states of runs. carry.go of
// package scan describes the tensors.

// carryForm is how the carries of a kind are stored and combined.
type carryForm struct {
	// read and write convert the numbers of a row to the prefix of a forward scan and back, except
	// for the boundary of cummax and cummin.
	read  func(numbers []float64) forwardState
	write func(s forwardState, numbers []float64)
	// toPrefix converts the prefix of a forward scan to that of its gradient.
	toPrefix func(s forwardState) state
	// identity is the suffix map of no positions.
	identity suffixMap
	// extend is the coefficient of a lane followed by others, whose coefficient is after. before is
	// the prefix of the lane.
	extend func(before, aggregate state, first bool, after state) state
	// usesAggregates reports whether extend reads the aggregate of the lane.
	usesAggregates bool
	// compose is the map of a chunk followed by that of the chunks after it.
	compose func(left, right suffixMap) suffixMap
	// readMap and writeMap convert the numbers of a row to a suffix map and back.
	readMap  func(numbers []float64) suffixMap
	writeMap func(m suffixMap, numbers []float64)
}

// suffixMap maps the suffix that enters a chunk on its right to the suffix at its beginning. suffix
// is the result for a suffix of 0, and coefficient tells the result for a suffix q:
//
//	cumsum         0, 0  suffix + q
//	cumprod        m, e  suffix + m 2^e q
//	cummax, cummin 1, 0  suffix + q
//	               0, 0  suffix: the chunk has a new running maximum
//	logcumsumexp   m, 0  suffix + exp(m - m') q, where q is relative to m'. m is the largest x
//	                     before the chunk; NaN if it has no positions
type suffixMap struct {
	coefficient state
	suffix      float64
}

// carryRows is the number of rows of carries, empty rows included.
func (s *Scan) carryRows() int64 {
	rows := int64(1)
	for d, extent := range s.Shape {
		if d != s.Dim {
			rows *= extent
		}
	}
	return rows
}

// carryView is the layout of all numbers of a carry.
func carryView(t *tensor.Tensor) (v cpu.View, count int64) {
	space := cpu.Space{N: int(t.NDim)}
	copy(space.Extent[:], t.Extents())
	copy(space.Stride[0][:], t.ElementStrides())
	return space.View(0, 0, space.N, false), space.Size(0, space.N)
}

// readNumbers are the numbers of a carry in the order of its dimensions, and the count for each
// row. There are none if it is left out.
func readNumbers(t *tensor.Tensor) (numbers []float64, size int64) {
	if !t.Given() || t.Empty() {
		return nil, 1
	}
	v, count := carryView(t)
	numbers = make([]float64, count)
	v.VisitRuns(0, count, func(at, offset, count, step int64) {
		for i := range count {
			numbers[at+i] = *numberAt(t, offset+i*step)
		}
	})
	return numbers, t.Extents()[t.NDim-1]
}

// writeCarry sets the numbers of each row of a carry.
func writeCarry(t *tensor.Tensor, set func(row int64, numbers []float64)) {
	v, count := carryView(t)
	numbers, size := make([]float64, count), t.Extents()[t.NDim-1]
	for row := range count / size {
		set(row, numbers[row*size:(row+1)*size])
	}
	v.VisitRuns(0, count, func(at, offset, count, step int64) {
		for i := range count {
			*numberAt(t, offset+i*step) = numbers[at+i]
		}
	})
}

// numberAt is the number at an offset in elements.
func numberAt(t *tensor.Tensor, offset int64) *float64 {
	return &cpu.Elements[float64](t, offset, 1, 1)[0]
}

// prefixes combines the carries that enter a chunk. boundaries are those of cummax and cummin.
func (s *Scan) prefixes(carryIn *tensor.Tensor, rows int64) (states []forwardState, boundaries []int64) {
	states = make([]forwardState, rows)
	for row := range states {
		states[row] = s.Recurrence.forwardInitial
	}
	if s.Recurrence.replaces != nil {
		boundaries = make([]int64, rows)
		for row := range boundaries {
			if s.IsReversed {
				boundaries[row] = s.Length()
			}
		}
	}
	numbers, size := readNumbers(carryIn)
	for row := int64(0); len(numbers) > 0; row, numbers = (row+1)%rows, numbers[size:] {
		next := s.Recurrence.carries.read(numbers[:size])
		states[row] = s.Recurrence.forwardCombine(states[row], next, s.FirstWins)
		if boundaries != nil {
			boundaries[row] = int64(numbers[size-1])
		}
	}
	return states, boundaries
}

// suffixMaps composes the maps of the chunks after a chunk, from the last to the nearest.
func (s *Scan) suffixMaps(carryOut *tensor.Tensor, rows int64) []suffixMap {
	form, maps := s.Recurrence.carries, make([]suffixMap, rows)
	for row := range maps {
		maps[row] = form.identity
	}
	numbers, size := readNumbers(carryOut)
	for i := int64(len(numbers))/size - 1; i >= 0; i-- {
		row := i % rows
		maps[row] = form.compose(form.readMap(numbers[i*size:(i+1)*size]), maps[row])
	}
	return maps
}

// ------------------------------------------------------------------------------------------ cumsum

var sumCarries = carryForm{
	read:     func(numbers []float64) forwardState { return forwardState{numbers[0]} },
	write:    func(s forwardState, numbers []float64) { numbers[0] = s[0] + s[1] },
	toPrefix: func(forwardState) state { return state{} },
	extend:   func(_, _ state, _ bool, after state) state { return after },
	compose:  func(left, right suffixMap) suffixMap { return suffixMap{suffix: left.suffix + right.suffix} },
	readMap:  func(numbers []float64) suffixMap { return suffixMap{suffix: numbers[0]} },
	writeMap: func(m suffixMap, numbers []float64) { numbers[0] = m.suffix },
}

// ----------------------------------------------------------------------------------------- cumprod

// An infinite x makes the map of a chunk a step function, and no affine map. A map of which x has
// an infinity is exact for a suffix of 0, and therefore where chunks are computed one after the
// other, each from the map of all later ones. In a composition of maps of single chunks the formula
// holds: inf - inf is NaN even where the step function is infinite. The coefficient of float32 and
// of 16 bits leaves the range of float64 where the product of a chunk does.
var productCarries = carryForm{
	read: func(numbers []float64) forwardState {
		p := normalized(numbers[0], numbers[1])
		return forwardState{p[0], p[1]}
	},
	write: func(s forwardState, numbers []float64) { writeScaled(state{s[0], s[1]}, numbers) },
	toPrefix: func(s forwardState) state {
		return state{s[0], s[1]}
	},
	identity: suffixMap{coefficient: state{1, 0}},
	extend: func(_, aggregate state, _ bool, after state) state {
		return scaledProduct(aggregate, after)
	},
	usesAggregates: true,
	compose: func(left, right suffixMap) suffixMap {
		return suffixMap{scaledProduct(left.coefficient, right.coefficient), left.suffix + scaledBy(left.coefficient, right.suffix)}
	},
	readMap: func(numbers []float64) suffixMap {
		if len(numbers) == 2 {
			return suffixMap{normalized(numbers[0], 0), numbers[1]}
		}
		suffix := normalized(numbers[2], numbers[3])
		return suffixMap{normalized(numbers[0], numbers[1]), math.Ldexp(suffix[0], int(suffix[1]))}
	},
	writeMap: func(m suffixMap, numbers []float64) {
		if len(numbers) == 2 {
			numbers[0], numbers[1] = nonzero(m.coefficient), m.suffix
			return
		}
		writeScaled(m.coefficient, numbers)
		writeScaled(normalized(m.suffix, 0), numbers[2:])
	},
}

// normalized is m 2^e with m in [0.5, 1); zero, infinity and NaN stay themselves.
func normalized(m, e float64) state {
	fraction, more := math.Frexp(m)
	if m == 0 || m-m != 0 {
		return state{m, 0}
	}
	return state{fraction, e + float64(more)}
}

// writeScaled writes a product as m, e with m in [1, 2); the e of zero, infinity and NaN is 0.
func writeScaled(p state, numbers []float64) {
	if p = normalized(p[0], p[1]); p[0] != 0 && p[0]-p[0] == 0 {
		p = state{2 * p[0], p[1] - 1}
	}
	numbers[0], numbers[1] = p[0], p[1]
}

// nonzero is a product as one number. An underflow becomes the least number, since a factor of
// exactly 0 would cut off infinities.
func nonzero(p state) float64 {
	v := math.Ldexp(p[0], int(p[1]))
	if v == 0 && p[0] != 0 {
		return math.Copysign(math.SmallestNonzeroFloat64, p[0])
	}
	return v
}

// ---------------------------------------------------------------------------------- cummax, cummin

// recordCarries are those of a maximum (sign 1) or a minimum (sign -1), whose states have the signs
// of values changed.
func recordCarries(sign float64) *carryForm {
	return &carryForm{
		read: func(numbers []float64) forwardState {
			if index := numbers[1]; index != index {
				return forwardState{} // no elements
			}
			return forwardState{sign * numbers[0], 1, math.Float64frombits(uint64(int64(numbers[1])))}
		},
		write: func(s forwardState, numbers []float64) {
			if numbers[0], numbers[1] = sign*math.Inf(-1), math.NaN(); s[1] != 0 {
				numbers[0], numbers[1] = sign*s[0], float64(int64(math.Float64bits(s[2])))
			}
		},
		toPrefix: func(s forwardState) state { return state{s[0], s[1]} },
		identity: suffixMap{coefficient: state{1}},
		extend: func(before, aggregate state, first bool, after state) state {
			if beats(before, aggregate, first) {
				return state{}
			}
			return after
		},
		usesAggregates: true,
		compose: func(left, right suffixMap) suffixMap {
			if left.coefficient[0] == 0 {
				return left
			}
			return suffixMap{right.coefficient, left.suffix + right.suffix}
		},
		readMap:  func(numbers []float64) suffixMap { return suffixMap{state{numbers[1]}, numbers[0]} },
		writeMap: func(m suffixMap, numbers []float64) { numbers[0], numbers[1] = m.suffix, m.coefficient[0] },
	}
}

// ------------------------------------------------------------------------------------ logcumsumexp

var logSumCarries = carryForm{
	// The state of no elements has a t of 0, from which the C loops start. A t of NaN stays.
	read: func(numbers []float64) forwardState {
		switch m, t := numbers[0], numbers[1]; {
		case m != m || t != t:
			return forwardState{math.Inf(-1), math.NaN()}
		case m == math.Inf(-1):
			return forwardState{m}
		default:
			return forwardState{m, t}
		}
	},
	write: func(s forwardState, numbers []float64) {
		if numbers[0], numbers[1] = s[0], s[1]+s[2]; s[0] == math.Inf(-1) && s[1] == s[1] {
			numbers[1] = -1
		}
	},
	toPrefix: func(s forwardState) state {
		if s[0] == math.Inf(-1) && s[1] == s[1] {
			return state{s[0], 0}
		}
		return state{s[0], 1 + (s[1] + s[2])}
	},
	identity: suffixMap{coefficient: state{math.NaN()}},
	extend:   func(before, _ state, _ bool, _ state) state { return state{before[0]} },
	compose: func(left, right suffixMap) suffixMap {
		switch l, r := left.coefficient[0], right.coefficient[0]; {
		case l != l:
			return right
		case right.suffix == 0 || r != r:
			return left
		case l == r:
			return suffixMap{left.coefficient, left.suffix + right.suffix}
		default:
			return suffixMap{left.coefficient, left.suffix + float64(right.suffix*exponential(l, r))}
		}
	},
	readMap:  func(numbers []float64) suffixMap { return suffixMap{state{numbers[0]}, numbers[1]} },
	writeMap: func(m suffixMap, numbers []float64) { numbers[0], numbers[1] = m.coefficient[0], m.suffix },
}

package core

import "math"

// Every scan is two walks over a row. The forward one carries a state E over x; element i turns the state before it into a weight
// w[i] and a link c[i]. The reverse one is an affine recurrence, and dx is a product:
//
//	R[i] = dy[i] + c[i+1] R[i+1],  dx[i] = w[i] R[i]
//
//	               E                      w              c
//	cumsum         nothing                1              1
//	cumprod        product before i       E              x[i]
//	cummax, cummin the winner before i    x[i] wins      x[i] does not win
//	logcumsumexp   m, s: y = m + log s    exp(x[i] - y)  exp(y' - y), y' before i
//
// All of it is done in float64. A row that is cut into parts hands a state from part to part on the way forward, and on the way
// back each part is an affine map of what enters from its right.

// state is E; the zero state stands before the first element.
type state struct {
	product scaled  // cumprod
	value   float64 // cummax, cummin: the winner; logcumsumexp: m
	count   float64 // logcumsumexp: s; cummax, cummin: nothing, some number or a NaN seen
}

// What a state of cummax and cummin has seen.
const (
	seenNothing = iota
	seenNumber
	seenNaN
)

// affine is what a part does to the value c R that enters from its right.
type affine struct {
	factor scaled
	shift  float64
}

// recurrence is the arithmetic of one kind.
type recurrence struct {
	// fold is the state after x; nil: the kind reads no x.
	fold func(from state, x []float64, first bool) state
	// weights fills w and c of the elements of x.
	weights func(from state, x, w, c []float64, first bool)
	// suffix walks back from the value that enters from the right, leaves dx in place of dy, and returns the value that leaves.
	suffix func(entering float64, dy, w, c []float64) float64
	// combine is the state after two parts.
	combine func(left, right state, first bool) state
	// cross applies a part's map.
	cross func(a affine, entering float64) float64
}

// scaled is m 2^e: products of many numbers leave the range of float64 where the whole does not.
type scaled struct {
	m float64
	e int
}

var unit = scaled{1, 0}

const wide = 0x1p400

// times is s x, where a product of zero and infinity is zero.
func (s scaled) times(x scaled) scaled {
	p := scaled{cut(s.m, x.m), s.e + x.e}
	if a := math.Abs(p.m); (a > wide || a < 1/wide) && a != 0 && !math.IsInf(a, 0) {
		fraction, e := math.Frexp(p.m)
		p = scaled{fraction, p.e + e}
	}
	return p
}

func scale(x float64) scaled { return scaled{1, 0}.timesNumber(x) }

func (s scaled) timesNumber(x float64) scaled {
	if a := math.Abs(x); a > wide || a < 1/wide {
		fraction, e := math.Frexp(x) // zero, infinity and NaN stay themselves
		return s.times(scaled{fraction, e})
	}
	return s.times(scaled{x, 0})
}

func (s scaled) number() float64 { return math.Ldexp(s.m, s.e) }

// cut is a b, where zero cuts infinity, but not NaN.
func cut(a, b float64) float64 {
	p := a * b
	if p != p && (a == 0 || b == 0) && a == a && b == b {
		return 0
	}
	return p
}

// ------------------------------------------------------------------------------------------------ cumsum

func sumSuffix(entering float64, dy, _, _ []float64) float64 {
	for i := len(dy) - 1; i >= 0; i-- {
		entering += dy[i]
		dy[i] = entering
	}
	return entering
}

// ------------------------------------------------------------------------------------------------ cumprod

func productFold(from state, x []float64, _ bool) state {
	p := from.product
	if p == (scaled{}) {
		p = unit
	}
	for _, value := range x {
		p = p.timesNumber(value)
	}
	return state{product: p, count: 1}
}

func productWeights(from state, x, w, c []float64, _ bool) {
	before := 1.0
	if from.count != 0 {
		before = from.product.number()
	}
	w = w[:len(x)]
	for i, value := range x {
		w[i] = before
		before = cut(before, value)
	}
	copy(c, x)
}

func productCombine(left, right state, _ bool) state {
	if left.count == 0 {
		return right
	}
	return state{product: left.product.times(right.product), count: 1}
}

func cutSuffix(entering float64, dy, w, c []float64) float64 {
	w, c = w[:len(dy)], c[:len(dy)]
	for i := len(dy) - 1; i >= 0; i-- {
		r := dy[i] + entering
		entering = cut(c[i], r)
		dy[i] = cut(w[i], r)
	}
	return entering
}

func cutCross(a affine, entering float64) float64 {
	return a.shift + a.factor.timesNumber(entering).number()
}

// ------------------------------------------------------------------------------------------------ cummax, cummin

// wins reports that x, scanned after a state, becomes the winner; it is written for the maximum.
func wins(s *state, x float64, first bool) bool {
	switch {
	case x != x:
		return !first || s.count != seenNaN
	case s.count == seenNaN:
		return false
	case s.count == seenNothing:
		return true
	case first:
		return x > s.value
	}
	return x >= s.value
}

func (s *state) win(x float64) {
	s.value, s.count = x, seenNumber
	if x != x {
		s.count = seenNaN
	}
}

func recordFold(sign float64) func(state, []float64, bool) state {
	return func(s state, x []float64, first bool) state {
		for _, value := range x {
			if value *= sign; wins(&s, value, first) {
				s.win(value)
			}
		}
		return s
	}
}

func recordWeights(sign float64) func(state, []float64, []float64, []float64, bool) {
	return func(s state, x, w, c []float64, first bool) {
		w, c = w[:len(x)], c[:len(x)]
		for i, value := range x {
			w[i], c[i] = 0, 1
			if value *= sign; wins(&s, value, first) {
				s.win(value)
				w[i], c[i] = 1, 0
			}
		}
	}
}

func recordCombine(left, right state, first bool) state {
	if right.count == seenNothing {
		return left
	}
	if left.count == seenNothing || wins(&left, right.value, first) {
		return right
	}
	return left
}

// chosenSuffix selects instead of multiplying, so that an infinity or a NaN stays in its own run.
func chosenSuffix(entering float64, dy, w, c []float64) float64 {
	w, c = w[:len(dy)], c[:len(dy)]
	for i := len(dy) - 1; i >= 0; i-- {
		entering += dy[i]
		if dy[i] = 0; c[i] == 0 {
			dy[i], entering = entering, 0
		}
	}
	return entering
}

func chosenCross(a affine, entering float64) float64 {
	if a.factor.m == 0 {
		return a.shift
	}
	return a.shift + entering
}

// ------------------------------------------------------------------------------------------------ logcumsumexp

// soften adds x to a state: m is the running maximum, s the sum of exp(x - m). It returns exp(x - y) and exp(y' - y).
func (e *state) soften(x float64) (w, c float64) {
	switch {
	case math.IsInf(x, -1):
		return 0 * e.count, 1
	case x <= e.value && e.count != 0:
		d := 1.0 // equal infinities share equally
		if x != e.value {
			d = math.Exp(x - e.value)
		}
		sum := e.count + d
		c = e.count / sum
		e.count = sum
		return d / sum, c
	}
	kept := 0.0
	if e.count != 0 {
		kept = e.count * math.Exp(e.value-x)
	}
	e.value, e.count = x, kept+1
	return 1 / e.count, kept / e.count
}

func softFold(e state, x []float64, _ bool) state {
	for _, value := range x {
		e.soften(value)
	}
	return e
}

func softWeights(e state, x, w, c []float64, _ bool) {
	w, c = w[:len(x)], c[:len(x)]
	for i, value := range x {
		w[i], c[i] = e.soften(value)
	}
}

func softCombine(left, right state, _ bool) state {
	switch {
	case right.count == 0:
		return left
	case left.count == 0:
		return right
	case left.value == right.value:
		return state{value: left.value, count: left.count + right.count}
	case left.value > right.value:
		left, right = right, left
	}
	return state{value: right.value, count: right.count + left.count*math.Exp(left.value-right.value)}
}

func plainSuffix(entering float64, dy, w, c []float64) float64 {
	w, c = w[:len(dy)], c[:len(dy)]
	for i := len(dy) - 1; i >= 0; i-- {
		r := dy[i] + entering
		entering = c[i] * r
		dy[i] = w[i] * r
	}
	return entering
}

func plainCross(a affine, entering float64) float64 { return a.shift + a.factor.number()*entering }

package host

// #cgo CFLAGS: -O2 -I${SRCDIR}/../../../cpu
// #include "scan.h"
import "C"

import "math"

// A row that is cut into parts hands a state from part to part on the way forward; on the way back each part is an affine map of
// what enters from its right. The recurrences themselves are those of scan_kinds.c; here is how parts are put together.

// state is what stands before a position, two numbers that scan.h explains.
type state [2]float64

// recurrence is what happens between the parts of one kind.
type Recurrence struct {
	loops   [2]int64 // in C: where the last of equal values wins, and the first
	initial state    // before the first position of a row
	folds   bool     // the fold of a part finds what leaves it, which does not depend on the state before it
	bends   bool     // an infinity in a part makes of it something else than an affine map
	// wins reports, of kinds that select, that some position of a part wins where before stands to its left.
	wins func(before, part state, first bool) bool
	// combine is the state after two parts.
	combine func(left, right state, first bool) state
	// enter is a state as the loops take it.
	enter func(before state) state
	// cross is what a part makes of the value that enters from its right, where before stands to its left.
	cross func(before, part state, first bool, entering float64) float64
}

func asItIs(s state) state { return s }

// ------------------------------------------------------------------------------------------------ cumsum

var Sums = Recurrence{loops: [2]int64{C.SCAN_SUM, C.SCAN_SUM}, folds: true, enter: asItIs,
	combine: func(left, _ state, _ bool) state { return left },
	cross:   func(_, _ state, _ bool, entering float64) float64 { return entering }}

// ------------------------------------------------------------------------------------------------ cumprod

var Products = Recurrence{loops: [2]int64{C.SCAN_PRODUCT, C.SCAN_PRODUCT}, initial: state{1, 0}, folds: true, bends: true,
	combine: func(left, right state, _ bool) state { return scaledProduct(left, right) },
	enter:   func(s state) state { return state{math.Ldexp(s[0], int(s[1])), 0} },
	cross: func(_, part state, _ bool, entering float64) float64 {
		fraction, e := math.Frexp(entering)
		p := scaledProduct(part, state{fraction, float64(e)})
		return math.Ldexp(p[0], int(p[1]))
	}}

// scaledProduct multiplies m 2^e: a product of many numbers leaves the range of float64 where the whole does not.
func scaledProduct(a, b state) state {
	fraction, e := math.Frexp(cut(a[0], b[0])) // zero, infinity and NaN stay themselves
	return state{fraction, a[1] + b[1] + float64(e)}
}

// cut is a b, where zero cuts infinity, but not NaN.
func cut(a, b float64) float64 {
	if p := a * b; p == p || a != a || b != b {
		return p
	}
	return 0
}

// ------------------------------------------------------------------------------------------------ cummax, cummin

var (
	Maxima = records(C.SCAN_MAX_LAST, C.SCAN_MAX_FIRST)
	Minima = records(C.SCAN_MIN_LAST, C.SCAN_MIN_FIRST)
)

func records(last, first int64) Recurrence {
	return Recurrence{loops: [2]int64{last, first}, enter: asItIs, wins: beats, cross: selected(beats),
		combine: func(left, right state, first bool) state {
			if beats(left, right, first) {
				return right
			}
			return left
		}}
}

// selected is what crosses a part where nothing wins.
func selected(wins func(before, part state, first bool) bool) func(before, part state, first bool, entering float64) float64 {
	return func(before, part state, first bool, entering float64) float64 {
		if wins(before, part, first) {
			return 0
		}
		return entering
	}
}

// beats reports that the winner of a part wins over the one before it. Minima come with their signs changed.
func beats(before, part state, first bool) bool {
	x, best := part[0], before[0]
	switch {
	case before[1] == 0:
		return true
	case x != x:
		return !first || best == best
	case first:
		return x > best
	}
	return x >= best
}

// choices are the recurrence of indices that a scan returned: a part has a winner or none.
var choices = Recurrence{enter: asItIs, folds: true, wins: chosen, cross: selected(chosen)}

func chosen(_, part state, _ bool) bool { return part[1] != 0 }

// ------------------------------------------------------------------------------------------------ logcumsumexp

var LogSums = Recurrence{loops: [2]int64{C.SCAN_SOFT, C.SCAN_SOFT}, initial: state{math.Inf(-1), 0}, enter: asItIs,
	combine: func(left, right state, _ bool) state {
		m := math.Max(left[0], right[0])
		return state{m, share(left, m) + share(right, m)}
	},
	cross: func(before, part state, _ bool, entering float64) float64 {
		// Values count in units of the largest x so far.
		return share(state{before[0], min(before[1], 1)}, math.Max(before[0], part[0])) * entering
	}}

// share is the sum of a state under another maximum; equal infinities share equally.
func share(s state, m float64) float64 {
	if s[1] == 0 || s[0] == m {
		return s[1]
	}
	return s[1] * exponential(s[0], m)
}

// exponential is exp(x - from), with what rounding takes from the difference.
func exponential(x, from float64) float64 {
	d := x - from
	part := d - x
	lost := (x - (d - part)) - (from + part)
	e := math.Exp(d)
	if less := float64(e * lost); less-less == 0 { // the conversion keeps compilers from fusing it with the sum
		return e + less
	}
	return e
}

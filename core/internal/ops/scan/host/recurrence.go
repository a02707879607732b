package host

// #cgo CFLAGS: -O2
// #include "scan.h"
import "C"

import "math"

// Splits of a row are combined here: prefixes by an associative operator from left to right,
// suffixes by affine maps of the carry-in from right to left. The recurrences within a split are in
// kinds.c.

// state is the prefix before a position: two numbers, which scan.h defines for each kind.
type state [2]float64

// Recurrence combines the splits of a row of one kind: of its gradient, and of the scan itself.
type Recurrence struct {
	loops               [2]int64 // scan_kind of the C loops: of equal values the last is the record, or the first
	initial             state    // identity: the prefix before the first position of a row
	suffixIgnoresPrefix bool     // the suffix of a split does not depend on its prefix: one upsweep computes both
	mayLeaveRange       bool     // with an infinity in a split, its suffix is not an affine function of the carry-in
	// replaces reports whether a split has a new running maximum after a prefix; nil: the kind is
	// not cummax or cummin.
	replaces func(before, aggregate state, first bool) bool
	// combine is the associative operator of prefixes.
	combine func(left, right state, first bool) state
	// toCarryIn converts a prefix to the form of the C loops.
	toCarryIn func(before state) state
	// applySuffix maps the carry-in on the right of a split to the linear part of its suffix, after
	// a prefix.
	applySuffix func(before, aggregate state, first bool, carryIn float64) float64
	// forwardInitial and forwardCombine are the identity and the associative operator of the
	// prefixes of a forward scan, which hold its results.
	forwardInitial forwardState
	forwardCombine func(left, right forwardState, first bool) forwardState
	hasNarrow      bool // narrow.c has code for the forward scan
	// splitsFewRowsMore cuts few rows of a forward scan into shorter splits. Where arithmetic takes
	// the time, two sweeps of a full group of lanes are faster than one of a mostly empty group.
	splitsFewRowsMore bool
	carries           *carryForm // of chunks of rows
}

// Identity is the identity of the operator, which is the scan of no positions.
func (r *Recurrence) Identity() float64 { return r.forwardInitial[0] }

func asItIs(s state) state { return s }

// ------------------------------------------------------------------------------------------ cumsum

var Sums = Recurrence{loops: [2]int64{C.SCAN_SUM, C.SCAN_SUM}, suffixIgnoresPrefix: true, toCarryIn: asItIs,
	combine:        func(left, _ state, _ bool) state { return left },
	applySuffix:    func(_, _ state, _ bool, carryIn float64) float64 { return carryIn },
	forwardCombine: combineSums, hasNarrow: true, carries: &sumCarries}

// combineSums adds sums and their rounding errors (Knuth's TwoSum).
func combineSums(left, right forwardState, _ bool) forwardState {
	sum, rounding := twoSum(left[0], right[0])
	rounding += left[1] + right[1]
	if rounding-rounding != 0 {
		rounding = 0
	}
	return forwardState{sum, rounding}
}

// twoSum is a + b and its rounding error.
func twoSum(a, b float64) (sum, rounding float64) {
	sum = a + b
	part := sum - b
	return sum, (a - part) + (b - (sum - part))
}

// ----------------------------------------------------------------------------------------- cumprod

var Products = Recurrence{loops: [2]int64{C.SCAN_PRODUCT, C.SCAN_PRODUCT}, initial: state{1, 0},
	suffixIgnoresPrefix: true, mayLeaveRange: true,
	combine:   func(left, right state, _ bool) state { return scaledProduct(left, right) },
	toCarryIn: func(s state) state { return state{math.Ldexp(s[0], int(s[1])), 0} },
	applySuffix: func(_, aggregate state, _ bool, carryIn float64) float64 {
		return scaledBy(aggregate, carryIn)
	},
	forwardInitial: forwardState{1}, forwardCombine: combineProducts, hasNarrow: true, carries: &productCarries}

// scaledBy is the product of m 2^e and a number.
func scaledBy(p state, v float64) float64 {
	fraction, e := math.Frexp(v)
	p = scaledProduct(p, state{fraction, float64(e)})
	return math.Ldexp(p[0], int(p[1]))
}

// scaledProduct multiplies numbers m 2^e: the product of a split may leave the range of float64
// where the product of the row does not.
func scaledProduct(a, b state) state {
	fraction, e := math.Frexp(zeroProduct(a[0], b[0])) // zero, infinity and NaN stay themselves
	return state{fraction, a[1] + b[1] + float64(e)}
}

// zeroProduct is a b, but 0 for zero times infinity.
func zeroProduct(a, b float64) float64 {
	if p := a * b; p == p || a != a || b != b {
		return p
	}
	return 0
}

// combineProducts multiplies numbers m 2^e.
func combineProducts(left, right forwardState, _ bool) forwardState {
	p := scaledProduct(state{left[0], left[1]}, state{right[0], right[1]})
	return forwardState{p[0], p[1]}
}

// ---------------------------------------------------------------------------------- cummax, cummin

var (
	Maxima = records(C.SCAN_MAX_LAST, C.SCAN_MAX_FIRST, 1)
	Minima = records(C.SCAN_MIN_LAST, C.SCAN_MIN_FIRST, -1)
)

func records(last, first int64, sign float64) Recurrence {
	return Recurrence{loops: [2]int64{last, first}, toCarryIn: asItIs, replaces: beats, applySuffix: selected(beats),
		combine: func(left, right state, first bool) state {
			if beats(left, right, first) {
				return right
			}
			return left
		},
		forwardCombine: combineRecords, hasNarrow: true, carries: recordCarries(sign)}
}

// selected passes the carry-in through a split without a new running maximum.
func selected(
	replaces func(before, aggregate state, first bool) bool,
) func(before, aggregate state, first bool, carryIn float64) float64 {
	return func(before, aggregate state, first bool, carryIn float64) float64 {
		if replaces(before, aggregate, first) {
			return 0
		}
		return carryIn
	}
}

// beats reports whether the maximum of a split replaces the running maximum before it. Minima have
// their signs changed.
func beats(before, aggregate state, first bool) bool {
	x, best := aggregate[0], before[0]
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

// indexRecurrence is the recurrence by indices that a scan returned.
var indexRecurrence = Recurrence{toCarryIn: asItIs, suffixIgnoresPrefix: true, replaces: hasRecordFlag,
	applySuffix: selected(hasRecordFlag)}

func hasRecordFlag(_, aggregate state, _ bool) bool { return aggregate[1] != 0 }

// combineRecords is the maximum of two splits with its index. Carries may have no elements.
func combineRecords(left, right forwardState, first bool) forwardState {
	if right[1] != 0 && beats(state{left[0], left[1]}, state{right[0], right[1]}, first) {
		return right
	}
	return left
}

// ------------------------------------------------------------------------------------ logcumsumexp

// logcumsumexp has no code in narrow.c, as its time is that of exponentials.
var LogSums = Recurrence{loops: [2]int64{C.SCAN_LOG_SUM, C.SCAN_LOG_SUM}, initial: state{math.Inf(-1), 0}, toCarryIn: asItIs,
	combine: func(left, right state, _ bool) state {
		m := math.Max(left[0], right[0])
		return state{m, rescale(left, m) + rescale(right, m)}
	},
	applySuffix: func(before, aggregate state, _ bool, carryIn float64) float64 {
		// A suffix is relative to the running maximum of x; rescale changes the reference.
		return rescale(state{before[0], min(before[1], 1)}, math.Max(before[0], aggregate[0])) * carryIn
	},
	forwardInitial: forwardState{math.Inf(-1)}, forwardCombine: combineLogSums, splitsFewRowsMore: true, carries: &logSumCarries}

// rescale is the sum of a state relative to another maximum; equal infinities keep it.
func rescale(s state, m float64) float64 {
	if s[1] == 0 || s[0] == m {
		return s[1]
	}
	return s[1] * exponential(s[0], m)
}

// exponential is exp(x - from), corrected for the rounding error of the difference.
func exponential(x, from float64) float64 {
	d := x - from
	part := d - x
	rounding := (x - (d - part)) - (from + part)
	e := math.Exp(d)
	// The conversion keeps compilers from fusing the product with the sum.
	if correction := float64(e * rounding); correction-correction == 0 {
		return e + correction
	}
	return e
}

// combineLogSums adds sums exp(m) (1 + t), the larger m first: its own term stays the 1 of the
// result.
func combineLogSums(left, right forwardState, _ bool) forwardState {
	if right[0] > left[0] {
		left, right = right, left
	}
	scale := 1.0
	if right[0] != left[0] {
		scale = exponential(right[0], left[0])
	}
	if right[0] == math.Inf(-1) {
		scale = 0 * (1 + right[1]) // NaN stays
	}
	t, rounding := twoSum(left[1], float64((1+right[1])*scale))
	rounding += left[2] + float64(right[2]*scale)
	if rounding-rounding != 0 {
		rounding = 0
	}
	return forwardState{left[0], t, rounding}
}

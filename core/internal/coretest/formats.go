package coretest

import (
	"math"

	"github.com/sternway/sternway/core/internal/tensor"
)

// Format16 is a 16-bit float by its definition: a sign, an exponent and a fraction of so many bits.
type Format16 struct {
	exponent, fraction int
	Values             [1 << 16]float64 // of every pattern
}

// Formats16 are float16 and bfloat16.
var Formats16 = map[tensor.DType]*Format16{tensor.Float16: newFormat16(5, 10), tensor.BFloat16: newFormat16(8, 7)}

func newFormat16(exponent, fraction int) *Format16 {
	f := &Format16{exponent: exponent, fraction: fraction}
	bias := 1<<(exponent-1) - 1
	for pattern := range f.Values {
		e := pattern >> fraction & (1<<exponent - 1)
		m := float64(pattern & (1<<fraction - 1))
		value := math.Ldexp(m+math.Ldexp(1, fraction), e-bias-fraction)
		switch {
		case e == 1<<exponent-1 && m != 0:
			value = math.NaN()
		case e == 1<<exponent-1:
			value = math.Inf(1)
		case e == 0:
			value = math.Ldexp(m, 1-bias-fraction)
		}
		if pattern>>15 != 0 {
			value = -value
		}
		f.Values[pattern] = value
	}
	return f
}

// Infinity is the pattern that follows the largest number.
func (f *Format16) Infinity() int { return 1<<15 - 1<<f.fraction }

// Nearest is the pattern whose value is nearest to v, the even one of two. Patterns from 0 to
// infinity are ordered as their values are; infinity takes the place of the number that would
// follow the largest.
func (f *Format16) Nearest(v float64) uint16 {
	sign := uint16(0)
	if math.Signbit(v) {
		sign, v = 1<<15, -v
	}
	infinity := f.Infinity()
	switch {
	case math.IsNaN(v):
		return uint16(infinity + 1<<(f.fraction-1))
	case math.IsInf(v, 1):
		return sign | uint16(infinity)
	}
	above := 0 // the first pattern whose value is larger
	for low, high := 0, infinity; low < high; above = low {
		if middle := (low + high) / 2; f.Values[middle] > v {
			high = middle
		} else {
			low = middle + 1
		}
	}
	below := f.Values[above-1]
	next := f.Values[above]
	if above == infinity {
		next = below + (below - f.Values[above-2])
	}
	if v-below > next-v || v-below == next-v && above%2 == 0 {
		return sign | uint16(above)
	}
	return sign | uint16(above-1)
}

// SameNumber compares values as bits, except that every NaN is one.
func SameNumber(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || math.IsNaN(a) && math.IsNaN(b)
}

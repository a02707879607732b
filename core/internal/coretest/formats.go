package coretest

import (
	"math"

	"github.com/sternway/sternway/core/internal/tensor"
)

// NarrowFormat is a float of at most 16 bits by its definition: a sign, an exponent and a fraction.
type NarrowFormat struct {
	tensor.Float
	Values []float64 // of every pattern
}

// NarrowFormats are the floats of at most 16 bits.
var NarrowFormats = narrowFormats()

func narrowFormats() map[tensor.DType]*NarrowFormat {
	formats := map[tensor.DType]*NarrowFormat{}
	for _, row := range tensor.DTypeRows {
		if row.DType.IsNarrow() {
			formats[row.DType] = newNarrowFormat(row.Float)
		}
	}
	return formats
}

func newNarrowFormat(float tensor.Float) *NarrowFormat {
	f := &NarrowFormat{Float: float, Values: make([]float64, 2<<(float.Exponent+float.Fraction))}
	bias := 1<<(f.Exponent-1) - 1
	for pattern := range f.Values {
		magnitude := pattern % f.sign()
		e, m := magnitude>>f.Fraction, float64(magnitude%(1<<f.Fraction))
		value := math.Ldexp(m+math.Ldexp(1, f.Fraction), e-bias-f.Fraction)
		switch {
		case magnitude > f.Infinity():
			value = math.NaN()
		case magnitude == f.Infinity():
			value = math.Inf(1)
		case e == 0:
			value = math.Ldexp(m, 1-bias-f.Fraction)
		}
		if pattern != magnitude {
			value = -value
		}
		f.Values[pattern] = value
	}
	return f
}

// sign is the bit of the sign.
func (f *NarrowFormat) sign() int { return 1 << (f.Exponent + f.Fraction) }

// Infinity is the pattern of infinity, which follows the largest number.
func (f *NarrowFormat) Infinity() int { return f.sign() - 1<<f.Fraction }

// Nearest is the pattern whose value is nearest to v, the even one of two. Patterns from 0 to
// infinity are ordered as their values are; infinity takes the place of the number that would
// follow the largest.
func (f *NarrowFormat) Nearest(v float64) uint16 {
	sign := uint16(0)
	if math.Signbit(v) {
		sign, v = uint16(f.sign()), -v
	}
	infinity := f.Infinity()
	switch {
	case math.IsNaN(v):
		return uint16(infinity | 1<<(f.Fraction-1))
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

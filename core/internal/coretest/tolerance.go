package coretest

import (
	"math"

	"github.com/sternway/sternway/core/internal/tensor"
)

// Rounding is the relative error of one rounding to a floating type.
func Rounding(d tensor.DType) float64 { return d.Format().Epsilon() / 2 }

// Tolerance is the one of every result: a rounding of the type that it is stored in, and G(n) = 4 +
// log2 n roundings of the accumulator for a sum of n terms, relative to their magnitudes.
func Tolerance(stored, accumulator tensor.DType, n int64, want, size float64) float64 {
	g := 4 + math.Log2(float64(max(n, 1)))
	return Rounding(stored)*math.Abs(want) + g*Rounding(accumulator)*size + stored.Format().Smallest()
}

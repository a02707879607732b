package coretest

import (
	"math"

	"github.com/sternway/sternway/core/internal/tensor"
)

// Precision of each floating type: one rounding, relative, and the smallest positive number.
var Precision = map[tensor.DType]struct{ Rounding, least float64 }{
	tensor.Float64:  {0x1p-53, 0x1p-1074},
	tensor.Float32:  {0x1p-24, 0x1p-149},
	tensor.Float16:  {0x1p-11, 0x1p-24},
	tensor.BFloat16: {0x1p-8, 0x1p-133},
}

// Tolerance is the one of every result: a rounding of the type that it is stored in, and G(n) = 4 +
// log2 n roundings of the accumulator for a sum of n terms, relative to their magnitudes.
func Tolerance(stored, accumulator tensor.DType, n int64, want, size float64) float64 {
	g := 4 + math.Log2(float64(max(n, 1)))
	return Precision[stored].Rounding*math.Abs(want) + g*Precision[accumulator].Rounding*size + Precision[stored].least
}

package coretest

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/tensor"
)

func init() {
	normal, positive := (*rand.Rand).NormFloat64, func(r *rand.Rand) float64 { return 0.5 + r.Float64() }
	whole := func(r *rand.Rand) float64 { return math.Round(40 * r.NormFloat64()) }
	shape, data, token, single := []int64{4, 6}, []int64{2, 3, 4}, []int64{2, 3, 1}, Given(tensor.Float32)

	add(operation[elementwise.DequantizePerToken]{
		samples: []elementwise.DequantizePerToken{{Shape: shape, QDType: tensor.Int8, ScaleDType: single}},
		define:  func(elementwise.DequantizePerToken, func(int) bool) *definition { return dequantizeForwardDefinition() },
	})
	add(operation[elementwise.Dequantize]{
		samples: []elementwise.Dequantize{
			{Shape: shape, ScaleShape: []int64{1, 6}, QDType: tensor.Int8, ScaleDType: single},
			{Shape: shape, ScaleShape: []int64{2, 3}, QDType: tensor.Uint8},
			{Shape: shape, ScaleShape: []int64{}, QDType: tensor.Int8},
		},
		define: func(elementwise.Dequantize, func(int) bool) *definition { return dequantizeForwardDefinition() },
		kernels: map[string]problemOf[elementwise.Dequantize]{
			"dequantize_per_channel": func(testing.TB, [4]float64) elementwise.Dequantize { return elementwise.Dequantize{} },
		},
	})
	add(operation[elementwise.DequantizeBackward]{
		samples: []elementwise.DequantizeBackward{
			{Shape: shape, ScaleShape: []int64{1, 6}, QDType: tensor.Int8, ScaleDType: single},
			{Shape: shape, ScaleShape: []int64{2, 3}, QDType: tensor.Uint8},
			{Shape: shape, ScaleShape: shape, QDType: tensor.Int8},
		},
		define: func(elementwise.DequantizeBackward, func(int) bool) *definition { return dequantizeDefinition() },
		kernels: map[string]problemOf[elementwise.DequantizeBackward]{
			"dequantize_per_channel_backward": func(testing.TB, [4]float64) elementwise.DequantizeBackward {
				return elementwise.DequantizeBackward{}
			},
		},
		differences: []difference{
			{"dequantize by block", dequantizeDefinition(), [4][]int64{data, {1, 3, 2}, data, {1, 3, 2}}, [4]draw{normal, positive, whole, normal}},
		},
	})
	add(operation[elementwise.DequantizePerTokenBackward]{
		samples: []elementwise.DequantizePerTokenBackward{
			{Shape: []int64{4, 1}, QDType: tensor.Uint8},
			{Shape: shape, QDType: tensor.Int8, ScaleDType: single},
		},
		define: func(elementwise.DequantizePerTokenBackward, func(int) bool) *definition {
			return dequantizeDefinition()
		},
		differences: []difference{
			{"dequantize", dequantizeDefinition(), [4][]int64{data, token, data, {2, 3}}, [4]draw{normal, positive, whole, normal}},
			{"dequantize symmetric", dequantizeDefinition(), [4][]int64{data, token, data, nil}, [4]draw{normal, positive, whole, nil}},
		},
	})
	add(operation[elementwise.FakeQuantizePerToken]{
		samples: []elementwise.FakeQuantizePerToken{{Shape: shape, QuantMin: -8, QuantMax: 7}},
		values:  fakeQuantizeValues,
		define: func(d elementwise.FakeQuantizePerToken, isFloating func(int) bool) *definition {
			return fakeQuantizeForwardDefinition(float64(d.QuantMin), float64(d.QuantMax), isFloating(2))
		},
		kernels: map[string]problemOf[elementwise.FakeQuantizePerToken]{
			"fake_quantize_per_token": func(_ testing.TB, scalar [4]float64) elementwise.FakeQuantizePerToken {
				return elementwise.FakeQuantizePerToken{QuantMin: int64(scalar[0]), QuantMax: int64(scalar[1])}
			},
		},
	})
	add(operation[elementwise.FakeQuantize]{
		samples: []elementwise.FakeQuantize{
			{Shape: shape, ScaleShape: []int64{1, 6}, QuantMin: -8, QuantMax: 7, ScaleDType: single},
			{Shape: shape, ScaleShape: []int64{4, 2}, QuantMin: -8, QuantMax: 7},
			{Shape: shape, ScaleShape: []int64{}, QuantMax: 15},
		},
		values: fakeQuantizeValues,
		define: func(d elementwise.FakeQuantize, isFloating func(int) bool) *definition {
			return fakeQuantizeForwardDefinition(float64(d.QuantMin), float64(d.QuantMax), isFloating(2))
		},
		kernels: map[string]problemOf[elementwise.FakeQuantize]{
			"fake_quantize_per_channel": func(_ testing.TB, scalar [4]float64) elementwise.FakeQuantize {
				return elementwise.FakeQuantize{QuantMin: int64(scalar[0]), QuantMax: int64(scalar[1])}
			},
		},
	})
	// The bounds lie between two levels: the forward has a kink where a level lies on a bound.
	middle := func(r *rand.Rand) float64 { return 0.3 + 0.1*r.Float64() + float64(r.IntN(60)-30) }
	learned, symmetric := fakeQuantizeDefinition(-8.5, 7.5, true), fakeQuantizeDefinition(-8.5, 7.5, false)
	add(operation[elementwise.FakeQuantizeBackward]{
		samples: []elementwise.FakeQuantizeBackward{
			{Shape: shape, ScaleShape: []int64{2, 6}, QuantMin: -8, QuantMax: 7, ScaleDType: single},
			{Shape: shape, ScaleShape: []int64{4, 3}, QuantMin: -8, QuantMax: 7},
			{Shape: shape, ScaleShape: shape, QuantMax: 15},
		},
		values: fakeQuantizeValues,
		define: func(d elementwise.FakeQuantizeBackward, isFloating func(int) bool) *definition {
			return fakeQuantizeDefinition(float64(d.QuantMin), float64(d.QuantMax), isFloating(3))
		},
		kernels: map[string]problemOf[elementwise.FakeQuantizeBackward]{
			"fake_quantize_per_channel_backward": func(_ testing.TB, scalar [4]float64) elementwise.FakeQuantizeBackward {
				return elementwise.FakeQuantizeBackward{QuantMin: int64(scalar[0]), QuantMax: int64(scalar[1])}
			},
		},
		differences: []difference{
			{"fake quantize by block", learned, [4][]int64{data, data, {2, 1, 2}, {2, 1, 2}}, [4]draw{normal, middle, positive, normal}},
		},
	})
	add(operation[elementwise.FakeQuantizePerTokenBackward]{
		samples: []elementwise.FakeQuantizePerTokenBackward{
			{Shape: []int64{4, 1}, QuantMax: 15},
			{Shape: shape, QuantMin: -8, QuantMax: 7, ScaleDType: single},
		},
		values: fakeQuantizeValues,
		define: func(d elementwise.FakeQuantizePerTokenBackward, isFloating func(int) bool) *definition {
			return fakeQuantizeDefinition(float64(d.QuantMin), float64(d.QuantMax), isFloating(3))
		},
		kernels: map[string]problemOf[elementwise.FakeQuantizePerTokenBackward]{
			"fake_quantize_per_token_backward": func(_ testing.TB, scalar [4]float64) elementwise.FakeQuantizePerTokenBackward {
				return elementwise.FakeQuantizePerTokenBackward{QuantMin: int64(scalar[0]), QuantMax: int64(scalar[1])}
			},
		},
		differences: []difference{
			{"fake quantize", learned, [4][]int64{data, data, {2, 3}, token}, [4]draw{normal, middle, positive, normal}},
			{"fake quantize symmetric", symmetric, [4][]int64{data, data, token, nil}, [4]draw{normal, middle, positive, nil}},
		},
	})
}

// fakeQuantizeValues are multiples of 1/16 over scales that are powers of two, so that x / scale is
// exact, often half way between two levels, and on both sides of the bounds.
var fakeQuantizeValues = map[string]draw{
	"scale": func(r *rand.Rand) float64 { return math.Ldexp(1, r.IntN(4)-2) },
	"x":     func(r *rand.Rand) float64 { return float64(r.IntN(512)-256) / 16 },
}

// Inputs: dy, scale, q, zero_point.
func dequantizeDefinition() *definition {
	return &definition{
		inputs: 4, perToken: []int{1, 3, 5, 6}, gradients: [3]int{2, 1, 3},
		forward: func(in, _ *[4]float64) float64 { return (in[2] - in[3]) * in[1] },
		terms: func(in *[4]float64) [3]Term {
			dy, scale, q, zero := in[0], in[1], in[2], in[3]
			return [3]Term{TermOf(dy * scale), {dy * (q - zero), math.Abs(dy) * (math.Abs(q) + math.Abs(zero))}, TermOf(-scale * dy)}
		},
	}
}

// limitRatio is x / scale, where a scale of 0 is the limit of small ones above it.
func limitRatio(x, scale float64) float64 {
	switch {
	case scale != 0:
		return x / scale
	case x == 0:
		return 0
	}
	return x * math.Inf(1)
}

// Inputs: q, scale, zero_point.
func dequantizeForwardDefinition() *definition {
	return &definition{
		inputs: 3, perToken: []int{1, 2},
		terms: func(in *[4]float64) [3]Term {
			q, scale, zero := in[0], in[1], in[2]
			return [3]Term{{(q - zero) * scale, math.Abs(scale) * (math.Abs(q) + math.Abs(zero))}}
		},
	}
}

// levelsOf returns two functions: clip clamps a level to the bounds; whole rounds and clamps a zero
// point if it is floating.
func levelsOf(low, high float64, floatingZero bool) (clip, whole func(float64) float64) {
	clip = func(t float64) float64 { return math.Max(low, math.Min(t, high)) }
	whole = func(zero float64) float64 {
		if floatingZero {
			return clip(math.RoundToEven(zero))
		}
		return zero
	}
	return clip, whole
}

// Inputs: x, scale, zero_point. Any level times a scale of 0 is 0, that of a NaN aside.
func fakeQuantizeForwardDefinition(low, high float64, floatingZero bool) *definition {
	clip, whole := levelsOf(low, high, floatingZero)
	return &definition{
		inputs: 3, perToken: []int{1, 2},
		terms: func(in *[4]float64) [3]Term {
			scale, zero := in[1], whole(in[2])
			level := clip(math.RoundToEven(limitRatio(in[0], scale)) + zero)
			return [3]Term{{(level - zero) * scale, math.Abs(scale) * (math.Abs(level) + math.Abs(zero))}}
		},
	}
}

// Inputs: dy, x, scale, zero_point.
func fakeQuantizeDefinition(low, high float64, floatingZero bool) *definition {
	clip, whole := levelsOf(low, high, floatingZero)
	return &definition{
		inputs: 4, perToken: []int{2, 3, 5, 6}, gradients: [3]int{1, 2, 3},
		forward: func(in, frozen *[4]float64) float64 {
			ratio, zero := frozen[1]/frozen[2], whole(frozen[3])+in[3]-frozen[3]
			t := math.RoundToEven(ratio) + (in[1]/in[2] - ratio) + zero
			return (clip(t) - zero) * in[2]
		},
		terms: func(in *[4]float64) [3]Term {
			dy, scale, ratio, zero := in[0], in[2], limitRatio(in[1], in[2]), whole(in[3])
			t := math.RoundToEven(ratio) + zero
			size := math.Abs(dy) * (math.Abs(clip(t)) + math.Abs(zero))
			if low <= t && t <= high {
				return [3]Term{TermOf(dy), {dy * ((t - zero) - ratio), size + math.Abs(dy*ratio)}, TermOf(0)}
			}
			return [3]Term{TermOf(0), {dy * (clip(t) - zero), size}, TermOf(-dy * scale)}
		},
	}
}

package elementwise_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/tensor"
)

func TestForwardShapes(t *testing.T) {
	var trials []coretest.Trial
	for i, s := range tokenShapes {
		floating := map[string]tensor.DType{"zero_point": tensor.Float32}
		trials = append(trials,
			coretest.Trial{Reason: "dequantize, " + s.reason, DTypes: floating, Flat: i%3 == 0,
				Descriptor: elementwise.DequantizePerToken{Shape: s.shape, QDType: []tensor.DType{tensor.Int8, tensor.Uint8}[i%2]}},
			coretest.Trial{Reason: "fake quantize, " + s.reason, DTypes: floating, Flat: i%3 == 1,
				Descriptor: elementwise.FakeQuantizePerToken{Shape: s.shape, QuantMin: -8, QuantMax: 7}})
	}
	coretest.Conform(t, trials)
}

func TestForwardDTypes(t *testing.T) {
	single, shape := tensor.Float32, []int64{5, 66}
	for _, q := range []tensor.DType{tensor.Int8, tensor.Uint8} {
		d := elementwise.DequantizePerToken{Shape: shape, QDType: q}
		coretest.Conform(t, zeroPoints(q.String(), d, "scale like y", nil))
		d.ScaleDType = &single
		coretest.Conform(t, zeroPoints(q.String(), d, "scale float32", nil))
	}
	fractions := map[string]func(*rand.Rand) float64{"zero_point": func(r *rand.Rand) float64 { return float64(r.IntN(80)-40) / 2 }}
	for _, bounds := range [][2]int64{{-8, 7}, {0, 15}, {-100, -50}, {0, 0}, {-128, 127}} {
		d := elementwise.FakeQuantizePerToken{Shape: shape, QuantMin: bounds[0], QuantMax: bounds[1]}
		name := fmt.Sprintf("%d to %d", bounds[0], bounds[1])
		coretest.Conform(t, zeroPoints(name, d, "scale like x", fractions))
		d.ScaleDType = &single
		coretest.Conform(t, zeroPoints(name, d, "scale float32", nil))
	}
}

func TestForwardValues(t *testing.T) {
	choice := func(values ...float64) func(*rand.Rand) float64 {
		return func(r *rand.Rand) float64 { return values[r.IntN(len(values))] }
	}
	fake := elementwise.FakeQuantizePerToken{Shape: []int64{6, 135}, QuantMin: -8, QuantMax: 7}
	plain := elementwise.DequantizePerToken{Shape: fake.Shape, QDType: tensor.Int8}
	none := []string{"zero_point"}
	floating := map[string]tensor.DType{"zero_point": tensor.Float32}
	inf, nan := math.Inf(1), math.NaN()
	values := func(pairs ...any) map[string]func(*rand.Rand) float64 {
		m := map[string]func(*rand.Rand) float64{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i].(string)] = pairs[i+1].(func(*rand.Rand) float64)
		}
		return m
	}
	coretest.Conform(t, []coretest.Trial{
		{Reason: "on the bounds and half way around them", Descriptor: fake, Without: none,
			Values: values("x", choice(-8.5, -8, -7.5, -9, 6.5, 7, 7.5, 8), "scale", choice(1))},
		{Reason: "NaN and infinite x", Descriptor: fake, Without: none, Values: values("x", choice(nan, inf, -inf, 3, -1.5))},
		{Reason: "negative scale", Descriptor: fake, Without: none, Values: values("scale", choice(-0.5, -2))},
		{Reason: "scale 0", Descriptor: fake, Without: none,
			Values: values("scale", choice(0, math.Copysign(0, -1)), "x", choice(0, 1, -1, math.Copysign(0, -1), inf, -inf, nan))},
		{Reason: "scale 0 beside a zero point", Descriptor: fake, DTypes: floating,
			Values: values("scale", choice(0, 0.5), "x", choice(0, 1, -1), "zero_point", choice(-20, 0, 2))},
		{Reason: "infinite and NaN scale", Descriptor: fake, Without: none,
			Values: values("scale", choice(inf, -inf, nan), "x", choice(0, 1, inf))},
		{Reason: "NaN zero_point", Descriptor: fake, DTypes: floating, Values: values("zero_point", choice(nan, 2.5, inf, -inf))},
		{Reason: "dequantize by NaN and infinities", Descriptor: plain, DTypes: floating,
			Values: values("scale", choice(inf, nan, 0, -1), "zero_point", choice(nan, inf, 0.5))},
	})
}

// A quotient is rounded as division rounds it, and then to an integer, ties to even. With a scale
// that is no power of two, the first rounding decides many ties.
func TestFakeQuantizeRoundsTheQuotient(t *testing.T) {
	const n = 4096
	x, y := make([]float32, n), make([]float32, n)
	plan, err := core.Select(elementwise.FakeQuantizePerToken{
		Shape: []int64{n}, DType: tensor.Float32, QuantMin: -1 << 20, QuantMax: 1 << 20,
	}, tensor.CPU, ops.Preference{})
	require.NoError(t, err)
	for _, scale := range []float32{0.1, 0.3, 1e-30, 1e-42, 3e38, 7} {
		for i := range x {
			x[i] = scale * (float32(i-n/2) + 0.5)
			if i%3 == 1 {
				x[i] = math.Nextafter32(x[i], float32(math.Inf(i-n/2)))
			}
		}
		require.NoError(t, plan.Run(0, tensor.Tensor{}, core.Args{"x": tensor.Of(x), "scale": tensor.Of([]float32{scale}, 1), "y": tensor.Of(y)}))
		for i := range x {
			level := float32(math.RoundToEven(float64(x[i] / scale)))
			require.Equal(t, min(max(level, -1<<20), 1<<20)*scale, y[i], "%v / %v", x[i], scale)
		}
	}
}

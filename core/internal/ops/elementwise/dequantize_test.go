package elementwise_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/tensor"
)

// tokenShapes are the shapes of both families, with the reason for each.
var tokenShapes = []struct {
	reason string
	shape  []int64
}{
	{"0-d", []int64{}},
	{"one token", []int64{5}},
	{"one number", []int64{1}},
	{"no token", []int64{0, 5}},
	{"tokens of nothing", []int64{4, 0}},
	{"a token of nothing", []int64{0}},
	{"no token of nothing", []int64{0, 0}},
	{"31", []int64{7, 31}}, {"32", []int64{7, 32}}, {"33", []int64{7, 33}}, {"127", []int64{3, 127}}, // around warps
	{"511", []int64{2, 511}}, {"512", []int64{3, 512}}, {"513", []int64{3, 513}}, // around blocks of float64
	{"1023", []int64{2, 1023}}, {"1024", []int64{2, 1024}}, {"1025", []int64{3, 1025}}, // around blocks of float32
	{"tokens in parts", []int64{2, cpu.Grain + 77}},
	{"as many tokens as a block and some", []int64{1100, 3}},
	{"tokens of one number", []int64{70, 1}},
	{"rank 3", []int64{3, 4, 17}},
	{"rank 8", []int64{2, 1, 3, 2, 1, 2, 3, 5}},
}

func TestDequantizeShapes(t *testing.T) {
	var trials []coretest.Trial
	for i, s := range tokenShapes {
		trials = append(trials, coretest.Trial{
			Reason: s.reason, Descriptor: elementwise.DequantizePerTokenBackward{Shape: s.shape, QDType: []tensor.DType{tensor.Int8, tensor.Uint8}[i%2]},
			DTypes: map[string]tensor.DType{"zero_point": tensor.Float32, "dzero_point": tensor.Float32}, Flat: i%3 == 0,
		})
	}
	coretest.Conform(t, trials)
}

func TestFakeQuantizeShapes(t *testing.T) {
	var trials []coretest.Trial
	for i, s := range tokenShapes {
		trials = append(trials, coretest.Trial{
			Reason: s.reason, Descriptor: elementwise.FakeQuantizePerTokenBackward{Shape: s.shape, QuantMin: -8, QuantMax: 7},
			DTypes: map[string]tensor.DType{"zero_point": tensor.Float32, "dzero_point": tensor.Float32}, Flat: i%3 == 1,
		})
	}
	coretest.Conform(t, trials)
}

// zeroPoints are the cases of one descriptor for every dtype of a zero point, and for none.
func zeroPoints(name string, d ops.Descriptor, scaleDType string, values map[string]func(*rand.Rand) float64) []coretest.Trial {
	without := []string{"zero_point", "dzero_point"} // a forward has none of the latter
	trials := []coretest.Trial{{Reason: name + " without zero_point, " + scaleDType, Descriptor: d, Without: without, Values: values}}
	for _, dtype := range []tensor.DType{tensor.Int8, tensor.Uint8, tensor.Int32, tensor.Int64} {
		trials = append(trials, coretest.Trial{Reason: fmt.Sprint(name, " with zero_point of ", dtype, ", ", scaleDType), Descriptor: d,
			DTypes: map[string]tensor.DType{"zero_point": dtype}, Without: without[1:], Values: values})
	}
	for _, dtype := range tensor.Floats {
		trials = append(trials, coretest.Trial{Reason: fmt.Sprint(name, " with zero_point of ", dtype, ", ", scaleDType), Descriptor: d,
			DTypes: map[string]tensor.DType{"zero_point": dtype, "dzero_point": dtype}, Values: values})
	}
	return trials
}

func TestDequantizeDTypes(t *testing.T) {
	single, shape := tensor.Float32, []int64{5, 66}
	for _, q := range []tensor.DType{tensor.Int8, tensor.Uint8} {
		coretest.Conform(t, zeroPoints(q.String(), elementwise.DequantizePerTokenBackward{Shape: shape, QDType: q}, "scale like dy", nil))
		coretest.Conform(t, zeroPoints(q.String(), elementwise.DequantizePerTokenBackward{Shape: shape, QDType: q, ScaleDType: &single}, "scale float32", nil))
	}
}

// Integer zero points are usual within 1000 of 0, so most lie outside these bounds; fractions are
// rounded and clamped first.
func TestFakeQuantizeDTypes(t *testing.T) {
	single, shape := tensor.Float32, []int64{5, 66}
	fractions := map[string]func(*rand.Rand) float64{"zero_point": func(r *rand.Rand) float64 { return float64(r.IntN(80)-40) / 2 }}
	for _, bounds := range [][2]int64{{-8, 7}, {0, 15}, {3, 12}, {-100, -50}, {0, 0}, {-128, 127}} {
		d := elementwise.FakeQuantizePerTokenBackward{Shape: shape, QuantMin: bounds[0], QuantMax: bounds[1]}
		name := fmt.Sprintf("%d to %d", bounds[0], bounds[1])
		coretest.Conform(t, zeroPoints(name, d, "scale like dy", fractions))
		d.ScaleDType = &single
		coretest.Conform(t, zeroPoints(name, d, "scale float32", nil))
	}
}

func TestDequantizeOperands(t *testing.T) {
	d := elementwise.DequantizePerTokenBackward{Shape: []int64{6, 35}, QDType: tensor.Int8}
	odd := map[string]func(*rand.Rand) float64{"dy": func(r *rand.Rand) float64 {
		return []float64{1, -2, 0.5, math.Inf(1), math.Inf(-1), math.NaN(), 0}[r.IntN(7)]
	}}
	zero := map[string]tensor.DType{"zero_point": tensor.BFloat16, "dzero_point": tensor.BFloat16}
	coretest.Conform(t, []coretest.Trial{
		{Reason: "dx alone", Descriptor: d, Without: []string{"q", "zero_point", "dscale", "dzero_point"}},
		{Reason: "dscale alone", Descriptor: d, Without: []string{"zero_point", "dx", "dzero_point"}},
		{Reason: "dzero_point alone", Descriptor: d, Without: []string{"q", "dx", "dscale"}, DTypes: zero},
		{Reason: "dzero_point needs no q", Descriptor: d, Without: []string{"q", "dscale"}, DTypes: zero},
		{Reason: "infinite and NaN dy", Descriptor: d, Values: odd, DTypes: zero},
		{Reason: "negative scale", Descriptor: d, DTypes: zero, Values: map[string]func(*rand.Rand) float64{
			"scale": func(r *rand.Rand) float64 { return -r.Float64() }}},
	})
}

func TestFakeQuantizeValues(t *testing.T) {
	d := elementwise.FakeQuantizePerTokenBackward{Shape: []int64{6, 135}, QuantMin: -8, QuantMax: 7}
	choice := func(values ...float64) func(*rand.Rand) float64 {
		return func(r *rand.Rand) float64 { return values[r.IntN(len(values))] }
	}
	always := func(v float64) func(*rand.Rand) float64 { return func(*rand.Rand) float64 { return v } }
	none := []string{"zero_point", "dzero_point"}
	coretest.Conform(t, []coretest.Trial{
		{Reason: "exactly on the bounds and half way around them", Descriptor: d, Without: none, Values: map[string]func(*rand.Rand) float64{
			"x": choice(-8.5, -8, -7.5, -9, 6.5, 7, 7.5, 8), "scale": always(1)}},
		{Reason: "NaN and infinite x", Descriptor: d, Without: none, Values: map[string]func(*rand.Rand) float64{
			"x": choice(math.NaN(), math.Inf(1), math.Inf(-1), 3, -1.5)}},
		{Reason: "NaN x alone gives dx = 0", Descriptor: d, Without: append(none, "dscale"), Values: map[string]func(*rand.Rand) float64{
			"x": always(math.NaN())}},
		{Reason: "a scale that is no power of two", Descriptor: d, Without: none, Values: map[string]func(*rand.Rand) float64{
			"scale": always(0.3), "x": func(r *rand.Rand) float64 { return 0.3 * (float64(r.IntN(30)-15) + 0.7*(r.Float64()-0.5)) }}},
		{Reason: "negative scale", Descriptor: d, Without: none, Values: map[string]func(*rand.Rand) float64{"scale": choice(-0.5, -2)}},
		{Reason: "scale 0", Descriptor: d, Without: none, Values: map[string]func(*rand.Rand) float64{
			"scale": choice(0, math.Copysign(0, -1)), "x": choice(0, 1, -1, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), 1e-7)}},
		{Reason: "scale 0 beside a zero point", Descriptor: d, DTypes: map[string]tensor.DType{"zero_point": tensor.Float32, "dzero_point": tensor.Float32},
			Values: map[string]func(*rand.Rand) float64{"scale": choice(0, 0.5), "x": choice(0, 1, -1), "zero_point": choice(-20, 0, 2)}},
		{Reason: "NaN x beside scale 0", Descriptor: d, Without: append(none, "dscale"), Values: map[string]func(*rand.Rand) float64{
			"scale": always(0), "x": choice(0, math.NaN())}},
		{Reason: "infinite and NaN scale", Descriptor: d, Without: none, Values: map[string]func(*rand.Rand) float64{
			"scale": choice(math.Inf(1), math.Inf(-1), math.NaN()), "x": choice(0, 1, math.Inf(1))}},
		{Reason: "NaN zero_point", Descriptor: d, DTypes: map[string]tensor.DType{"zero_point": tensor.Float32, "dzero_point": tensor.Float32},
			Values: map[string]func(*rand.Rand) float64{"zero_point": choice(math.NaN(), 2.5)}},
	})
}

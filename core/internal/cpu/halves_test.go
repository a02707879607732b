package cpu_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// converter is one of the conversions under test, for both formats at once.
type converter struct {
	name   string
	dtype  tensor.DType
	widen  func([]float32, []uint16)
	narrow func([]uint16, []float32)
}

func converters() []converter {
	return []converter{
		{"float16", tensor.Float16,
			func(out []float32, in []uint16) { cpu.WidenFloat16(out, viewed[cpu.Float16](in)) },
			func(out []uint16, in []float32) { cpu.NarrowFloat16(viewed[cpu.Float16](out), in) }},
		{"float16 portable", tensor.Float16,
			func(out []float32, in []uint16) { cpu.WidenFloat16Portable(out, viewed[cpu.Float16](in)) },
			func(out []uint16, in []float32) { cpu.NarrowFloat16Portable(viewed[cpu.Float16](out), in) }},
		{"bfloat16", tensor.BFloat16,
			func(out []float32, in []uint16) { cpu.WidenBFloat16(out, viewed[cpu.BFloat16](in)) },
			func(out []uint16, in []float32) { cpu.NarrowBFloat16(viewed[cpu.BFloat16](out), in) }},
	}
}

func viewed[H cpu.Float16 | cpu.BFloat16](s []uint16) []H {
	return unsafe.Slice((*H)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
}

func TestEveryHalfWidensExactly(t *testing.T) {
	patterns := make([]uint16, 1<<16)
	for i := range patterns {
		patterns[i] = uint16(i)
	}
	for _, c := range converters() {
		wide := make([]float32, len(patterns))
		c.widen(wide, patterns)
		for i, want := range coretest.Formats16[c.dtype].Values {
			if !coretest.SameNumber(want, float64(wide[i])) {
				require.Failf(t, c.name, "%#04x widens to %v, not to %v", i, wide[i], want)
			}
		}
	}
}

// narrowingInputs are the numbers where rounding turns: every half, the middle between each two,
// and their neighbours in float32; then the subnormals of float32, numbers that overflow, NaNs, and
// random bits.
func narrowingInputs(f *coretest.Format16) []float32 {
	var in []float32
	for pattern := 0; pattern < f.Infinity(); pattern++ {
		value := float32(f.Values[pattern])
		gap := f.Values[pattern+1] - f.Values[pattern]
		if pattern+1 == f.Infinity() {
			gap = f.Values[pattern] - f.Values[pattern-1]
		}
		middle := float32(f.Values[pattern] + gap/2)
		for _, v := range []float32{value, middle} {
			in = append(in, v, -v, math.Nextafter32(v, 0), math.Nextafter32(v, float32(math.Inf(1))))
		}
	}
	in = append(in, math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, math.MaxFloat32, -math.MaxFloat32,
		float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
		math.Float32frombits(0x7f800001), math.Float32frombits(0xffffffff)) // NaNs whose upper or lower bits alone say so
	random := rand.New(rand.NewPCG(1, 16))
	for range 1 << 18 {
		in = append(in, math.Float32frombits(random.Uint32()))
	}
	return in
}

func TestNarrowingTakesTheNearestHalf(t *testing.T) {
	for _, c := range converters() {
		f := coretest.Formats16[c.dtype]
		in := narrowingInputs(f)
		out := make([]uint16, len(in))
		c.narrow(out, in)
		for i, v := range in {
			want := f.Nearest(float64(v))
			if out[i] != want && !(math.IsNaN(float64(v)) && math.IsNaN(f.Values[out[i]])) {
				require.Failf(t, c.name, "%v (%#08x) narrows to %#04x, not to %#04x", v, math.Float32bits(v), out[i], want)
			}
		}
	}
}

// The vector forms take eight numbers at a time: every length around that does the same, and
// touches nothing behind its end.
func TestConversionsOfEveryLength(t *testing.T) {
	for _, c := range converters() {
		for n := range 35 {
			halves, wide, back := make([]uint16, n), make([]float32, n+1), make([]uint16, n+1)
			for i := range halves {
				halves[i] = uint16(0x3c00 + 37*i)
			}
			wide[n], back[n] = 5, 6
			c.widen(wide[:n], halves)
			c.narrow(back[:n], wide[:n])
			require.Equal(t, append(halves, 6), back, "%s of length %d", c.name, n)
			require.Equal(t, float32(5), wide[n])
		}
	}
}

// Results do not depend on the processor: the portable form and the chosen one agree in every bit,
// NaNs included.
func TestPortableConversionsEqualTheChosen(t *testing.T) {
	patterns := make([]cpu.Float16, 1<<16)
	for i := range patterns {
		patterns[i] = cpu.Float16(i)
	}
	chosen, portable := make([]float32, len(patterns)), make([]float32, len(patterns))
	cpu.WidenFloat16(chosen, patterns)
	cpu.WidenFloat16Portable(portable, patterns)
	for i := range chosen {
		if a, b := math.Float32bits(chosen[i]), math.Float32bits(portable[i]); a != b {
			require.Failf(t, "widen", "%#04x: chosen %#08x, portable %#08x", i, a, b)
		}
	}
	in := narrowingInputs(coretest.Formats16[tensor.Float16])
	chosenHalves, portableHalves := make([]cpu.Float16, len(in)), make([]cpu.Float16, len(in))
	cpu.NarrowFloat16(chosenHalves, in)
	cpu.NarrowFloat16Portable(portableHalves, in)
	for i := range in {
		if a, b := chosenHalves[i], portableHalves[i]; a != b {
			require.Failf(t, "narrow", "%#08x: chosen %#04x, portable %#04x", math.Float32bits(in[i]), a, b)
		}
	}
}

func TestRoundingByDefinition(t *testing.T) {
	for _, row := range []struct {
		dtype tensor.DType
		in    float64
		want  uint16
	}{
		{tensor.Float16, 1, 0x3c00}, {tensor.Float16, -2, 0xc000}, {tensor.Float16, 65504, 0x7bff},
		{tensor.Float16, 65519.996, 0x7bff}, {tensor.Float16, 65520, 0x7c00}, // half way to 65536 goes to the even neighbour, infinity
		{tensor.Float16, 0x1p-24, 1}, {tensor.Float16, 0x1p-25, 0}, {tensor.Float16, 0x1.8p-24, 2},
		{tensor.Float16, 1 + 0x1p-11, 0x3c00}, {tensor.Float16, 1 + 0x1.8p-10, 0x3c02},
		{tensor.BFloat16, 1, 0x3f80}, {tensor.BFloat16, 1 + 0x1p-8, 0x3f80}, {tensor.BFloat16, 1 + 0x1.8p-7, 0x3f82},
		{tensor.BFloat16, math.MaxFloat32, 0x7f80}, {tensor.BFloat16, math.Copysign(0, -1), 0x8000},
	} {
		require.Equal(t, row.want, coretest.Formats16[row.dtype].Nearest(row.in), "%s of %v", row.dtype, row.in)
	}
}

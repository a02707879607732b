package cpu_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// converter is one of the conversions under test, which takes patterns of at most 16 bits.
type converter struct {
	name   string
	format *coretest.NarrowFormat
	widen  func([]float32, []uint16)
	narrow func([]uint16, []float32)
}

// converters are the conversions of every float of at most 16 bits.
func converters() []converter {
	list := []converter{{"float16 portable", coretest.NarrowFormats[tensor.Float16], cpu.WidenFloat16Portable, cpu.NarrowFloat16Portable}}
	for _, row := range tensor.DTypeRows {
		if d := row.DType; d.IsNarrow() {
			c := converter{name: d.String(), format: coretest.NarrowFormats[d]}
			c.widen = func(out []float32, in []uint16) { cpu.Widen(d, out, in) }
			c.narrow = func(out []uint16, in []float32) { cpu.Narrow(d, out, in) }
			if d.Size() == 1 {
				c.widen = func(out []float32, in []uint16) { cpu.Widen(d, out, bytesOf(in)) }
				c.narrow = func(out []uint16, in []float32) {
					narrow := make([]uint8, len(in))
					cpu.Narrow(d, narrow, in)
					for i, pattern := range narrow {
						out[i] = uint16(pattern)
					}
				}
			}
			list = append(list, c)
		}
	}
	return list
}

func bytesOf(patterns []uint16) []uint8 {
	list := make([]uint8, len(patterns))
	for i, pattern := range patterns {
		list[i] = uint8(pattern)
	}
	return list
}

// patternsOf are all patterns of a format.
func patternsOf(f *coretest.NarrowFormat) []uint16 {
	patterns := make([]uint16, len(f.Values))
	for i := range patterns {
		patterns[i] = uint16(i)
	}
	return patterns
}

func TestEveryPatternWidensExactly(t *testing.T) {
	for _, c := range converters() {
		wide := make([]float32, len(c.format.Values))
		c.widen(wide, patternsOf(c.format))
		for i, want := range c.format.Values {
			if !coretest.SameNumber(want, float64(wide[i])) {
				require.Failf(t, c.name, "%#04x widens to %v, not to %v", i, wide[i], want)
			}
		}
	}
}

// narrowingInputs are the numbers where rounding turns: every number, the middle between each two,
// and their neighbours in float32; then the subnormals of float32, numbers that overflow, NaNs, and
// random bits.
func narrowingInputs(f *coretest.NarrowFormat) []float32 {
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

func TestNarrowingTakesTheNearest(t *testing.T) {
	for _, c := range converters() {
		f := c.format
		in := narrowingInputs(f)
		out := make([]uint16, len(in))
		c.narrow(out, in)
		for i, v := range in {
			want := f.Nearest(float64(v))
			if out[i] != want && !(math.IsNaN(f.Values[want]) && math.IsNaN(f.Values[out[i]])) {
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
				halves[i] = c.format.Nearest(1) + uint16(i)
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
	f := coretest.NarrowFormats[tensor.Float16]
	patterns := patternsOf(f)
	chosen, portable := make([]float32, len(patterns)), make([]float32, len(patterns))
	cpu.Widen(tensor.Float16, chosen, patterns)
	cpu.WidenFloat16Portable(portable, patterns)
	for i := range chosen {
		if a, b := math.Float32bits(chosen[i]), math.Float32bits(portable[i]); a != b {
			require.Failf(t, "widen", "%#04x: chosen %#08x, portable %#08x", i, a, b)
		}
	}
	in := narrowingInputs(f)
	chosenHalves, portableHalves := make([]uint16, len(in)), make([]uint16, len(in))
	cpu.Narrow(tensor.Float16, chosenHalves, in)
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
		require.Equal(t, row.want, coretest.NarrowFormats[row.dtype].Nearest(row.in), "%s of %v", row.dtype, row.in)
	}
}

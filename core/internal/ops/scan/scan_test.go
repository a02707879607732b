package scan_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

var (
	scanInf = math.Inf(1)
	scanNaN = math.NaN()
)

func (c scanCase) with(tie string, indices bool) scanCase {
	c.tie, c.indices = tie, indices
	return c
}

// scanCases yields every kind, tie and dtype in both directions, by x and by indices.
func scanCases(yield func(scanCase)) {
	for _, dtype := range tensor.Floats {
		for _, reverse := range []bool{false, true} {
			for _, kind := range scan.Kinds {
				c := scanCase{kind: kind.Name, reverse: reverse, dtype: dtype}
				yield(c)
				if kind.ReadsIndices {
					yield(c.with("", true))
					yield(c.with("first", false))
					yield(c.with("first", true))
				}
			}
		}
	}
}

// Every kind in every dtype, direction and tie, at lengths around tiles, parts and lanes, on inner,
// outer and middle axes.
func TestScanShapes(t *testing.T) {
	shapes := []struct {
		shape []int64
		dim   int
	}{
		{nil, 0}, {[]int64{0}, 0}, {[]int64{0, 3}, 0}, {[]int64{3, 0}, 0}, {[]int64{1}, 0}, {[]int64{1, 1, 5}, 1},
		{[]int64{2, 2, 2, 2, 2, 2, 2, 2}, 3}, {[]int64{2, 1025}, 1}, {[]int64{1025, 2}, 0}, {[]int64{70, 67}, 1}, {[]int64{67, 70}, 0}, {[]int64{3, 70, 13}, 1},
		{[]int64{40, 32}, 0}, {[]int64{16, 64}, 0}, {[]int64{2, 40, 32}, 1}, // a step as wide as a group
	}
	for _, n := range []int64{1, 2, 31, 32, 33, 63, 64, 65, 100, 511, 512, 513, 1000} {
		shapes = append(shapes, []struct {
			shape []int64
			dim   int
		}{{[]int64{n}, 0}, {[]int64{5, n}, 1}, {[]int64{n, 5}, 0}, {[]int64{2, n, 3}, 1}}...)
	}
	random := rand.New(rand.NewPCG(1, 1))
	scanCases(func(c scanCase) {
		for _, s := range shapes {
			c.shape, c.dim = s.shape, s.dim
			n, _ := tensor.Product(c.shape)
			dy, x := scanNumbers(c.kind, random, n)
			c.check(t, dy, x)
		}
	})
}

// Rows in parts. logcumsumexp, whose definition takes n^2, is compared with float64 of shorter rows
// above, and here at the ends.
func TestScanLongRows(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 2))
	for _, s := range []struct {
		shape []int64
		dim   int
	}{{[]int64{65537}, 0}, {[]int64{131073, 1}, 0}, {[]int64{1, 131072}, 1}, {[]int64{1 << 18, 2}, 0}, {[]int64{2, 5000, 3}, 1}, {[]int64{1<<18 + 1, 1}, 0}} {
		scanCases(func(c scanCase) {
			c.shape, c.dim = s.shape, s.dim
			if c.kind == "logcumsumexp" || c.kind == "cumprod" && (c.reverse || s.shape[0] > 1<<17) || c.reverse && c.dtype != tensor.Float32 {
				return
			}
			n, _ := tensor.Product(c.shape)
			dy, x := scanNumbers(c.kind, random, n)
			if c.kind == "cumprod" {
				for i := range x {
					x[i] = 1 + (x[i]-1)/10
				}
			}
			c.check(t, dy, x)
		})
	}
	for _, reverse := range []bool{false, true} {
		c := scanCase{kind: "logcumsumexp", shape: []int64{6000, 2}, reverse: reverse, dtype: tensor.Float64}
		dy, x := scanNumbers(c.kind, random, 12000)
		c.check(t, dy, x)
	}
}

func scanRepeat(n int, values ...float64) []float64 {
	out := make([]float64, 0, n*len(values))
	for range n {
		out = append(out, values...)
	}
	return out
}

// What happens at the borders of tiles and of parts: zeros, NaN, infinities, ties and products that
// leave float64's range.
func TestScanBorders(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	const n = 3000 // parts of 576, the last shorter
	for _, at := range []int{0, 1, 63, 64, 575, 576, 577, 1151, 1152, 2879, 2880, n - 1} {
		for _, special := range []float64{0, scanNaN, scanInf, -scanInf, 1e30, 1e-30, 0x1p-149} {
			scanCases(func(c scanCase) {
				if c.dtype == tensor.Float16 || c.dtype == tensor.BFloat16 || !scan.ByName[c.kind].ReadsX || c.kind == "logcumsumexp" && (at > 600 || c.dtype == tensor.Float64) {
					return
				}
				c.shape = []int64{n}
				if c.kind == "logcumsumexp" {
					c.shape = []int64{700}
				}
				dy, x := scanNumbers(c.kind, random, c.shape[0])
				x[at], x[(at+600)%int(c.shape[0])] = special, special
				c.check(t, dy, x)
			})
		}
	}
	// -inf before everything, longer than a part.
	_, x := scanNumbers("logcumsumexp", random, 1500)
	for i := range 1100 {
		x[i] = -scanInf
	}
	scanCase{kind: "logcumsumexp", shape: []int64{1500}, dtype: tensor.Float64}.check(t, scanRepeat(1500, 1), x)
}

// Parts hand products on with an exponent of their own.
func TestScanProductRange(t *testing.T) {
	for _, c := range []struct {
		reason string
		x      []float64
		dtype  tensor.DType
	}{
		{"small and large in turn", scanRepeat(2048, 1e-20, 1e20), tensor.Float32},
		{"large and small in turn", scanRepeat(2048, 1e20, 1e-20), tensor.Float32},
		{"float64 near its ends", scanRepeat(2048, 0x1p-1000, 0x1p1000), tensor.Float64},
		{"subnormal factors", scanRepeat(1024, 0x1p500, 0x1p-1070, 0x1p570, 1), tensor.Float64},
	} {
		s := scanCase{kind: "cumprod", shape: []int64{int64(len(c.x))}, dtype: c.dtype}
		dy := make([]float64, len(c.x))
		dy[len(dy)-1], dy[0], dy[1003] = 1, 1, 1
		t.Run(c.reason, func(t *testing.T) { s.check(t, dy, c.x) })
	}
	// A part that overflows by itself, in a row that a zero ends before it.
	x := scanRepeat(4096, 1)
	for i := 600; i < 700; i++ {
		x[i] = 1e30
	}
	x[0] = 0
	got := scanCase{kind: "cumprod", shape: []int64{4096}, dtype: tensor.Float64}.run(t, scanRepeat(4096, 1), x, nil)
	require.True(t, math.IsInf(got[0], 1) || got[0] > 1e300)
	for _, v := range got[1:] {
		require.Zero(t, v)
	}
}

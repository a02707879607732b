package scan_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
)

// forwardCase is one run of a forward scan. The fields of scanCase are those of its backward.
type forwardCase scanCase

func (c forwardCase) String() string { return "forward " + scanCase(c).String() }

// forwardCases yields every kind, tie and dtype in both directions; indices: cummax and cummin
// compute them.
func forwardCases(yield func(forwardCase)) { scanCases(func(c scanCase) { yield(forwardCase(c)) }) }

// forwardNaN is a tensor of NaN, which a run must overwrite.
func forwardNaN(dtype tensor.DType, shape []int64) tensor.Tensor {
	n, _ := tensor.Product(shape)
	return scanTensor(dtype, shape, scanRepeat(int(n), scanNaN))
}

// run gives y and indices of contiguous operands.
func (c forwardCase) run(t testing.TB, x []float64) (y []float64, indices []int64) {
	t.Helper()
	plan, err := core.Select(scan.Scan{Kind: c.kind, Shape: c.shape, DType: c.dtype, Dim: int64(c.dim), Reverse: c.reverse, Tie: c.tie}, tensor.CPU, ops.Preference{})
	require.NoError(t, err)
	out := forwardNaN(c.dtype, c.shape)
	args := core.Args{"x": scanTensor(c.dtype, c.shape, x), "y": out}
	if c.indices {
		indices = make([]int64, len(x))
		for i := range indices {
			indices[i] = math.MinInt64
		}
		args["indices"] = tensor.Of(indices)
		shaped := args["indices"]
		shaped.NDim = int32(len(c.shape))
		copy(shaped.Shape[:], c.shape)
		copy(shaped.Strides[:], tensor.Compact(c.shape))
		args["indices"] = shaped
	}
	require.NoError(t, plan.Run(0, tensor.Tensor{}, args))
	return scanValues(out), indices
}

// check compares a run with the definition, element by element.
func (c forwardCase) check(t *testing.T, x []float64) {
	t.Helper()
	x = scanValues(scanTensor(c.dtype, c.shape, x))
	y, indices := c.run(t, x)
	c.requireDefinition(t, x, y, indices)
}

// requireDefinition compares results with the definition, element by element.
func (c forwardCase) requireDefinition(t *testing.T, x, y []float64, indices []int64) {
	t.Helper()
	scanRows(c.shape, c.dim, func(at []int64) {
		row := scanOrder(scanCase(c), x, at)
		want, size := forwardOracle(c, row)
		var records []int64
		if c.kind == "cummax" || c.kind == "cummin" {
			records = oracleIndices(scanCase(c), row)
		}
		for k := range want {
			place := scanPlace(scanCase(c), k, len(at))
			if !scanClose(scanCase(c), y[at[place]], want[k], size[k], len(at)) {
				t.Fatalf("%s: position %d of the row at %d is %v, not %v", c, k, at[0], y[at[place]], want[k])
			}
			if records != nil {
				require.Equal(t, math.Signbit(row[records[k]]), math.Signbit(y[at[place]]) || math.IsNaN(row[records[k]]) && math.Signbit(row[records[k]]), "%s: sign at %d", c, k)
			}
			if c.indices {
				require.Equal(t, int64(scanPlace(scanCase(c), int(records[k]), len(at))), indices[at[place]], "%s: index at position %d of the row at %d", c, k, at[0])
			}
		}
	})
}

// Every kind in every dtype, direction and tie, at lengths around tiles, splits and lanes.
func TestForwardShapes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	shapes := []struct {
		shape []int64
		dim   int
	}{
		{nil, 0}, {[]int64{0}, 0}, {[]int64{0, 3}, 0}, {[]int64{3, 0}, 0}, {[]int64{1}, 0}, {[]int64{1, 1, 5}, 1},
		{[]int64{2, 2, 2, 2, 2, 2, 2, 2}, 3}, {[]int64{2, 1025}, 1}, {[]int64{1025, 2}, 0}, {[]int64{70, 67}, 1}, {[]int64{67, 70}, 0}, {[]int64{3, 70, 13}, 1},
		{[]int64{40, 32}, 0}, {[]int64{16, 64}, 0}, {[]int64{2, 40, 32}, 1}, {[]int64{600, 3}, 1}, {[]int64{2, 2500}, 1}, {[]int64{2500, 2}, 0},
	}
	for _, n := range []int64{1, 2, 31, 32, 33, 63, 64, 65, 100, 513} {
		shapes = append(shapes, []struct {
			shape []int64
			dim   int
		}{{[]int64{n}, 0}, {[]int64{5, n}, 1}, {[]int64{n, 5}, 0}, {[]int64{2, n, 3}, 1}}...)
	}
	forwardCases(func(c forwardCase) {
		for _, s := range shapes {
			c.shape, c.dim = s.shape, s.dim
			n, _ := tensor.Product(c.shape)
			_, x := scanNumbers(c.kind, random, n)
			c.check(t, x)
		}
	})
}

// Rows in splits, against the definition.
func TestForwardLongRows(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 2))
	for _, s := range []struct {
		shape []int64
		dim   int
	}{{[]int64{65537}, 0}, {[]int64{3, 5001}, 1}, {[]int64{5000, 4}, 0}, {[]int64{2, 5000, 3}, 1}, {[]int64{1<<18 + 1, 1}, 0}} {
		forwardCases(func(c forwardCase) {
			c.shape, c.dim = s.shape, s.dim
			n, _ := tensor.Product(c.shape)
			if n > 1<<16 && (c.kind != "cumsum" && c.kind != "cumprod" || c.reverse) {
				return // the other definitions are slow
			}
			_, x := scanNumbers(c.kind, random, n)
			c.check(t, x)
		})
	}
}

// Bits depend neither on the number of threads nor on the run.
func TestForwardRepeats(t *testing.T) {
	defer func(n int) { require.NoError(t, core.SetNumThreads(n)) }(core.NumThreads())
	random := rand.New(rand.NewPCG(6, 6))
	forwardCases(func(c forwardCase) {
		for _, shape := range [][]int64{{300, 200}, {70001, 1}} {
			if c.shape, c.dim = shape, 0; c.dtype == tensor.Float16 || c.reverse {
				return
			}
			n, _ := tensor.Product(c.shape)
			_, x := scanNumbers(c.kind, random, n)
			require.NoError(t, core.SetNumThreads(1))
			want, wantIndices := c.run(t, x)
			for i := range 8 {
				require.NoError(t, core.SetNumThreads(1+i%5))
				got, indices := c.run(t, x)
				coretest.RequireSame(t, want, got, c.String())
				require.Equal(t, wantIndices, indices)
			}
		}
	})
}

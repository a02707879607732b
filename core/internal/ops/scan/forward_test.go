package scan_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
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

// forwardOracle is the definition of one row in scan order: y, and the size that its rounding
// errors grow with.
func forwardOracle(c forwardCase, x []float64) (y, size []float64) {
	y, size = make([]float64, len(x)), make([]float64, len(x))
	var sum, magnitude sumOfScan
	records := oracleIndices(scanCase(c), x)
	product, special := new(big.Float).SetPrec(80).SetInt64(1), 1.0
	top, exponentials := math.Inf(-1), sumOfScan{}
	for k, v := range x {
		switch c.kind {
		case "cumsum":
			sum.add(v)
			magnitude.add(math.Abs(v))
			y[k], size[k] = sum.value(), magnitude.value()
		case "cumprod":
			if special = oracleTimes(special, v); math.IsNaN(v) || math.IsInf(v, 0) || math.IsInf(special, 0) || special == 0 || math.IsNaN(special) {
				y[k] = special
				break
			}
			product.Mul(product, new(big.Float).SetFloat64(v))
			y[k], _ = product.Float64()
			size[k] = math.Abs(y[k])
			special = math.Copysign(1, float64(product.Sign()))
		case "cummax", "cummin":
			y[k] = x[records[k]]
		case "logcumsumexp":
			if v > top || math.IsNaN(v) {
				top, exponentials = v, sumOfScan{}
				for _, u := range x[:k+1] {
					exponentials.add(oracleWeight(u, top))
				}
			} else {
				exponentials.add(oracleWeight(v, top))
			}
			y[k] = top + math.Log(exponentials.value())
			if math.IsInf(top, -1) && !math.IsNaN(exponentials.value()) {
				y[k] = top
			}
			size[k] = math.Abs(top) + 8
		}
	}
	return y, size
}

// oracleTimes is a b, but 0 for zero times infinity.
func oracleTimes(a, b float64) float64 {
	if (a == 0 || b == 0) && !math.IsNaN(a) && !math.IsNaN(b) {
		return math.Copysign(0, a) * math.Copysign(1, b)
	}
	return a * b
}

// oracleWeight is exp(v - top): 1 for equal infinities, 0 for -inf.
func oracleWeight(v, top float64) float64 {
	switch {
	case math.IsNaN(v) || math.IsNaN(top):
		return scanNaN
	case math.IsInf(v, -1):
		return 0
	case v == top:
		return 1
	}
	return math.Exp(v - top)
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

// Numbers that break a naive scan, in every dtype that holds them, forwards and backwards.
func TestForwardValues(t *testing.T) {
	negativeZero := math.Copysign(0, -1)
	for _, row := range []struct {
		reason, kind, tie string
		x, want           []float64
		indices           []int64
		limit             tensor.DType // the dtype whose range the numbers are about; empty: all
	}{
		{"a product that comes back", "cumprod", "", []float64{1e30, 1e30, 1e-30}, []float64{1e30, scanInf, 1e30}, nil, tensor.Float32},
		{"a product that comes back", "cumprod", "", []float64{1e200, 1e200, 1e-300}, []float64{1e200, scanInf, 1e100}, nil, tensor.Float64},
		{"a product that vanishes and comes back", "cumprod", "", []float64{0x1p-1000, 0x1p-1000, 0x1p1000}, []float64{0x1p-1000, 0, 0x1p-1000}, nil, tensor.Float64},
		{"far away and back", "cumprod", "", []float64{0x1p-149, 0x1p-149, 0x1p-149, 0x1p-149, 0x1p-149, 0x1p-149, 0x1p-149, 0x1p-149, 0x1p-149, 0x1p127, 0x1p127, 0x1p127, 0x1p127, 0x1p127, 0x1p127, 0x1p127, 0x1p127, 0x1p127, 0x1p127, 0x1p69},
			[]float64{0x1p-149, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x1p-71, 0x1p-2}, nil, tensor.Float32},
		{"subnormal products", "cumprod", "", []float64{0x1p-1000, 0x1.8p-70, 0x1p-1, 0x1p-3, 0x1p1000}, []float64{0x1p-1000, 0x1.8p-1070, 0x1.8p-1071, 0x1p-1074, 0x1.8p-74}, nil, tensor.Float64},
		{"subnormal factors", "cumprod", "", []float64{0x1p-1074, 0x1p1000, 0x1p-1074, 0x1p1023, 0x1p100}, []float64{0x1p-1074, 0x1p-74, 0, 0x1p-125, 0x1p-25}, nil, tensor.Float64},
		{"an infinity that a zero ends", "cumprod", "", []float64{scanInf, 0}, []float64{scanInf, 0}, nil, tensor.DType{}},
		{"a zero stays", "cumprod", "", []float64{2, 0, scanInf, 3}, []float64{2, 0, 0, 0}, nil, tensor.DType{}},
		{"NaN stays", "cumprod", "", []float64{2, 0, scanNaN, 0}, []float64{2, 0, scanNaN, scanNaN}, nil, tensor.DType{}},
		{"signs of zero", "cumprod", "", []float64{-1, 0, -2, 3}, []float64{-1, negativeZero, 0, 0}, nil, tensor.DType{}},
		{"infinities", "cumsum", "", []float64{1, scanInf, 2, -scanInf, 3}, []float64{1, scanInf, scanInf, scanNaN, scanNaN}, nil, tensor.DType{}},
		{"a sum that float32 loses", "cumsum", "", []float64{1 << 24, 1, 1}, []float64{1 << 24, 1 << 24, 1<<24 + 2}, nil, tensor.Float32},
		{"a sum that float64 loses", "cumsum", "", []float64{1 << 53, 1, 1}, []float64{1 << 53, 1 << 53, 1<<53 + 2}, nil, tensor.Float64},
		{"last of equals", "cummax", "", []float64{1, 3, 2, 3, 0}, []float64{1, 3, 3, 3, 3}, []int64{0, 1, 1, 3, 3}, tensor.DType{}},
		{"first of equals", "cummax", "first", []float64{1, 3, 2, 3, 0}, []float64{1, 3, 3, 3, 3}, []int64{0, 1, 1, 1, 1}, tensor.DType{}},
		{"last minimum", "cummin", "", []float64{2, 1, 1, 5}, []float64{2, 1, 1, 1}, []int64{0, 1, 2, 2}, tensor.DType{}},
		{"zeros are equal", "cummax", "", []float64{0, negativeZero, 0}, []float64{0, negativeZero, 0}, []int64{0, 1, 2}, tensor.DType{}},
		{"zeros are equal, the first", "cummin", "first", []float64{negativeZero, 0, -1}, []float64{negativeZero, negativeZero, -1}, []int64{0, 0, 2}, tensor.DType{}},
		{"last NaN", "cummax", "", []float64{1, scanNaN, 9, scanNaN, 2}, []float64{1, scanNaN, scanNaN, scanNaN, scanNaN}, []int64{0, 1, 1, 3, 3}, tensor.DType{}},
		{"first NaN", "cummin", "first", []float64{1, scanNaN, -9, scanNaN, 2}, []float64{1, scanNaN, scanNaN, scanNaN, scanNaN}, []int64{0, 1, 1, 1, 1}, tensor.DType{}},
		{"infinities", "cummax", "", []float64{-scanInf, -scanInf, scanInf, scanInf, 1}, []float64{-scanInf, -scanInf, scanInf, scanInf, scanInf}, []int64{0, 1, 2, 3, 3}, tensor.DType{}},
		{"nothing so far", "logcumsumexp", "", []float64{-scanInf, -scanInf, 2}, []float64{-scanInf, -scanInf, 2}, nil, tensor.DType{}},
		{"infinite", "logcumsumexp", "", []float64{1, scanInf, 2, scanInf, -scanInf}, []float64{1, scanInf, scanInf, scanInf, scanInf}, nil, tensor.DType{}},
		{"NaN stays", "logcumsumexp", "", []float64{1, scanNaN, 2, scanInf, -scanInf}, []float64{1, scanNaN, scanNaN, scanNaN, scanNaN}, nil, tensor.DType{}},
		{"NaN after nothing", "logcumsumexp", "", []float64{-scanInf, scanNaN, -scanInf}, []float64{-scanInf, scanNaN, scanNaN}, nil, tensor.DType{}},
		{"a small term beside zero", "logcumsumexp", "", []float64{0, -46}, []float64{0, math.Exp(-46)}, nil, tensor.Float64},
		{"a large offset", "logcumsumexp", "", []float64{1e6, 1e6}, []float64{1e6, 1e6 + math.Ln2}, nil, tensor.Float64},
	} {
		for _, dtype := range tensor.Floats {
			if row.limit.Bits != 0 && dtype != row.limit {
				continue
			}
			for _, reverse := range []bool{false, true} {
				for _, pad := range []int{0, 3, 1500} { // the row as a split of a longer one, after neutral numbers
					c := forwardCase{kind: row.kind, tie: row.tie, reverse: reverse, dtype: dtype, indices: row.indices != nil}
					neutral := map[string]float64{"cumprod": 1, "cummax": -scanInf, "cummin": scanInf, "logcumsumexp": -scanInf}[row.kind]
					x := append(scanRepeat(pad, neutral), row.x...)
					c.shape = []int64{int64(len(x))}
					if reverse {
						slices.Reverse(x)
					}
					y, indices := c.run(t, x)
					for k, want := range row.want {
						place := scanPlace(scanCase(c), pad+k, len(x))
						what := fmt.Sprintf("%s: %s, at %d after %d", c, row.reason, k, pad)
						require.True(t, scanClose(scanCase(c), y[place], want, math.Abs(want), 1), "%s: %v, not %v", what, y[place], want)
						if want == 0 {
							require.Equal(t, math.Signbit(want), math.Signbit(y[place]), what)
						}
						if c.indices && !(pad > 0 && math.IsInf(row.want[k], 0) && row.tie == "first") {
							require.Equal(t, int64(scanPlace(scanCase(c), pad+int(row.indices[k]), len(x))), indices[place], what)
						}
					}
				}
			}
		}
	}
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

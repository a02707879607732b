package scan_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// This file defines each kind in float64: inputs that suit it, its gradient, its forward scan and
// its carry.

// scanNumbers are x and dy that suit a kind.
func scanNumbers(kind string, random *rand.Rand, n int64) (dy, x []float64) {
	dy, x = make([]float64, n), make([]float64, n)
	for i := range x {
		dy[i], x[i] = random.NormFloat64(), random.NormFloat64()*3
		switch kind {
		case "cumprod":
			x[i] = 1 + x[i]/100
		case "cummax", "cummin":
			x[i] = math.Round(x[i] - float64(i%7)/3)
		}
	}
	return dy, x
}

// scanOracle is the definition of one row in scan order: dx, and the size that its rounding errors
// grow with.
func scanOracle(c scanCase, dy, x []float64, indices []int64) (dx, size []float64) {
	n := len(dy)
	dx, size = make([]float64, n), make([]float64, n)
	switch c.kind {
	case "cumsum":
		var sum, magnitude sumOfScan
		for k := n - 1; k >= 0; k-- {
			sum.add(dy[k])
			magnitude.add(math.Abs(dy[k]))
			dx[k], size[k] = sum.value(), magnitude.value()
		}
	case "cumprod":
		oracleProduct(dy, x, dx, size)
	case "cummax", "cummin":
		if indices == nil {
			indices = oracleIndices(c, x)
		}
		sums, sizes := make([]sumOfScan, n), make([]sumOfScan, n)
		for i, j := range indices {
			sums[j].add(dy[i])
			sizes[j].add(math.Abs(dy[i]))
		}
		for k := range dx {
			dx[k], size[k] = sums[k].value(), sizes[k].value()
		}
	case "logcumsumexp":
		oracleSoft(dy, x, dx, size)
	}
	return dx, size
}

// sumOfScan adds with the error of each addition carried along.
type sumOfScan struct{ plain, kept, lost float64 }

func (s *sumOfScan) add(v float64) {
	next := s.kept + v
	if math.Abs(s.kept) >= math.Abs(v) {
		s.lost += (s.kept - next) + v
	} else {
		s.lost += (v - next) + s.kept
	}
	s.kept = next
	s.plain += v
}

func (s *sumOfScan) value() float64 {
	if v := s.kept + s.lost; !math.IsNaN(v) {
		return v
	}
	return s.plain
}

// oracleProduct works in 80 bits with a wide exponent where all is finite, and by the rules of
// SEMANTICS elsewhere.
func oracleProduct(dy, x, dx, size []float64) {
	n := len(dy)
	finite := true
	for i := range dy {
		finite = finite && !math.IsNaN(x[i]+dy[i]) && !math.IsInf(x[i], 0) && !math.IsInf(dy[i], 0)
	}
	if !finite {
		left := make([]float64, n)
		for k, before := 0, 1.0; k < n; k++ {
			left[k], before = before, oracleTimes(before, x[k])
		}
		for k, r := n-1, 0.0; k >= 0; k-- {
			r += dy[k]
			dx[k] = oracleTimes(left[k], r)
			size[k] = math.Abs(dx[k])
			r = oracleTimes(x[k], r)
		}
		return
	}
	number := func(v float64) *big.Float { return new(big.Float).SetPrec(80).SetFloat64(v) }
	left, before := make([]*big.Float, n), number(1)
	for k := range x {
		left[k] = number(0).Set(before)
		before.Mul(before, number(x[k]))
	}
	r, s := number(0), number(0)
	for k := n - 1; k >= 0; k-- {
		r.Add(r, number(dy[k]))
		s.Add(s, number(math.Abs(dy[k])))
		dx[k], _ = number(0).Mul(left[k], r).Float64()
		size[k], _ = number(0).Mul(number(0).Abs(left[k]), s).Float64()
		r.Mul(r, number(x[k]))
		s.Mul(s, number(math.Abs(x[k])))
	}
}

func oracleIndices(c scanCase, x []float64) []int64 {
	indices := make([]int64, len(x))
	best := 0
	for k, v := range x {
		b := x[best]
		if c.kind == "cummin" {
			v, b = -v, -b
		}
		beats := v > b || math.IsNaN(v) && !math.IsNaN(b)
		equal := v == b || math.IsNaN(v) && math.IsNaN(b)
		if beats || equal && c.tie != "first" {
			best = k
		}
		indices[k] = int64(best)
	}
	return indices
}

// oraclePrefixes are, of each prefix of x, the maximum m and the sum of exp(x - m).
func oraclePrefixes(x []float64) (m, s []float64) {
	m, s = make([]float64, len(x)), make([]float64, len(x))
	sum, top := sumOfScan{}, math.Inf(-1)
	for i, v := range x {
		if v > top || math.IsNaN(v) {
			top, sum = v, sumOfScan{}
			for _, u := range x[:i] {
				sum.add(oracleWeight(u, top))
			}
		}
		sum.add(oracleWeight(v, top))
		m[i], s[i] = top, sum.value()
	}
	return m, s
}

// oracleSoft is softmax by softmax: dx[k] = sum_{i>=k} dy[i] exp(x[k] - m[i]) / s[i], with a
// compensated s for each prefix.
func oracleSoft(dy, x, dx, size []float64) {
	for k := range dx {
		dx[k], size[k] = 0, 0
	}
	n := len(dy)
	m, s := oraclePrefixes(x)
	for k := range dx {
		var total, magnitude sumOfScan
		for i := k; i < n; i++ {
			if math.IsInf(x[k], -1) && !math.IsNaN(m[i]) {
				continue
			}
			w := oracleWeight(x[k], m[i]) / s[i]
			total.add(dy[i] * w)
			magnitude.add(math.Abs(dy[i] * w))
		}
		dx[k], size[k] = total.value(), magnitude.value()
	}
}

// forwardOracle is the definition of one row in scan order: y, and the size that its rounding
// errors grow with.
func forwardOracle(c forwardCase, x []float64) (y, size []float64) {
	y, size = make([]float64, len(x)), make([]float64, len(x))
	var sum, magnitude sumOfScan
	records := oracleIndices(scanCase(c), x)
	product, special := new(big.Float).SetPrec(80).SetInt64(1), 1.0
	tops, exponentials := oraclePrefixes(x)
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
			y[k] = tops[k] + math.Log(exponentials[k])
			if math.IsInf(tops[k], -1) && !math.IsNaN(exponentials[k]) {
				y[k] = tops[k]
			}
			size[k] = math.Abs(tops[k]) + 8
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

// emptyCarry is a carry without elements, before which so many positions lie.
func (c scanCase) emptyCarry(boundary int64) carry {
	row := map[string]carry{
		"cumsum": {0}, "cumprod": {1, 0}, "logcumsumexp": {-scanInf, -1}, "cummax": {-scanInf, math.NaN(), float64(boundary)}, "cummin": {scanInf, math.NaN(), float64(boundary)},
	}[c.kind]
	n, _ := tensor.Product(c.carryShape(false))
	return carry(scanRepeat(int(n)/len(row), row...))
}

// valueOfCarry is the result at the end of a row, of whose values the carry has the numbers.
func (c scanCase) valueOfCarry(t *testing.T, values, numbers []float64) float64 {
	switch c.kind {
	case "cumsum":
		return numbers[0]
	case "cumprod":
		m := math.Abs(numbers[0])
		require.True(t, m >= 1 && m < 2 || numbers[1] == 0 && (m == 0 || m-m != 0), "%s: %v", c, numbers)
		return math.Ldexp(numbers[0], int(numbers[1]))
	case "cummax", "cummin":
		n := len(values)
		record, boundary := oracleIndices(c, values)[n-1], n
		if c.reverse {
			boundary = 0
		}
		require.Equal(t, float64(scanPlace(c, int(record), n)), numbers[1], c.String())
		require.Equal(t, float64(boundary), numbers[2], c.String())
		return numbers[0]
	case "logcumsumexp":
		return numbers[0] + math.Log1p(numbers[1])
	}
	require.Fail(t, "no carry is defined", c.kind)
	return 0
}

package rope_test

import (
	"math"
	"math/big"
	"testing"

	"github.com/sternway/sternway/core/internal/ops/rope"
	"github.com/stretchr/testify/require"
)

// Every frequency is the float64 nearest to base^(-i/n), by the n-th power of it and of its
// neighbours in 300 bits.
func TestPowersAreNearest(t *testing.T) {
	number := func(v float64) *big.Float { return new(big.Float).SetPrec(300).SetFloat64(v) }
	raised := func(v *big.Float, n int) *big.Float {
		result := number(1)
		for range n {
			result.Mul(result, v)
		}
		return result
	}
	middle := func(a, b float64) *big.Float {
		return new(big.Float).Quo(new(big.Float).Add(number(a), number(b)), number(2))
	}
	for _, base := range []float64{10000, 500000, 1e6, 2, 0.5, 1.0001, 1e-3, 1e200} {
		for _, n := range []int{1, 2, 3, 32, 40, 64} {
			list := rope.Powers(base, int64(n))
			require.Len(t, list, n)
			require.Equal(t, rope.Double{High: 1}, list[0])
			for i, power := range list[1:] {
				f := power.High
				want := new(big.Float).Quo(number(1), raised(number(base), i+1)) // f^n
				low := raised(middle(math.Nextafter(f, 0), f), n)
				high := raised(middle(f, math.Nextafter(f, math.Inf(1))), n)
				require.True(t, low.Cmp(want) <= 0 && want.Cmp(high) <= 0, "base %v, %d of %d: %v", base, i+1, n, f)
			}
		}
	}
	require.Empty(t, rope.Powers(10000, 0))
	require.InEpsilon(t, 1e-150, rope.Powers(1e300, 2)[1].High, 1e-15)
	require.InEpsilon(t, math.Pow(10000, -0.75), rope.Powers(10000, 1<<19)[3<<17].High, 1e-15)
}

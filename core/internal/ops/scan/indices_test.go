package scan_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// cummax by any indices in range, and by indices out of range, which are refused.
func TestScanIndices(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	for _, s := range []struct {
		shape []int64
		dim   int
	}{{[]int64{7}, 0}, {[]int64{9, 100}, 1}, {[]int64{100, 9}, 0}, {[]int64{3, 1000, 20}, 1}, {[]int64{70000}, 0},
		{[]int64{1, 1100}, 0}, {[]int64{2, 1100}, 0}, {[]int64{3, 300}, 0}, {[]int64{4, 33}, 0}, {[]int64{3, 4, 50}, 1}, {[]int64{5, 300}, 0}} {
		for _, reverse := range []bool{false, true} {
			for _, dtype := range tensor.Floats {
				c := scanCase{kind: "cummax", shape: s.shape, dim: s.dim, reverse: reverse, dtype: dtype, indices: true}
				n, _ := tensor.Product(c.shape)
				indices := make([]int64, n)
				for i := range indices {
					indices[i] = random.Int64N(c.shape[c.dim])
				}
				dy, _ := scanNumbers(c.kind, random, n)
				dy = scanValues(scanTensor(dtype, c.shape, dy))
				got := c.run(t, dy, nil, indices)
				scanRows(c.shape, c.dim, func(at []int64) {
					row := make([]int64, len(at))
					for k := range at {
						row[k] = indices[at[k]]
					}
					want, size := scanOracle(c, scanOrder(scanCase{}, dy, at), nil, row)
					for k := range want {
						require.True(t, scanClose(c, got[at[k]], want[k], size[k], len(at)), "%s: %v, not %v", c, got[at[k]], want[k])
					}
				})
				if dtype != tensor.Float32 {
					continue
				}
				for _, bad := range []int64{-1, c.shape[c.dim], math.MinInt64, math.MaxInt64} {
					wrong := slices.Clone(indices)
					wrong[n-1], wrong[n/2] = bad, bad
					c.refused(t, dy, wrong, bad)
				}
			}
		}
	}
}

// refused expects an error that names a bad index, and dx as it was.
func (c scanCase) refused(t *testing.T, dy []float64, indices []int64, bad int64) {
	plan, err := core.Select(c.descriptor(), tensor.CPU, ops.Preference{})
	require.NoError(t, err)
	dx := scanTensor(c.dtype, c.shape, scanRepeat(len(dy), 42))
	err = plan.Run(0, tensor.Tensor{}, core.Args{"dy": scanTensor(c.dtype, c.shape, dy), "indices": scanIndexTensor(c.shape, indices), "dx": dx})
	var refusal *errs.Error
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, "indices", refusal.Operand)
	n := c.shape[c.dim]
	row, position := int64(-1), int64(-1)
	number := int64(0)
	scanRows(c.shape, c.dim, func(at []int64) {
		for k := range at {
			if j := indices[at[k]]; row < 0 && (j < 0 || j >= n) {
				row, position = number, int64(k)
			}
		}
		number++
	})
	require.Contains(t, refusal.Error(), fmt.Sprintf("%d at position %d of row %d", bad, position, row))
	for _, v := range scanValues(dx) {
		require.Equal(t, 42.0, v)
	}
}

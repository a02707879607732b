package elementwise

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// It alone finds terms that a sum loses or counts twice where a formula computes them, and no token
// is a row. Inputs: x, y. Output: the sum of x y.
func TestSumsOfTerms(t *testing.T) {
	op := &Op{
		inputs: 2, outputs: 1, denseInputs: 1 | 2, inputsOf: [3]uint8{1 | 2},
		Kernels: []KernelSet{{"terms", []int{0, 1}, []int{2}, unroll{1, 1, 1, 1}}},
		f64: func(_ *[4]float64, in, _, sums [][]float64) {
			for i, x := range in[0] {
				sums[0][i] = x * in[1][i]
			}
		},
	}
	for _, row := range []struct{ shape, sum []int64 }{
		{[]int64{3, 5}, []int64{3, 1}},
		{[]int64{3, 5}, []int64{5}},
		{[]int64{4, 70}, []int64{4, 1}}, // runs: a row is long enough to be one
		{[]int64{70, 70}, []int64{70}},
		{[]int64{2, 3, 65}, []int64{3, 1}},
		{[]int64{2, cpu.Grain + 3}, []int64{}}, // chunks
		{[]int64{cpu.Grain/3 + 50, 3}, []int64{3}},
	} {
		m := &mapReduce{op: op, element: tensor.Float64, shape: row.shape}
		for i, shape := range [][]int64{row.shape, {1}, row.sum} {
			m.alignRight(i, shape)
		}
		_, err := m.prepare(1, false, ops.Preference{})
		require.NoError(t, err)
		n, _ := tensor.Product(row.shape)
		kept, _ := tensor.Product(row.sum)
		x, sums := make([]float64, n), make([]float64, kept)
		for i := range x {
			x[i] = 1
		}
		m.Host([]tensor.Tensor{tensor.Of(x, row.shape...), tensor.Of([]float64{2}), tensor.Of(sums, row.sum...)})
		for _, sum := range sums {
			require.InDelta(t, float64(2*n/kept), sum, 0, "%v summed to %v", row.shape, row.sum)
		}
	}
}

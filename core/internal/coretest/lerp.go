package coretest

import (
	"math/rand/v2"
	"testing"

	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/stretchr/testify/require"
)

func init() {
	normal, data := (*rand.Rand).NormFloat64, []int64{2, 3, 4}
	all := [4]draw{normal, normal, normal, normal}
	learned, number := lerpDefinition(elementwise.LerpBackward{}, nil), lerpDefinition(lerpOfNumber(-0.3), nil)
	add(operation[elementwise.LerpBackward]{
		samples: []elementwise.LerpBackward{
			{Shape: []int64{4, 6}, Weight: Given[ops.Scalar](0.25)},
			{Shape: []int64{4, 6}, BShape: []int64{6}},
			{Shape: []int64{4, 6}, AShape: []int64{4, 1}, BShape: []int64{}, WeightShape: []int64{1, 6}},
		},
		define: lerpDefinition,
		kernels: map[string]problemOf[elementwise.LerpBackward]{
			"lerp_weight_backward": func(testing.TB, [4]float64) (d elementwise.LerpBackward) { return d },
			"lerp_backward": func(t testing.TB, scalar [4]float64) elementwise.LerpBackward {
				require.True(t, SameNumber(1-scalar[0], scalar[1]), "1 - weight is formed on the host")
				return lerpOfNumber(scalar[0])
			},
		},
		differences: []difference{
			{"lerp", learned, [4][]int64{data, data, data, data}, all},
			{"lerp broadcast", learned, [4][]int64{data, {4}, {3, 1}, {2, 1, 4}}, all},
			{"lerp 0-d weight", learned, [4][]int64{data, {}, data, {1}}, all},
			{"lerp number", number, [4][]int64{data, nil, {3, 1}, data}, all},
		},
	})
}

func lerpOfNumber(weight float64) elementwise.LerpBackward {
	return elementwise.LerpBackward{Weight: Given(ops.Scalar(weight))}
}

// Inputs: dy, weight, a, b.
func lerpDefinition(d elementwise.LerpBackward, _ func(int) bool) *definition {
	weight := func(in *[4]float64) float64 {
		if d.Weight != nil {
			return float64(*d.Weight)
		}
		return in[1]
	}
	return &definition{
		inputs: 4, gradients: [3]int{2, 3, 1},
		forward: func(in, _ *[4]float64) float64 { return in[2] + weight(in)*(in[3]-in[2]) },
		terms: func(in *[4]float64) [3]Term {
			w := weight(in)
			return [3]Term{TermOf((1 - w) * in[0]), TermOf(w * in[0]), TermOf(in[0] * (in[3] - in[2]))}
		},
	}
}

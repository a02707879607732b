package elementwise_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
)

// lerpOf is a case whose operands are given by shape; nil: the shape of dy.
func lerpOf(reason string, shape, weight, a, b []int64) coretest.Trial {
	return coretest.Trial{Reason: reason, Descriptor: elementwise.LerpBackward{Shape: shape, WeightShape: weight, AShape: a, BShape: b}}
}

func TestLerpShapes(t *testing.T) {
	trials := []coretest.Trial{
		lerpOf("0-d", []int64{}, nil, nil, nil),
		lerpOf("rank 8 of ones", []int64{1, 1, 1, 1, 1, 1, 1, 1}, []int64{}, nil, []int64{1}),
		lerpOf("nothing", []int64{0}, nil, nil, nil),
		lerpOf("nothing in rows", []int64{3, 0}, nil, nil, nil),
		lerpOf("nothing in columns", []int64{0, 3}, nil, nil, nil),
		lerpOf("no sums at all", []int64{0, 3}, []int64{0, 1}, []int64{0, 1}, nil),
		lerpOf("rows summed over nothing", []int64{3, 0}, []int64{1, 1}, []int64{3, 1}, []int64{}),
		lerpOf("columns summed over nothing", []int64{0, 3}, []int64{1, 1}, []int64{3}, []int64{1, 3}),
		lerpOf("nothing between two sums", []int64{2, 0, 3}, []int64{2, 1, 1}, []int64{2, 1, 3}, []int64{3}),
		lerpOf("outer product", []int64{7, 9}, []int64{}, []int64{7, 1}, []int64{9}),
		lerpOf("trailing shapes", []int64{2, 3, 4}, []int64{4}, []int64{3, 4}, []int64{3, 1}),
		lerpOf("extents of 1 everywhere", []int64{1, 5, 1, 6, 1}, []int64{5, 1, 1, 1}, []int64{1, 6, 1}, []int64{1, 1, 1, 6, 1}),
		lerpOf("alternating dimensions of rank 8", []int64{2, 3, 2, 3, 2, 3, 2, 3}, []int64{1, 1, 2, 3, 1, 1, 2, 3},
			[]int64{1, 3, 1, 3, 1, 3, 1, 3}, []int64{2, 1, 2, 1, 2, 1, 2, 1}),
	}
	for _, n := range []int64{1, 2, 31, 32, 33, 127, 511, 512, 513, 1023, 1024, 1025} { // around vectors and the edges of blocks
		trials = append(trials, lerpOf(fmt.Sprintf("a row of %d", n), []int64{n}, []int64{1}, nil, []int64{}),
			lerpOf(fmt.Sprintf("rows of %d", n), []int64{3, n}, []int64{3, 1}, nil, []int64{1, 1}),
			lerpOf(fmt.Sprintf("%d columns", n), []int64{5, n}, []int64{n}, []int64{1, n}, nil),
			lerpOf(fmt.Sprintf("columns of %d", n), []int64{n, 3}, []int64{3}, nil, []int64{1, 1}))
	}
	coretest.Conform(t, trials)
}

func TestLerpLongSums(t *testing.T) {
	coretest.Conform(t, []coretest.Trial{
		lerpOf("a row in parts, the last of one element", []int64{2*cpu.Grain + 1}, []int64{}, nil, nil),
		lerpOf("rows in parts", []int64{2, cpu.Grain + 700}, []int64{2, 1}, []int64{1}, nil),
		lerpOf("a row that just needs no parts", []int64{cpu.Grain}, []int64{}, nil, nil),
		lerpOf("rows of two reduced dimensions apart", []int64{150, 4, 90}, []int64{4, 1}, nil, []int64{1, 4, 1}),
		lerpOf("narrow columns in parts", []int64{cpu.Grain/3 + 50, 3}, []int64{3}, nil, []int64{1, 3}),
		lerpOf("wide columns", []int64{6, 3000}, []int64{3000}, nil, nil),
		lerpOf("wide columns in parts", []int64{70, 1500}, []int64{1500}, nil, nil),
		lerpOf("columns inside kept rows", []int64{3, 40, 70}, []int64{3, 1, 70}, nil, nil),
		lerpOf("many short rows", []int64{20000, 2}, []int64{20000, 1}, nil, nil),
	})
}

// Every choice of dimensions to sum over, each in another operand of the same run.
func TestLerpBroadcastPatterns(t *testing.T) {
	shape := []int64{3, 4, 5}
	broadcast := func(pattern int) []int64 {
		own := make([]int64, 3)
		for d := range own {
			own[d] = shape[d]
			if pattern>>d&1 != 0 {
				own[d] = 1
			}
		}
		return own
	}
	var trials []coretest.Trial
	for pattern := range 8 {
		trials = append(trials, lerpOf(fmt.Sprintf("pattern %03b", pattern), shape, broadcast(pattern), broadcast(7-pattern), broadcast((pattern+3)%8)))
	}
	coretest.Conform(t, trials)
}

func TestLerpWeights(t *testing.T) {
	var trials []coretest.Trial
	for _, w := range []float64{0, 1, -0.3, 1.7, 1e-30, math.Inf(1), math.Inf(-1), math.NaN()} {
		weight := ops.Scalar(w)
		trials = append(trials, coretest.Trial{
			Reason:     fmt.Sprint("the number ", w),
			Descriptor: elementwise.LerpBackward{Shape: []int64{4, 33}, Weight: &weight, BShape: []int64{33}}, Without: []string{"weight", "dweight"},
		})
	}
	odd := func(r *rand.Rand) float64 {
		return []float64{0, 1, -1, 0.5, 2, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN()}[r.IntN(9)]
	}
	values := map[string]func(*rand.Rand) float64{"weight": odd, "a": odd, "b": odd}
	trials = append(trials,
		coretest.Trial{Reason: "infinities and NaN", Descriptor: elementwise.LerpBackward{Shape: []int64{4, 33}}, Values: values},
		coretest.Trial{Reason: "infinities and NaN, summed", Descriptor: elementwise.LerpBackward{Shape: []int64{40, 3}, WeightShape: []int64{1, 3}, AShape: []int64{40, 1}}, Values: values},
		coretest.Trial{Reason: "infinite dy", Descriptor: elementwise.LerpBackward{Shape: []int64{5, 7}, BShape: []int64{7}}, Values: map[string]func(*rand.Rand) float64{"dy": odd}})
	coretest.Conform(t, trials)
}

func TestLerpOperands(t *testing.T) {
	shape := []int64{6, 35}
	coretest.Conform(t, []coretest.Trial{
		{Reason: "dweight needs no weight", Descriptor: elementwise.LerpBackward{Shape: shape, WeightShape: []int64{}}, Without: []string{"weight", "da", "db"}},
		{Reason: "da and db need no ends", Descriptor: elementwise.LerpBackward{Shape: shape, BShape: []int64{35}}, Without: []string{"a", "b", "dweight"}},
		{Reason: "db alone", Descriptor: elementwise.LerpBackward{Shape: shape, BShape: []int64{6, 1}}, Without: []string{"a", "b", "da", "dweight"}},
	})
}

// The kernel that Select would not choose is right as well.
func TestLerpKernels(t *testing.T) {
	var trials []coretest.Trial
	for _, kernel := range []string{"rows", "columns"} {
		for _, row := range []coretest.Trial{
			lerpOf("rows", []int64{6, 35}, []int64{6, 1}, nil, nil),
			lerpOf("columns", []int64{35, 6}, []int64{6}, nil, nil),
			lerpOf("both", []int64{8, 9, 10}, []int64{9, 1}, []int64{8, 1, 10}, []int64{10}),
			lerpOf("long rows", []int64{2, cpu.Grain + 9}, []int64{2, 1}, nil, nil),
			lerpOf("long columns", []int64{cpu.Grain/3 + 9, 3}, []int64{3}, nil, nil),
		} {
			row.Kernel, row.Reason = kernel, row.Reason+" by "+kernel
			trials = append(trials, row)
		}
	}
	coretest.Conform(t, trials)
}

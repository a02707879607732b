package tensor_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// strided is a view that need not lie in memory: overlaps are a matter of addresses alone.
func strided(d tensor.DType, address int64, shape, strides []int64) tensor.Tensor {
	t := tensor.Tensor{Data: uintptr(address), DType: d, Device: tensor.CPU, NDim: int32(len(shape)), Present: 1}
	copy(t.Shape[:], shape)
	copy(t.Strides[:], strides)
	return t
}

func commonBytes(a, b *tensor.Tensor) bool {
	covered := coretest.ByteCounts(a)
	for at := range coretest.ByteCounts(b) {
		if covered[at] > 0 {
			return true
		}
	}
	return false
}

func repeatsBytes(t *tensor.Tensor) bool {
	for _, count := range coretest.ByteCounts(t) {
		if count > 1 {
			return true
		}
	}
	return false
}

// randomView draws a small view: half of the time a slice of one regular grid, as the views of one
// buffer are, else any strides.
func randomView(r *rand.Rand) tensor.Tensor {
	d := []tensor.DType{tensor.Int8, tensor.Float16, tensor.Float32, tensor.Float64}[r.IntN(4)]
	rank := r.IntN(4)
	shape, strides := make([]int64, rank), make([]int64, rank)
	grid := r.IntN(2) == 0
	for i := range shape {
		shape[i] = int64(r.IntN(5))
		strides[i] = int64(r.IntN(25) - 8)
		if grid {
			strides[i] = []int64{1, 2, 3, 4, 6, 8, 12, 24, -1, -4, -12}[r.IntN(11)]
		}
	}
	return strided(d, 4096+d.Size()*int64(r.IntN(40)), shape, strides)
}

func describe(t *tensor.Tensor) string {
	return fmt.Sprintf("%s at %d of shape %v and strides %v", t.DType, t.Data, t.Extents(), t.ElementStrides())
}

// The answers may err on one side alone: what shares a byte is never called disjoint, what repeats
// one is never let through.
func TestOverlapsAgainstBruteForce(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 5))
	proven, clean := 0, 0
	for range 30000 {
		a, b := randomView(random), randomView(random)
		if tensor.Disjoint(&a, &b) {
			proven++
			require.False(t, commonBytes(&a, &b), "%s and %s share bytes", describe(&a), describe(&b))
		}
		require.Equal(t, tensor.Disjoint(&a, &b), tensor.Disjoint(&b, &a), "%s and %s", describe(&a), describe(&b))
		if !tensor.SelfOverlaps(&a) {
			clean++
			require.False(t, repeatsBytes(&a), "%s repeats bytes", describe(&a))
		}
	}
	require.Greater(t, proven, 3000, "the views are too crowded to prove anything")
	require.Greater(t, clean, 3000)
}

func TestDisjointViewsOfOneBuffer(t *testing.T) {
	const base = 4096
	for _, row := range []struct {
		name     string
		a, b     tensor.Tensor
		disjoint bool
	}{
		{"one after the other", strided(tensor.Float32, base, []int64{8}, []int64{1}), strided(tensor.Float32, base+32, []int64{8}, []int64{1}), true},
		{"one byte in common", strided(tensor.Int8, base, []int64{33}, []int64{1}), strided(tensor.Float32, base+32, []int64{8}, []int64{1}), false},
		{"channels", strided(tensor.Float32, base, []int64{4, 6}, []int64{18, 3}), strided(tensor.Float32, base+4, []int64{4, 6}, []int64{18, 3}), true},
		{"channels of two numbers", strided(tensor.Float32, base, []int64{6, 2}, []int64{4, 1}), strided(tensor.Float32, base+8, []int64{6, 2}, []int64{4, 1}), true},
		{"channels that meet", strided(tensor.Float32, base, []int64{6, 2}, []int64{4, 1}), strided(tensor.Float32, base+4, []int64{6, 2}, []int64{4, 1}), false},
		{"even and odd columns", strided(tensor.Float16, base, []int64{5, 4}, []int64{8, 2}), strided(tensor.Float16, base+2, []int64{5, 4}, []int64{8, 2}), true},
		{"left and right half", strided(tensor.Float64, base, []int64{5, 4}, []int64{8, 1}), strided(tensor.Float64, base+32, []int64{5, 4}, []int64{8, 1}), true},
		{"columns that meet", strided(tensor.Float64, base, []int64{5, 5}, []int64{8, 1}), strided(tensor.Float64, base+32, []int64{5, 4}, []int64{8, 1}), false},
		{"blocks of a matrix", strided(tensor.Float32, base, []int64{3, 3}, []int64{9, 1}), strided(tensor.Float32, base+4*(3*9+4), []int64{3, 3}, []int64{9, 1}), true},
		{"blocks side by side, one lower", strided(tensor.Float32, base, []int64{3, 3}, []int64{9, 1}), strided(tensor.Float32, base+4*(1*9+3), []int64{3, 3}, []int64{9, 1}), true},
		{"heads of an attention layout", strided(tensor.BFloat16, base, []int64{2, 5, 4}, []int64{60, 12, 1}), strided(tensor.BFloat16, base+8, []int64{2, 5, 4}, []int64{60, 12, 1}), true},
		{"halves, one backwards", strided(tensor.Float32, base+4*3, []int64{5, 4}, []int64{8, -1}), strided(tensor.Float32, base+4*4, []int64{5, 4}, []int64{8, 1}), true},
		{"a view and itself", strided(tensor.Float32, base, []int64{4}, []int64{1}), strided(tensor.Float32, base, []int64{4}, []int64{1}), false},
		{"nothing inside something", strided(tensor.Float32, base, []int64{4}, []int64{1}), strided(tensor.Float32, base, []int64{3, 0}, []int64{1, 1}), true},
		{"0-d inside a vector", strided(tensor.Float32, base, []int64{4}, []int64{1}), strided(tensor.Float32, base+8, nil, nil), false},
		{"expanded beside", strided(tensor.Float32, base, []int64{4, 4}, []int64{0, 0}), strided(tensor.Float32, base+4, []int64{4}, []int64{1}), true},
	} {
		require.Equal(t, row.disjoint, !commonBytes(&row.a, &row.b), "%s: the row itself", row.name)
		require.Equal(t, row.disjoint, tensor.Disjoint(&row.a, &row.b), row.name)
		require.Equal(t, row.disjoint, tensor.Disjoint(&row.b, &row.a), row.name)
	}
}

func TestViewsThatRepeatThemselves(t *testing.T) {
	for _, row := range []struct {
		name           string
		shape, strides []int64
		repeats        bool
	}{
		{"row-major", []int64{2, 3, 4}, []int64{12, 4, 1}, false},
		{"transposed", []int64{4, 3, 2}, []int64{1, 4, 12}, false},
		{"gapped", []int64{3, 4}, []int64{11, 2}, false},
		{"backwards", []int64{3, 4}, []int64{-4, -1}, false},
		{"extents of 1 with any stride", []int64{1, 4, 1}, []int64{0, 1, -1}, false},
		{"0-d", nil, nil, false},
		{"empty and expanded", []int64{0, 4}, []int64{1, 0}, false},
		{"expanded", []int64{3, 4}, []int64{0, 1}, true},
		{"a sliding window", []int64{3, 2}, []int64{1, 1}, true},
		{"rows one too short", []int64{3, 4}, []int64{3, 1}, true},
	} {
		v := strided(tensor.Float32, 4096+400, row.shape, row.strides)
		require.Equal(t, row.repeats, repeatsBytes(&v), "%s: the row itself", row.name)
		require.Equal(t, row.repeats, tensor.SelfOverlaps(&v), row.name)
	}
}

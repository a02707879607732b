package scan_test

import (
	"math/rand/v2"
	"testing"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// Strided, expanded and reversed operands give the bits of contiguous ones.
func TestScanStrides(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 5))
	shape := []int64{6, 150, 10}
	lay := func(values []float64, dtype tensor.DType, strides []int64, first int64, room int64) tensor.Tensor {
		all := make([]float64, room)
		for i := range all {
			all[i] = scanNaN
		}
		for i := range int64(len(values)) {
			a, b, c := i/1500, i/10%150, i%10
			all[first+a*strides[0]+b*strides[1]+c*strides[2]] = values[i]
		}
		whole := scanTensor(dtype, []int64{room}, all)
		whole.Data += uintptr(first * dtype.Size())
		whole.NDim = 3
		copy(whole.Shape[:], shape)
		copy(whole.Strides[:], strides)
		return whole
	}
	layouts := []struct {
		strides     []int64
		first, room int64
	}{{[]int64{1500, 10, 1}, 0, 9000}, {[]int64{1, 6, 900}, 0, 9000}, {[]int64{-1500, -10, -1}, 8999, 9000}, {[]int64{3100, 1, 155}, 2, 20000}, {[]int64{10, 60, 1}, 0, 9000}, {[]int64{20000, 30, 3}, 0, 110000}}
	scanCases(func(c scanCase) {
		if c.indices {
			return
		}
		c.shape = shape
		for dim := range 3 {
			c.dim = dim
			dy, x := scanNumbers(c.kind, random, 9000)
			want := c.run(t, dy, x, nil)
			for i := range layouts {
				a, b, o := layouts[i], layouts[(i+1)%len(layouts)], layouts[(i+2)%len(layouts)]
				dx := lay(make([]float64, 9000), c.dtype, o.strides, o.first, o.room)
				args := core.Args{"dy": lay(dy, c.dtype, a.strides, a.first, a.room), "dx": dx}
				if scan.ByName[c.kind].ReadsX {
					args["x"] = lay(x, c.dtype, b.strides, b.first, b.room)
				}
				plan, err := core.Select(c.descriptor(), tensor.CPU, ops.Preference{})
				require.NoError(t, err)
				require.NoError(t, plan.Run(0, tensor.Tensor{}, args))
				flat := dx
				flat.NDim, flat.Shape[0], flat.Strides[0] = 1, o.room, 1
				flat.Data -= uintptr(o.first * c.dtype.Size())
				all := scanValues(flat)
				got := make([]float64, 9000)
				for k := range int64(9000) {
					got[k] = all[o.first+k/1500*o.strides[0]+k/10%150*o.strides[1]+k%10*o.strides[2]]
				}
				coretest.RequireSame(t, want, got, "%s, layout %d", c, i)
			}
			// one number everywhere
			same := c.run(t, scanRepeat(9000, 1.5), x, nil)
			one := scanTensor(c.dtype, []int64{1}, []float64{1.5})
			one.NDim = 3
			copy(one.Shape[:], shape)
			one.Strides = [tensor.MaxRank]int64{}
			dx := scanTensor(c.dtype, shape, make([]float64, 9000))
			args := core.Args{"dy": one, "dx": dx}
			if scan.ByName[c.kind].ReadsX {
				args["x"] = scanTensor(c.dtype, shape, x)
			}
			plan, err := core.Select(c.descriptor(), tensor.CPU, ops.Preference{})
			require.NoError(t, err)
			require.NoError(t, plan.Run(0, tensor.Tensor{}, args))
			coretest.RequireSame(t, same, scanValues(dx), c.String())
		}
	})
}

// Bits depend neither on the number of threads nor on the run.
func TestScanRepeats(t *testing.T) {
	defer func(n int) { require.NoError(t, core.SetNumThreads(n)) }(core.NumThreads())
	random := rand.New(rand.NewPCG(6, 6))
	scanCases(func(c scanCase) {
		for _, shape := range [][]int64{{300, 200}, {70001, 1}} {
			if c.shape, c.dim = shape, 0; c.dtype == tensor.Float16 || c.reverse {
				return
			}
			n, _ := tensor.Product(c.shape)
			dy, x := scanNumbers(c.kind, random, n)
			var indices []int64
			if c.indices {
				indices = scanIndices(x, c.shape, c.dim)
			}
			require.NoError(t, core.SetNumThreads(1))
			want := c.run(t, dy, x, indices)
			for i := range 20 {
				require.NoError(t, core.SetNumThreads(1+i%5))
				coretest.RequireSame(t, want, c.run(t, dy, x, indices), c.String())
			}
		}
	})
}

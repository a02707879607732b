package embedding_test

import (
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// bagTrial is a plan on the CPU with operands.
func bagTrial(t *testing.T, d embedding.EmbeddingBagBackward, l coretest.Layout) (*core.Plan, *coretest.BagCall) {
	t.Helper()
	plan, err := core.Select(d, tensor.CPU, ops.Preference{})
	require.NoError(t, err)
	return plan, coretest.NewBagCall(d, l)
}

// Bits do not depend on the number of threads, nor on which outputs are asked for.
func TestEmbeddingBagRepeats(t *testing.T) {
	defer func(n int) { require.NoError(t, core.SetNumThreads(n)) }(core.NumThreads())
	for _, mode := range embedding.BagModes {
		d := coretest.BagOf(mode, 50, 48, 3000, 150000) // several parts and buckets
		for _, dtype := range tensor.Floats {
			d.DType = dtype
			plan, c := bagTrial(t, d, coretest.Contiguous)
			require.NoError(t, plan.Run(0, tensor.Tensor{}, c.Args))
			first := map[string][]byte{}
			for _, name := range []string{"dweight", "d_per_sample_weights"} {
				if m := c.Memory[name]; m != nil {
					first[name] = m.Bits()
				}
			}
			for _, threads := range []int{1, 2, 3, 8, -2} { // negative: in wide numbers
				require.NoError(t, core.SetNumThreads(max(threads, -threads)))
				if threads < 0 {
					t.Run("wide", func(t *testing.T) {
						coretest.WideNumbers(t)
						plan, _ = bagTrial(t, d, coretest.Contiguous)
					})
				}
				for name, bits := range first {
					args := core.Args{}
					for operand, tensor := range c.Args {
						if operand == name || first[operand] == nil {
							args[operand] = tensor
						}
					}
					c.Memory[name].Poison()
					require.NoError(t, plan.Run(0, tensor.Tensor{}, args))
					require.Equal(t, bits, c.Memory[name].Bits(), "%s in mode %s with %d threads", name, mode, threads)
				}
			}
		}
	}
}

// Runs lend each other their memory: what one leaves there is nothing to the next, larger or
// smaller, nor to one at the same time.
func TestRaceOfBagsThatShareMemory(t *testing.T) {
	padding := int64(0)
	var group sync.WaitGroup
	for worker := range 4 {
		type run struct {
			plan *core.Plan
			c    *coretest.BagCall
		}
		var runs []run
		for k := range 6 {
			d := coretest.BagOf(embedding.BagModes[(k+worker)%3], []int64{3000, 7}[k%2], []int64{20, 33, 1}[k%3], []int64{400, 5}[k%2], []int64{9000, 40}[k%2])
			d.DType = tensor.Floats[(k+worker)%len(tensor.Floats)]
			if k%3 == 1 {
				d.PaddingIdx, d.IncludeLastOffset = &padding, true
			}
			plan, c := bagTrial(t, d, []coretest.Layout{coretest.Contiguous, coretest.Gapped}[worker%2])
			runs = append(runs, run{plan, c})
		}
		group.Go(func() {
			for range 5 {
				for _, r := range runs {
					if err := r.plan.Run(0, tensor.Tensor{}, r.c.Args); err != nil {
						panic(err)
					}
				}
			}
			for _, r := range runs {
				r.c.RequireDefinition(t, r.plan)
			}
		})
	}
	group.Wait()
}

// A run that repeats takes no memory of the size of its operands.
func TestEmbeddingBagKeepsItsMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for _, mode := range embedding.BagModes {
		for _, dtype := range tensor.Floats {
			d := coretest.BagOf(mode, 2000, 64, 2000, 40000)
			d.DType = dtype
			plan, c := bagTrial(t, d, coretest.Contiguous)
			require.NoError(t, plan.Run(0, tensor.Tensor{}, c.Args))
			var before, after runtime.MemStats
			const runs = 20
			runtime.ReadMemStats(&before)
			for range runs {
				require.NoError(t, plan.Run(0, tensor.Tensor{}, c.Args))
			}
			runtime.ReadMemStats(&after)
			require.Less(t, (after.TotalAlloc-before.TotalAlloc)/runs, uint64(1<<17), "%s %s", mode, dtype)
		}
	}
}

// A negative argmax is none, whatever is left of them in 32 bits.
func TestEmbeddingBagNegativeArgmax(t *testing.T) {
	none := []float64{-1, -2, math.MinInt32, -(1 << 32), 3 - (1 << 40), math.MinInt64}
	d := coretest.BagOf("max", 9, 33, 40, 300)
	d.DType = tensor.Float32
	for _, l := range []coretest.Layout{coretest.Contiguous, coretest.Permuted, coretest.Gapped, coretest.Flipped} {
		plan, c := bagTrial(t, d, l)
		kept := c.Memory["max_indices"].Values()
		c.Memory["max_indices"].Fill(func(i int64) float64 {
			if k := int(i) % (3 * len(none)); k < len(none) {
				return none[k]
			}
			return kept[i]
		})
		require.NoError(t, plan.Run(0, tensor.Tensor{}, c.Args))
		c.RequireDefinition(t, plan)
	}
}

// The values are looked at side by side; the first that is wrong is named, in any layout.
func TestEmbeddingBagNamesTheFirstWrongValue(t *testing.T) {
	d := coretest.BagOf("max", 9, 32, 4000, 100000)
	d.DType = tensor.Float32
	for _, l := range []coretest.Layout{coretest.Contiguous, coretest.Gapped, coretest.Flipped} {
		plan, c := bagTrial(t, d, l)
		argmax, indices := c.Memory["max_indices"], c.Memory["indices"]
		for _, row := range []struct {
			wrong *coretest.Memory
			want  string
		}{{argmax, "max_indices must be in [0, 9), the rows of the table, got 9 at [1250, 3]"}, {indices, "indices must be in [0, 9), the rows of the table, got 9 at position 40003"}} {
			values := row.wrong.Values()
			row.wrong.Fill(func(i int64) float64 {
				if i == 40003 || i > 70000 {
					return 9
				}
				return values[i]
			})
			require.ErrorContains(t, plan.Run(0, tensor.Tensor{}, c.Args), row.want)
		}
	}
}

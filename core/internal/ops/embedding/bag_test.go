package embedding_test

import (
	"fmt"
	"testing"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	tensorpkg "github.com/sternway/sternway/core/internal/tensor"
)

func TestEmbeddingBag(t *testing.T) {
	padding, int32s := int64(-1), tensorpkg.Int32
	for _, mode := range embedding.BagModes {
		for _, sizes := range [][4]int64{{5, 3, 4, 17}, {1, 1, 1, 1}, {7, 33, 5, 0}, {3, 64, 40, 900}, {9000, 2, 70, 300}, {40, 130, 6, 50}} {
			for variant := range 5 {
				d := coretest.BagOf(mode, sizes[0], sizes[1], sizes[2], sizes[3])
				switch variant {
				case 1, 3:
					d.PaddingIdx, d.IncludeLastOffset, d.IndexDType = &padding, true, tensorpkg.Int32
				case 2, 4:
					d.ScaleGradByFreq, d.OffsetDType = mode != "max", &int32s
				}
				for _, dtype := range tensorpkg.Floats {
					d.DType = dtype
					for _, l := range []coretest.Layout{coretest.Contiguous, coretest.Permuted, coretest.Gapped, coretest.Flipped} {
						t.Run(fmt.Sprint(mode, sizes, variant, dtype, l.Name), func(t *testing.T) {
							sample := d.DType
							if variant > 2 {
								coretest.WideNumbers(t)
								sample = tensorpkg.Float32
							}
							plan, err := core.Select(d, tensorpkg.CPU, ops.Preference{})
							require.NoError(t, err)
							require.Equal(t, variant > 2, coretest.ProgramOf(t, plan, 1, ops.Preference{}).(*embedding.BagProgram).Wide)
							c := coretest.NewBagCallOf(d, l, sample)
							require.NoError(t, plan.Run(0, tensorpkg.Tensor{}, c.Args))
							c.RequireDefinition(t, plan)
						})
					}
				}
			}
		}
	}
}

// What a GPU cannot number is refused there, by the name of the field, and taken on the CPU.
func TestEmbeddingBagCounts(t *testing.T) {
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	for name, change := range map[string]func(*embedding.EmbeddingBagBackward, int64){
		"num_embeddings": func(d *embedding.EmbeddingBagBackward, n int64) { d.NumEmbeddings = n },
		"embedding_dim":  func(d *embedding.EmbeddingBagBackward, n int64) { d.EmbeddingDim = n },
		"num_bags":       func(d *embedding.EmbeddingBagBackward, n int64) { d.NumBags = n },
		"total_indices":  func(d *embedding.EmbeddingBagBackward, n int64) { d.TotalIndices = n },
	} {
		for _, mode := range embedding.BagModes {
			for _, n := range []int64{1<<31 - 1, 1 << 31, 1<<32 - 2, 1<<32 - 1, 1 << 33, 1 << 50} {
				d := coretest.BagWith(func(d *embedding.EmbeddingBagBackward) { d.Mode = mode; change(d, n) })
				plan, err := core.Select(d, tensorpkg.CPU, ops.Preference{})
				require.NoError(t, err)
				if mode != "max" && name != "embedding_dim" {
					require.Equal(t, n >= 1<<32-1, coretest.ProgramOf(t, plan, 1, ops.Preference{}).(*embedding.BagProgram).Wide)
				}
				_, err = core.Select(d, tensorpkg.CUDA(0), ops.Preference{})
				require.ErrorIs(t, err, errs.ErrUnsupported)
				require.ErrorContains(t, err, fmt.Sprintf("%s must be less than 2147483647 on a GPU, got %d", name, n))
			}
		}
	}
	d := coretest.BagWith(func(d *embedding.EmbeddingBagBackward) { d.Mode, d.NumBags, d.EmbeddingDim = "max", 1<<16, 1<<16 })
	plan, err := core.Select(d, tensorpkg.CPU, ops.Preference{})
	require.NoError(t, err)
	require.True(t, coretest.ProgramOf(t, plan, 1, ops.Preference{}).(*embedding.BagProgram).Wide, "terms of mode max are numbered, too")
}

// The gradient of the weights of samples as a matrix has the bits that it has as a vector, however
// the matrix lies; of a dtype that is neither dy's nor float32, and of another shape, it is
// refused.
func TestEmbeddingBagSampleWeightsInRows(t *testing.T) {
	for _, dtype := range tensorpkg.Floats {
		for _, sizes := range [][2]int64{{4, 7}, {1, 9}, {9, 1}, {60, 50}, {3, 0}, {0, 0}} {
			bags, width := sizes[0], sizes[1]
			d := coretest.BagOf("sum", 11, 18, bags, bags*width)
			d.DType = dtype
			for _, sample := range []tensorpkg.DType{dtype, tensorpkg.Float32} {
				plan, err := core.Select(d, tensorpkg.CPU, ops.Preference{})
				require.NoError(t, err)
				c := coretest.NewBagCallOf(d, coretest.Contiguous, sample)
				delete(c.Args, "dweight")
				require.NoError(t, plan.Run(0, tensorpkg.Tensor{}, c.Args))
				line := c.Memory["d_per_sample_weights"].Values()
				for _, l := range []coretest.Layout{coretest.Contiguous, coretest.Permuted, coretest.Gapped, coretest.Flipped, coretest.Padded} {
					c.Output("d_per_sample_weights", sample, l, bags, width)
					require.NoError(t, plan.Run(0, tensorpkg.Tensor{}, c.Args))
					m := c.Memory["d_per_sample_weights"]
					m.RequireOnlyElementsWritten(t, l.Name)
					coretest.RequireSame(t, line, m.Values(), l.Name)
				}
				c.Output("d_per_sample_weights", sample, coretest.Contiguous, width+1, bags)
				require.ErrorIs(t, plan.Run(0, tensorpkg.Tensor{}, c.Args), errs.ErrInvalidProblem)
			}
			plan, err := core.Select(d, tensorpkg.CPU, ops.Preference{})
			require.NoError(t, err)
			for _, name := range []string{"per_sample_weights", "d_per_sample_weights"} {
				for _, other := range tensorpkg.Floats {
					c := coretest.NewBagCall(d, coretest.Contiguous)
					c.Memory[name] = coretest.NewMemory(other, tensorpkg.CPU, []int64{d.TotalIndices}, coretest.Contiguous).Fill(func(int64) float64 { return 0 })
					c.Args[name] = c.Memory[name].Tensor
					if err := plan.Run(0, tensorpkg.Tensor{}, c.Args); other == dtype || other == tensorpkg.Float32 {
						require.NoError(t, err)
					} else {
						require.ErrorContains(t, err, name+" must be "+dtype.String())
					}
				}
			}
		}
	}
}

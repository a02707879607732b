package embedding_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	tensorpkg "github.com/sternway/sternway/core/internal/tensor"
)

// The sizes are rows, columns and indices: few of each, none, rows that occur hundreds of times,
// rows of which most do not occur, and rows of several vectors.
func TestEmbedding(t *testing.T) {
	padding := int64(-1)
	for _, sizes := range [][3]int64{{5, 3, 17}, {1, 1, 1}, {7, 33, 0}, {3, 64, 900}, {9000, 2, 300}, {40, 130, 50}, {4, 0, 3}} {
		for variant := range 4 {
			d := embedding.EmbeddingBackward{NumEmbeddings: sizes[0], EmbeddingDim: sizes[1], NumIndices: sizes[2], IndexDType: tensorpkg.Int64}
			if variant%2 == 1 {
				d.PaddingIdx, d.IndexDType, d.ScaleGradByFreq = &padding, tensorpkg.Int32, true
			}
			for _, dtype := range tensorpkg.Floats {
				d.DType = dtype
				for _, l := range []coretest.Layout{coretest.Contiguous, coretest.Permuted, coretest.Gapped, coretest.Flipped} {
					t.Run(fmt.Sprint(sizes, variant, dtype, l.Name), func(t *testing.T) {
						if variant > 1 {
							coretest.WideNumbers(t)
						}
						plan, err := core.Select(d, tensorpkg.CPU, ops.Preference{})
						require.NoError(t, err)
						require.Equal(t, variant > 1, coretest.ProgramOf(t, plan, 1, ops.Preference{}).(*embedding.BagProgram).Wide)
						c := coretest.NewEmbeddingCall(d, l)
						require.NoError(t, plan.Run(0, tensorpkg.Tensor{}, c.Args))
						c.RequireDefinition(t, plan)
						dy := coretest.NewMemory(dtype, tensorpkg.CPU, []int64{d.NumIndices, d.EmbeddingDim}, coretest.Expanded).Fill(func(int64) float64 { return 0.75 })
						c.Memory["dy"], c.Args["dy"] = dy, dy.Tensor
						c.Output("dweight", dtype, l, d.NumEmbeddings, d.EmbeddingDim)
						require.NoError(t, plan.Run(0, tensorpkg.Tensor{}, c.Args))
						c.RequireDefinition(t, plan)
					})
				}
			}
		}
	}
}

// Counts that a GPU cannot number are refused there by the name of the field, and taken on the CPU.
func TestEmbeddingCounts(t *testing.T) {
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	for name, change := range map[string]func(*embedding.EmbeddingBackward, int64){
		"num_embeddings": func(d *embedding.EmbeddingBackward, n int64) { d.NumEmbeddings = n },
		"embedding_dim":  func(d *embedding.EmbeddingBackward, n int64) { d.EmbeddingDim = n },
		"num_indices":    func(d *embedding.EmbeddingBackward, n int64) { d.NumIndices = n },
	} {
		for _, n := range []int64{1<<31 - 1, 1 << 32, 1 << 50} {
			d := embedding.EmbeddingBackward{NumEmbeddings: 5, EmbeddingDim: 3, NumIndices: 7, DType: tensorpkg.Float32, IndexDType: tensorpkg.Int64}
			change(&d, n)
			_, err := core.Select(d, tensorpkg.CPU, ops.Preference{})
			require.NoError(t, err)
			_, err = core.Select(d, tensorpkg.CUDA(0), ops.Preference{})
			require.ErrorIs(t, err, errs.ErrUnsupported)
			require.ErrorContains(t, err, fmt.Sprintf("embedding_backward: %s must be less than 2147483647 on a GPU, got %d", name, n))
		}
	}
	d := embedding.EmbeddingBackward{NumEmbeddings: 5, EmbeddingDim: 3, NumIndices: embedding.BagTile + 1, DType: tensorpkg.Float32, IndexDType: tensorpkg.Int64}
	_, err := core.Select(d, tensorpkg.CUDA(0), ops.Preference{Kernel: embedding.KernelSingleLaunch})
	require.ErrorContains(t, err, "embedding_backward: preference.kernel must be")
}

// The launches are those of bags of one position each, without an address of offsets.
func TestEmbeddingWords(t *testing.T) {
	at, size := coretest.WordsOf[embedding.BagArgs]()
	for _, row := range []struct {
		rows, columns, indices int64
		byFrequency            bool
		order                  []string
		lanes, slices, plain   uint64
	}{
		{151936, 4096, 32768, false, []string{"clear", "keys", "scatter", "count", "scatter", "count", "scatter", "bounds", "sorted_bf16", "long_rows_bf16"}, 32, 16, 1},
		{9000, 256, 5000, true, []string{"clear", "keys", "scatter", "count", "scatter", "bounds", "sorted_bf16", "long_rows_bf16"}, 32, 1, 0},
		{9000, 256, 2000, false, []string{"single_launch_bf16"}, 32, 1, 1},
		{9000, 256, 0, false, []string{"clear"}, 0, 0, 0},
	} {
		fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
		d := embedding.EmbeddingBackward{NumEmbeddings: row.rows, EmbeddingDim: row.columns, NumIndices: row.indices, DType: tensorpkg.BFloat16,
			IndexDType: tensorpkg.Int32, ScaleGradByFreq: row.byFrequency}
		plan, err := core.Select(d, tensorpkg.CUDA(0), ops.Preference{})
		require.NoError(t, err)
		args, workspace := coretest.DeviceArgs(plan, "dy", "indices", "dweight")
		require.NoError(t, plan.RunOrdered(7, workspace, args))
		var order []string
		for _, l := range fake.Launches {
			require.Len(t, l.Words, size)
			order = append(order, strings.TrimPrefix(l.Symbol, "embedding_bag_backward_"))
			for name, want := range map[string]uint64{
				"bagless": 1, "offsets": 0, "sampleWeights": 0, "maxIndices": 0, "weight": 0, "dsample": 0, "dy": uint64(args[0].Data), "indices": uint64(args[1].Data),
				"dweight": uint64(args[2].Data), "indexWide": 0, "bags": uint64(row.indices), "total": uint64(row.indices), "positions": 0, "mean": 0, "last": 0,
			} {
				require.Equal(t, want, l.Words[at[name]], "%s of %s", name, l.Symbol)
			}
			if strings.HasPrefix(l.Symbol, "embedding_bag_backward_sorted") {
				require.Equal(t, []uint64{row.lanes, row.slices, row.plain}, []uint64{l.Words[at["lanes"]], l.Words[at["slices"]], l.Words[at["plain"]]})
			}
		}
		require.Equal(t, row.order, order)
	}
}

// Bags say that they have offsets, even where there are none to read.
func TestBagsAreNotBagless(t *testing.T) {
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	at, _ := coretest.WordsOf[embedding.BagArgs]()
	for _, bags := range []int64{0, 2} {
		d := coretest.BagWith(func(d *embedding.EmbeddingBagBackward) { d.NumBags = bags })
		plan, err := core.Select(d, tensorpkg.CUDA(0), ops.Preference{})
		require.NoError(t, err)
		args, workspace := coretest.DeviceArgs(plan, "dy", "indices", "offsets", "dweight")
		fake.Launches = nil
		require.NoError(t, plan.RunOrdered(0, workspace, args))
		require.NotEmpty(t, fake.Launches)
		for _, l := range fake.Launches {
			require.Zero(t, l.Words[at["bagless"]])
		}
	}
}

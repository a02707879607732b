package embedding_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/tensor"
)

// The launch of one table: CTAs for all bags and slices, and 16-byte accesses where operands allow
// them.
func TestEmbeddingBagForwardWords(t *testing.T) {
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
	at, size := coretest.WordsOf[embedding.BagForwardArgs]()
	for _, row := range []struct {
		mode           string
		dtype          tensor.DType
		columns, bags  int64
		step           int64 // of rows of weight, or 0
		symbol         string
		grid           uint32
		wide, isVector uint64
	}{
		{"sum", tensor.Float32, 128, 8192, 0, "embedding_bag_sum_f32", 1024, 1, 0},           // a warp for each bag
		{"mean", tensor.BFloat16, 64, 8192, 0, "embedding_bag_sum_bf16", 256, 1, 0},          // 8 threads
		{"sum", tensor.Float32, 4, 100, 0, "embedding_bag_sum_f32", 2, 1, 0},                 // at least 4 threads
		{"sum", tensor.Float64, 130, 7, 0, "embedding_bag_sum_f64", 3, 1, 0},                 // 3 slices
		{"sum", tensor.Float32, 130, 7, 0, "embedding_bag_sum_f32", 5, 0, 0},                 // 5 slices of one column a thread
		{"sum", tensor.Float32, 128, 7, 130, "embedding_bag_sum_f32", 4, 0, 0},               // rows begin anywhere
		{"max", tensor.Float16, 256, 8, 0, "embedding_bag_max_f16", 1, 1, 1},                 // max_indices in vectors
		{"max", tensor.Float16, 0, 8, 0, "", 0, 0, 0},                                        // nothing to write
		{"max", tensor.Float16, 8, 0, 0, "", 0, 0, 0},                                        // no bags
		{"sum", tensor.Float32, 1 << 12, 1 << 20, 0, "embedding_bag_sum_f32", 1 << 22, 1, 0}, // 64-bit numbers of threads
	} {
		d := coretest.ForwardOf(row.mode, 9000, row.columns, row.bags, 5000)
		d.DType = row.dtype
		plan, err := core.Select(d, tensor.CUDA(0), ops.Preference{})
		require.NoError(t, err)
		require.Zero(t, plan.WorkspaceSize())
		names := []string{"weight", "indices", "offsets", "y"}
		if row.mode == "max" {
			names = append(names, "max_indices")
		}
		args, workspace := coretest.DeviceArgs(plan, names...)
		if row.step > 0 {
			args[0].Strides[0] = row.step
		}
		fake.Launches = nil
		require.NoError(t, plan.RunOrdered(7, workspace, args))
		if row.symbol == "" {
			require.Empty(t, fake.Launches)
			continue
		}
		require.Len(t, fake.Launches, 1)
		l := fake.Launches[0]
		require.Len(t, l.Words, size)
		require.Equal(t, row.symbol, l.Symbol)
		require.Equal(t, row.grid, l.Grid, "%v", row)
		for name, want := range map[string]uint64{
			"weight": uint64(args[0].Data), "weightRow": uint64(args[0].Strides[0]), "weightColumn": 1, "indices": uint64(args[1].Data), "indexWide": 1,
			"offsets": uint64(args[2].Data), "tables": 0, "sampleWeights": 0, "rows": 9000, "columns": uint64(row.columns), "bags": uint64(row.bags),
			"total": 5000, "padding": 1<<64 - 1, "last": 0, "wide": row.wide, "maxVector": row.isVector, "blocks": uint64(row.grid), "yRow": uint64(row.columns),
		} {
			require.Equal(t, want, l.Words[at[name]], "%s of %v", name, row)
		}
		require.Equal(t, row.mode == "mean", l.Words[at["mean"]] == 1)
	}
}

// Many tables: each has as many CTAs as the widest needs. 16-byte accesses take the word of the
// descriptor, and aligned operands.
func TestEmbeddingBagsForwardWords(t *testing.T) {
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
	at, _ := coretest.WordsOf[embedding.BagForwardArgs]()
	for _, row := range []struct {
		isAligned bool
		moved     int
		wide      uint64
		grid      uint32
	}{{true, -1, 1, 3 * 63}, {false, -1, 0, 3 * 250}, {true, 0, 0, 3 * 250}, {true, 4, 0, 3 * 250}} {
		d := coretest.TablesOf("sum")
		d.DType, d.NumBags, d.IsAligned = tensor.Float32, 1000, row.isAligned
		plan, err := core.Select(d, tensor.CUDA(0), ops.Preference{})
		require.NoError(t, err)
		args, workspace := coretest.DeviceArgs(plan, "weight", "indices", "offsets", "tables", "y")
		if row.moved >= 0 {
			args[[]int{0, 1, 2, 3, 5}[row.moved]].Data += 4
		}
		fake.Launches = nil
		require.NoError(t, plan.RunOrdered(7, workspace, args))
		require.Len(t, fake.Launches, 1)
		l := fake.Launches[0]
		require.Equal(t, row.grid, l.Grid)
		for name, want := range map[string]uint64{
			"tables": uint64(args[3].Data), "y": uint64(args[5].Data), "last": 1, "bags": 1000, "wide": row.wide, "blocks": uint64(row.grid) / 3, "indexWide": 0, "offsetWide": 0,
		} {
			require.Equal(t, want, l.Words[at[name]], "%s of %v", name, row)
		}
	}
}

// Counts that a GPU cannot number are refused there by the name of the field, and taken on the CPU.
func TestEmbeddingBagsForwardCounts(t *testing.T) {
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	one, many := coretest.ForwardOf("sum", 5, 3, 2, 7), coretest.TablesOf("sum")
	one.DType, many.DType, many.IsAligned = tensor.Float32, tensor.Float32, false
	n := int64(1<<31 - 1)
	problems := map[string]ops.Descriptor{}
	for name, field := range map[string]*int64{
		"embedding_bag: num_embeddings": &one.NumEmbeddings, "embedding_bag: embedding_dim": &one.EmbeddingDim,
		"embedding_bag: num_bags": &one.NumBags, "embedding_bag: total_indices": &one.TotalIndices,
		"embedding_bags: num_rows": &many.NumRows, "embedding_bags: num_columns": &many.NumColumns, "embedding_bags: embedding_dim": &many.EmbeddingDim,
		"embedding_bags: num_tables * num_bags": &many.NumBags, "embedding_bags: total_indices": &many.TotalIndices,
	} {
		before := *field
		*field = n
		if name[:14] == "embedding_bag:" {
			problems[name] = one
		} else {
			problems[name] = many
		}
		*field = before
	}
	for name, d := range problems {
		_, err := core.Select(d, tensor.CPU, ops.Preference{})
		require.NoError(t, err)
		_, err = core.Select(d, tensor.CUDA(0), ops.Preference{})
		require.ErrorIs(t, err, errs.ErrUnsupported)
		require.ErrorContains(t, err, name+" must be less than 2147483647 on a GPU, got")
	}
}

package embedding_test

import (
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/tensor"
)

// symbolsOf are the kernels of the launches of one run, without their families.
func symbolsOf(fake *coretest.FakeCUDA) (names []string) {
	for _, l := range fake.Launches {
		name := strings.TrimPrefix(strings.TrimPrefix(l.Symbol, "embedding_bag_backward_"), "embedding_")
		names = append(names, name)
	}
	return names
}

// With an optimizer the rows that have entries are updated and nothing is cleared; an empty batch
// is a step, too. Without one the gradients of many tables are cleared before some are written.
func TestUpdateLaunches(t *testing.T) {
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	at, _ := coretest.WordsOf[embedding.BagArgs]()
	empty := coretest.TablesOf("sum")
	empty.TotalIndices = 0
	learning := embedding.Learning{Optimizer: "adagrad"}
	sorted := []string{"keys", "scatter", "bounds", "update_sorted_f32", "update_long_rows_f32"}
	for _, row := range []struct {
		d    ops.Descriptor
		want []string
	}{
		{coretest.Learning(coretest.BagOf("sum", 5, 8, 4, 5000), "adam"), append([]string{"clear"}, sorted...)},
		{coretest.Learning(coretest.BagOf("sum", 5, 8, 4, 12), "adam"), []string{"sort", "bounds", "update_sorted_f32"}},
		{coretest.Learning(coretest.BagOf("max", 5, 8, 4, 40), "sgd"), []string{"sort", "argmax", "collect", "bounds", "update_sorted_argmax_f32", "update_long_rows_f32"}},
		{coretest.Learning(coretest.BagOf("sum", 5, 8, 4, 0), "adam"), []string{"update_advance"}},
		{embedding.EmbeddingBagsBackward{EmbeddingBags: empty, Learning: learning}, []string{"update_advance"}},
		{embedding.EmbeddingBagsBackward{EmbeddingBags: empty}, []string{"clear"}},
		{embedding.EmbeddingBagsBackward{EmbeddingBags: coretest.TablesOf("sum")}, []string{"clear", "sort", "bounds", "update_sorted_f32"}},
	} {
		plan, err := core.Select(coretest.WithDType(row.d, tensor.Float32), tensor.CUDA(0), ops.Preference{})
		require.NoError(t, err)
		names := []string{"dy", "indices", "offsets", "tables", "weight", "options", "sum", "exp_avg", "exp_avg_sq", "dweight"}
		if plan.Operands()[4] == "max_indices" && strings.Contains(strings.Join(row.want, " "), "argmax") {
			names = append(names, "max_indices")
		}
		fake.Launches = nil
		args, workspace := coretest.DeviceArgs(plan, names...)
		require.NoError(t, plan.RunOrdered(0, workspace, args))
		require.Equal(t, row.want, symbolsOf(fake), "%+v", row.d)
		for _, l := range fake.Launches {
			require.EqualValues(t, 1, l.Words[at["onlyEntries"]], l.Symbol)
		}
	}
}

// Units share the entries alone where other rows are left alone: a table of any size adds none.
func TestUnitsOfEntries(t *testing.T) {
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
	size := func(rows int64) int64 {
		plan, err := core.Select(coretest.WithDType(coretest.Learning(coretest.BagOf("sum", rows, 64, 64, 5000), "sgd"), tensor.Float32), tensor.CUDA(0), ops.Preference{})
		require.NoError(t, err)
		return plan.WorkspaceSize()
	}
	require.Equal(t, size(100_000), size(1<<23), "as many passes of the sort")
}

// The rebased offsets of a table live until its run ends, although the loops have only their
// address.
func TestTablesSurviveGarbageCollection(t *testing.T) {
	d := embedding.EmbeddingBagsBackward{EmbeddingBags: embedding.EmbeddingBags{
		NumTables: 2, NumBags: 2, NumRows: 4, NumElements: 4, NumColumns: 2, EmbeddingDim: 1, TotalIndices: 4, DType: tensor.Float64, Mode: "sum", IndexDType: tensor.Int64,
	}}
	plan, err := core.Select(d, tensor.CPU, ops.Preference{})
	require.NoError(t, err)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 200 {
				dweight := make([]float64, 4)
				err := plan.Run(0, tensor.Tensor{}, core.Args{
					"dy": numbers([]float64{1, 10, 2, 20}, 2, 2), "indices": integers(0, 1, 0, 1), "offsets": integers(0, 1, 2, 3, 4),
					"tables": tableRows([]int64{0, 0, 0, 2, 2, 1, 4, 4, 2}), "dweight": numbers(dweight, 4),
				})
				assert.NoError(t, err)
				assert.Equal(t, []float64{1, 2, 10, 20}, dweight)
				runtime.GC()
			}
		})
	}
	group.Wait()
}

// numbers is a contiguous tensor in memory made in Go.
func numbers(values []float64, shape ...int64) tensor.Tensor {
	start := unsafe.Pointer(unsafe.SliceData(values))
	v := tensor.Tensor{Data: uintptr(start), Pin: start, DType: tensor.Float64, Device: tensor.CPU, NDim: int32(len(shape)), Present: 1}
	copy(v.Shape[:], shape)
	copy(v.Strides[:], tensor.Compact(shape))
	return v
}

// integers is a vector in memory made in Go.
func integers(values ...int64) tensor.Tensor {
	start := unsafe.Pointer(unsafe.SliceData(values))
	v := numbers(nil, int64(len(values)))
	v.Data, v.Pin, v.DType = uintptr(start), start, tensor.Int64
	return v
}

// tableRows is the operand `tables`.
func tableRows(words []int64) tensor.Tensor {
	v := integers(words...)
	v.NDim, v.Shape[0], v.Shape[1], v.Strides[0], v.Strides[1] = 2, int64(len(words)/3), 3, 3, 1
	return v
}

// A step of Adam on the CPU, with weight decay and a scaled loss, is the one of the formula; other
// rows and their state keep their bits.
func TestAdamOnTheCPU(t *testing.T) {
	d := embedding.EmbeddingBackward{NumEmbeddings: 3, EmbeddingDim: 1, NumIndices: 2, DType: tensor.Float64, IndexDType: tensor.Int64, Learning: embedding.Learning{Optimizer: "adam"}}
	plan, err := core.Select(d, tensor.CPU, ops.Preference{})
	require.NoError(t, err)
	weight, mean, squares := []float64{1, 2, 3}, []float64{0.1, 0.2, 0.3}, []float64{0.5, 0.6, 0.7}
	options := []float64{0.1, 1e-8, 0.5, 0.9, 0.99, 4, 6, 0, 0, 0}
	dy, indices := []float64{8, 16}, integers(1, 1)
	require.NoError(t, plan.Run(0, tensor.Tensor{}, core.Args{
		"dy": numbers(dy, 2, 1), "indices": indices, "weight": numbers(weight, 3, 1), "options": numbers(options, 10),
		"exp_avg": numbers(mean, 3, 1), "exp_avg_sq": numbers(squares, 3, 1),
	}))
	g := (8.0+16)/4 + 0.5*2
	m, v := 0.2+0.1*(g-0.2), 0.6+0.01*(g*g-0.6)
	step := 0.1 * math.Sqrt(1-math.Pow(0.99, 7)) / (1 - math.Pow(0.9, 7))
	require.InDelta(t, 2-step*m/(math.Sqrt(v)+1e-8), weight[1], 1e-15)
	require.InDeltaSlice(t, []float64{0.1, m, 0.3}, mean, 1e-15)
	require.InDeltaSlice(t, []float64{0.5, v, 0.7}, squares, 1e-14)
	require.Equal(t, []float64{1, 3, 7, 1}, []float64{weight[0], weight[2], options[embedding.OptionStep], options[embedding.OptionDraw]})
}

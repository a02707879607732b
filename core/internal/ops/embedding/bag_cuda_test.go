package embedding_test

import (
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	tensorpkg "github.com/sternway/sternway/core/internal/tensor"
)

// A launch says how wide the weights of samples are, and where the rows of their gradient lie.
func TestEmbeddingBagWordsOfSampleWeights(t *testing.T) {
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	at, _ := coretest.WordsOf[embedding.BagArgs]()
	d := coretest.BagOf("sum", 5, 8, 4, 12)
	d.DType = tensorpkg.Float16
	plan, err := core.Select(d, tensorpkg.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	for _, row := range []struct {
		weights, gradient tensorpkg.DType
		shape, strides    []int64
		want              [5]uint64 // sample_weight_single, dsample_single, dsample_row, dsample_column, dsample_width
	}{
		{tensorpkg.Float16, tensorpkg.Float16, []int64{12}, []int64{2}, [5]uint64{0, 0, 0, 2, 0}},
		{tensorpkg.Float32, tensorpkg.Float16, []int64{12}, []int64{1}, [5]uint64{1, 0, 0, 1, 0}},
		{tensorpkg.Float16, tensorpkg.Float32, []int64{4, 3}, []int64{3, 1}, [5]uint64{0, 1, 0, 1, 0}},
		{tensorpkg.Float32, tensorpkg.Float32, []int64{4, 3}, []int64{1, 4}, [5]uint64{1, 1, 1, 4, 3}},
		{tensorpkg.Float32, tensorpkg.Float32, []int64{4, 3}, []int64{5, 1}, [5]uint64{1, 1, 5, 1, 3}},
	} {
		fake.Launches = nil
		args, workspace := coretest.DeviceArgs(plan, plan.Operands()...)
		args[embedding.BagMaxIndices] = tensorpkg.Tensor{}
		args[embedding.BagSampleWeights].DType, args[embedding.BagDsample].DType = row.weights, row.gradient
		args[embedding.BagDsample].NDim = int32(len(row.shape))
		copy(args[embedding.BagDsample].Shape[:], row.shape)
		copy(args[embedding.BagDsample].Strides[:], row.strides)
		require.NoError(t, plan.RunOrdered(0, workspace, args))
		require.NotEmpty(t, fake.Launches)
		for _, l := range fake.Launches {
			var got [5]uint64
			for k, name := range []string{"sampleWeightSingle", "dsampleSingle", "dsampleRow", "dsampleColumn", "dsampleWidth"} {
				got[k] = l.Words[at[name]]
			}
			require.Equal(t, row.want, got, "%s %v", l.Symbol, row)
		}
	}
}

// The words of a launch are the fields of the struct in cuda/, and so are the constants.
func TestEmbeddingBagWords(t *testing.T) {
	at, size := coretest.WordsOf[embedding.BagArgs]()
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	d := coretest.BagOf("mean", 9000, 256, 12, 5000)
	d.DType, d.ScaleGradByFreq = tensorpkg.BFloat16, true
	plan, err := core.Select(d, tensorpkg.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	tensor := func(dtype tensorpkg.DType, data uintptr, shape ...int64) tensorpkg.Tensor {
		v := tensorpkg.Tensor{Data: data, DType: dtype, Device: tensorpkg.CUDA(0), NDim: int32(len(shape)), Present: 1}
		copy(v.Shape[:], shape)
		copy(v.Strides[:], tensorpkg.Compact(shape))
		return v
	}
	args := core.Args{"dy": tensor(tensorpkg.BFloat16, 1<<30, 12, 256), "indices": tensor(tensorpkg.Int64, 1<<31, 5000), "offsets": tensor(tensorpkg.Int64, 1<<32, 12),
		"dweight": tensor(tensorpkg.BFloat16, 1<<33, 9000, 256)}
	require.NoError(t, plan.Run(7, tensor(tensorpkg.Uint8, 1<<40, plan.WorkspaceSize()), args))
	var order []string
	for _, l := range fake.Launches {
		require.Len(t, l.Words, size)
		require.EqualValues(t, 7, l.Stream)
		order = append(order, strings.TrimPrefix(l.Symbol, "embedding_bag_backward_"))
		for name, want := range map[string]uint64{"dy": 1 << 30, "dyBag": 256, "dyColumn": 1, "indices": 1 << 31, "indexWide": 1, "offsets": 1 << 32,
			"weight": 0, "dweight": 1 << 33, "workspace": 1 << 40, "rows": 9000, "columns": 256, "bags": 12, "total": 5000, "padding": 1<<64 - 1,
			"last": 0, "mean": 1, "byFrequency": 1, "positions": 0, "bits": 7} {
			require.Equal(t, want, l.Words[at[name]], "%s of %s", name, l.Symbol)
		}
		for name, where := range at {
			if strings.HasSuffix(name, "At") {
				require.Less(t, l.Words[where], uint64(plan.WorkspaceSize()), name)
			}
		}
	}
	require.Equal(t, []string{"clear", "keys", "scatter", "count", "scatter", "bounds", "sorted_bf16", "long_rows_bf16"}, order)
	require.LessOrEqual(t, embedding.BagSortBlocks, embedding.BagGroup*embedding.BagGroup, "a group of blocks, and the groups, are read at once")
}

// Parts of the workspace do not overlap: each begins behind the one before, whatever the problem.
func TestEmbeddingBagWorkspace(t *testing.T) {
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	for _, mode := range embedding.BagModes {
		for _, total := range []int64{0, 1, 31, 32, 2048, 2049, 70000, 5 << 20} {
			d := coretest.BagOf(mode, 1000, 96, 77, total)
			d.DType = tensorpkg.Float64
			plan, err := core.Select(d, tensorpkg.CUDA(0), ops.Preference{Kernel: embedding.KernelSorted})
			require.NoError(t, err)
			program := coretest.ProgramOf(t, plan, 4, ops.Preference{Kernel: embedding.KernelSorted}).(*embedding.BagProgram)
			layout := program.Layout()
			require.LessOrEqual(t, layout.Partial+program.TotalChunks()*96*8, layout.Size)
			require.LessOrEqual(t, program.Chunks(program.Levels()), int64(embedding.BagTopChunks), "few chunks are left at the top")
			require.Less(t, program.Passes()*program.Digit(), int64(33))
			require.True(t, total == 0 || layout.Lists+4*(2+4*program.Chunks(1)+program.MaxSlices()*program.TotalChunks()) <= layout.Partial)
			require.Zero(t, layout.Counts%16+layout.Totals%16, "zeros are written 16 bytes at a time")
		}
	}
}

// Few positions are one launch of as many blocks as fill the device, or more of the rows that a
// block may have; without a workspace.
func TestEmbeddingBagFew(t *testing.T) {
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
	at, _ := coretest.WordsOf[embedding.BagArgs]()
	zero, plenty := int64(0), int64(1<<40)
	for _, row := range []struct {
		rows, columns, total int64
		preference           ops.Preference
		kernel               string
		grid, each           uint64 // blocks, rows of each
	}{
		{1000, 128, 640, ops.Preference{}, embedding.KernelSingleLaunch, 250, 4},
		{1, 128, 1, ops.Preference{}, embedding.KernelSingleLaunch, 1, 1},
		{embedding.BagSingleLaunchRows * embedding.BagSingleLaunchBlocks * 132, 128, embedding.BagTile, ops.Preference{}, embedding.KernelSingleLaunch, embedding.BagSingleLaunchBlocks * 132, embedding.BagSingleLaunchRows},
		{embedding.BagSingleLaunchRows*embedding.BagSingleLaunchBlocks*132 + 1, 128, 640, ops.Preference{}, embedding.KernelSorted, 0, 0},
		{embedding.BagSingleLaunchRows*embedding.BagSingleLaunchBlocks*132 + 1, 128, 640, ops.Preference{Kernel: embedding.KernelSingleLaunch}, embedding.KernelSingleLaunch, embedding.BagSingleLaunchBlocks*132 + 1, embedding.BagSingleLaunchRows},
		{1000, 128, embedding.BagTile + 1, ops.Preference{}, embedding.KernelSorted, 0, 0},
		{1000, 256, embedding.BagTile, ops.Preference{}, embedding.KernelSorted, 0, 0}, // two slices of a row with all positions
		{1000, 256, embedding.BagTile, ops.Preference{MaxWorkspace: &plenty}, embedding.KernelSorted, 0, 0},
		{1000, 256, embedding.BagTile, ops.Preference{MaxWorkspace: &zero}, embedding.KernelSingleLaunch, 250, 4},
		{1000, 256, embedding.BagTile, ops.Preference{Kernel: embedding.KernelSingleLaunch}, embedding.KernelSingleLaunch, 250, 4},
		{1000, 128, 640, ops.Preference{Kernel: embedding.KernelSorted}, embedding.KernelSorted, 0, 0},
		{1000, 128, 0, ops.Preference{}, embedding.KernelSorted, 0, 0},
	} {
		d := coretest.BagOf("sum", row.rows, row.columns, 32, row.total)
		d.DType = tensorpkg.Float32
		plan, err := core.Select(d, tensorpkg.CUDA(0), row.preference)
		require.NoError(t, err)
		require.Equal(t, row.kernel, plan.SKU().Kernel, "%v", row)
		if row.kernel == embedding.KernelSorted {
			continue
		}
		require.Zero(t, plan.WorkspaceSize())
		fake.Launches = nil
		args, workspace := coretest.DeviceArgs(plan, "dy", "indices", "offsets", "dweight")
		require.NoError(t, plan.RunOrdered(0, workspace, args))
		require.Len(t, fake.Launches, 1)
		l := fake.Launches[0]
		require.Equal(t, "embedding_bag_backward_single_launch_f32", l.Symbol)
		require.Equal(t, []uint64{row.grid, row.each}, []uint64{uint64(l.Grid), l.Words[at["tiles"]]})
	}
	for _, device := range []tensorpkg.Device{tensorpkg.CPU, tensorpkg.CUDA(0)} {
		d := coretest.BagWith(func(d *embedding.EmbeddingBagBackward) { d.TotalIndices = embedding.BagTile + 1 })
		_, err := core.Select(d, device, ops.Preference{Kernel: embedding.KernelSingleLaunch})
		require.ErrorIs(t, err, errs.ErrUnsupported)
	}
	require.Equal(t, embedding.BagSingleLaunchRows, 1<<embedding.BagDigitBits-1, "a row of another CTA is a digit, too")
}

// A row is cut into no more slices than the workspace has room for, however the operands lie.
func TestEmbeddingBagSlices(t *testing.T) {
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	at, _ := coretest.WordsOf[embedding.BagArgs]()
	for _, dtype := range tensorpkg.Floats {
		for columns := int64(1); columns < 700; columns += 1 + columns/40 {
			for _, step := range []int64{columns, columns + 1} { // rows of dy, and with a gap behind each
				bags := embedding.BagL2Bytes/(512*2) + 1 // dy is too large for the cache by as much as makes slices narrower
				d := coretest.BagOf("sum", 50, columns, int64(2*bags), int64(10*bags))
				d.DType = dtype
				plan, err := core.Select(d, tensorpkg.CUDA(0), ops.Preference{})
				require.NoError(t, err)
				tensor := func(dtype tensorpkg.DType, data uintptr, step int64, shape ...int64) tensorpkg.Tensor {
					v := tensorpkg.Tensor{Data: data, DType: dtype, Device: tensorpkg.CUDA(0), NDim: int32(len(shape)), Present: 1}
					copy(v.Shape[:], shape)
					copy(v.Strides[:], tensorpkg.Compact(shape))
					if len(shape) == 2 {
						v.Strides[0] = step
					}
					return v
				}
				fake.Launches = nil
				require.NoError(t, plan.Run(7, tensor(tensorpkg.Uint8, 1<<50, 0, plan.WorkspaceSize()), core.Args{
					"dy": tensor(dtype, 1<<40, step, d.NumBags, columns), "dweight": tensor(dtype, 1<<44, columns, 50, columns),
					"indices": tensor(tensorpkg.Int64, 1<<46, 0, d.TotalIndices), "offsets": tensor(tensorpkg.Int64, 1<<47, 0, d.NumBags)}))
				last := fake.Launches[len(fake.Launches)-1].Words
				require.LessOrEqual(t, int64(last[at["slices"]]), coretest.ProgramOf(t, plan, 132, ops.Preference{}).(*embedding.BagProgram).MaxSlices(), "%d columns of %v", columns, dtype)
				require.GreaterOrEqual(t, int64(last[at["slices"]]*last[at["lanes"]])*max(1, int64(last[at["wide"]])*16/dtype.Size()), columns)
			}
		}
	}
}

// Under SetCheck a launch reads the integers first, and refuses what the CPU does.
func TestEmbeddingBagChecksValuesOnADevice(t *testing.T) {
	core.SetCheck(true)
	defer core.SetCheck(false)
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	d := coretest.BagWith(func(*embedding.EmbeddingBagBackward) {})
	plan, err := core.Select(d, tensorpkg.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	c := coretest.NewBagCall(d, coretest.Contiguous)
	for name, tensor := range c.Args {
		tensor.Device = tensorpkg.CUDA(0)
		c.Args[name] = tensor
	}
	workspace := tensorpkg.Tensor{Data: 1 << 41, DType: tensorpkg.Uint8, Device: tensorpkg.CUDA(0), NDim: 1, Present: 1, Shape: [tensorpkg.MaxRank]int64{plan.WorkspaceSize()}, Strides: [tensorpkg.MaxRank]int64{1}}
	for _, row := range []struct{ operand, wanted string }{
		{"", ""}, {"offsets", "offsets must be in order, from 0 to at most 7 indices, got 11 at bag 1"}, {"indices", "indices must be in [0, 5), the rows of the table, got 11 at position 1"},
	} {
		fake.Launches, fake.Memory = nil, map[uintptr][]byte{}
		for _, name := range []string{"indices", "offsets"} {
			copied := slices.Clone(c.Memory[name].Bytes)
			at := c.Args[name].Data - uintptr(unsafe.Pointer(unsafe.SliceData(c.Memory[name].Bytes)))
			if name == row.operand {
				coretest.Encode(d.IndexDType, copied[int64(at)+d.IndexDType.Size():], 11)
			}
			fake.Memory[c.Args[name].Data] = copied[at:]
		}
		err := plan.Run(0, workspace, c.Args)
		if row.operand == "" {
			require.NoError(t, err)
			require.NotEmpty(t, fake.Launches)
			continue
		}
		require.ErrorContains(t, err, row.wanted)
		require.ErrorIs(t, err, errs.ErrInvalidProblem)
		require.Empty(t, fake.Launches, "nothing is written")
	}
}

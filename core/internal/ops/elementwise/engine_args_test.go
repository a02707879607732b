package elementwise_test

import (
	"math"
	"testing"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// out is the place of an output, counted from the first.
const out = 100

// words of one launch, worked out by hand.
type wordsOfLaunch struct {
	symbol   string
	grid     uint32  // 0: left to kernel_geometry_test.go, as is all that tuning may change
	extents  []int64 // the others are 1
	fields   map[string]int64
	uses     [2]int64  // of the inputs and of the outputs
	operands [][]int64 // of each operand in use: its place, its number among the plan's, and its strides; the others are 0
}

const number025 = 0x3fd0000000000000 // 0.25 as a float64

// On a device of 132 multiprocessors.
func TestWordsByHand(t *testing.T) {
	weight := ops.Scalar(0.25)
	for _, row := range []struct {
		name       string
		descriptor elementwise.LerpBackward
		operands   []string
		change     func(args []tensor.Tensor)
		parted     int64 // number of sums that are added in parts
		launches   []wordsOfLaunch
	}{
		{"contiguous dimensions are one", elementwise.LerpBackward{Shape: []int64{25, 40}, Weight: &weight}, []string{"dy", "da", "db"}, nil, 0, []wordsOfLaunch{{
			"lerp_backward_map_f32", 2, []int64{1000},
			map[string]int64{"kept": 0, "dims": 0, "keptSize": 1, "reducedSize": 1, "lanes": 128, "tiles": 2, "chunks": 1, "wide": 1,
				"summed": 0, "partial": 0, "scalar": number025},
			[2]int64{0b01, 0b01_01}, [][]int64{{0, 0, 1}, {out, 4, 1}, {out + 1, 5, 1}},
		}}},
		{"dy with gaps between rows, da at an odd address", elementwise.LerpBackward{Shape: []int64{6, 40}, Weight: &weight}, []string{"dy", "da"},
			func(args []tensor.Tensor) { args[0].Strides[0] = 48; args[4].Data += 4 }, 0, []wordsOfLaunch{{
				"lerp_backward_map_f32", 1, []int64{40, 6},
				map[string]int64{"kept": 1, "dims": 1, "keptSize": 6, "reducedSize": 1, "tiles": 1, "wide": 0, "summed": 0},
				[2]int64{0b01, 0b00_01}, [][]int64{{0, 0, 1, 48}, {out, 4, 1, 40}},
			}}},
		{"expanded dy", elementwise.LerpBackward{Shape: []int64{6, 40}, Weight: &weight}, []string{"dy", "db"},
			func(args []tensor.Tensor) { args[0].Strides = [tensor.MaxRank]int64{} }, 0, []wordsOfLaunch{{
				"lerp_backward_map_f32", 1, []int64{240}, map[string]int64{"wide": 1},
				[2]int64{0b11, 0b01_00}, [][]int64{{0, 0, 0}, {out + 1, 5, 1}},
			}}},
		{"short rows, db beside them", elementwise.LerpBackward{Shape: []int64{5, 64}, Weight: &weight, AShape: []int64{5, 1}}, []string{"dy", "da", "db"}, nil, 0, []wordsOfLaunch{{
			"lerp_backward_rows_f32", 1, []int64{64, 5},
			map[string]int64{"kept": 1, "dims": 1, "keptSize": 5, "reducedSize": 1, "group": 4, "lanes": 4, "chunks": 1,
				"wide": 1, "summed": 1, "partial": 0},
			[2]int64{0b01, 0b01_00}, [][]int64{{0, 0, 1, 64}, {out, 4, 0, 1}, {out + 1, 5, 1, 64}},
		}}},
		{"long rows in parts", elementwise.LerpBackward{Shape: []int64{200, 1 << 20}, Weight: &weight, AShape: []int64{200, 1}}, []string{"dy", "da"}, nil, 200, []wordsOfLaunch{{
			"lerp_backward_rows_f32", 0, []int64{1 << 20, 200},
			map[string]int64{"kept": 1, "dims": 1, "keptSize": 200, "reducedSize": 1, "wide": 1, "summed": 1, "partial": 100 << 40},
			[2]int64{0b01, 0}, [][]int64{{0, 0, 1, 1 << 20}, {out, 4, 0, 1}},
		}, {
			"combine_f32", 0, []int64{1, 200},
			map[string]int64{"kept": 1, "dims": 1, "keptSize": 200, "summed": 1, "partial": 100 << 40},
			[2]int64{}, [][]int64{{out, 4, 0, 1}},
		}}},
		{"columns in parts", elementwise.LerpBackward{Shape: []int64{1 << 16, 4096}, Weight: &weight, BShape: []int64{4096}}, []string{"dy", "db"}, nil, 4096, []wordsOfLaunch{{
			"lerp_backward_columns_f32", 0, []int64{4096, 1 << 16},
			map[string]int64{"kept": 0, "dims": 1, "keptSize": 1, "reducedSize": 1 << 16, "wide": 1, "summed": 2, "partial": 100 << 40},
			[2]int64{0b01, 0}, [][]int64{{0, 0, 1, 4096}, {out + 1, 5, 1}},
		}, {
			"combine_f32", 0, []int64{4096},
			map[string]int64{"kept": 0, "dims": 0, "keptSize": 4096, "summed": 2, "partial": 100 << 40},
			[2]int64{}, [][]int64{{out + 1, 5, 1}},
		}}},
		{"columns of an inner dimension", elementwise.LerpBackward{Shape: []int64{3, 8, 40}, Weight: &weight, BShape: []int64{3, 1, 40}}, []string{"dy", "db"}, nil, 0, []wordsOfLaunch{{
			"lerp_backward_columns_f32", 3, []int64{40, 3, 8},
			map[string]int64{"kept": 1, "dims": 2, "keptSize": 3, "reducedSize": 8, "tiles": 1, "chunks": 1, "summed": 2, "partial": 0},
			[2]int64{0b01, 0}, [][]int64{{0, 0, 1, 320, 40}, {out + 1, 5, 1, 40}},
		}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
			row.descriptor.DType = tensor.Float32
			plan, err := core.Select(row.descriptor, tensor.CUDA(0), ops.Preference{})
			require.NoError(t, err)
			args, workspace := coretest.DeviceArgs(plan, row.operands...)
			if row.change != nil {
				row.change(args)
			}
			require.NoError(t, plan.RunOrdered(0, workspace, args))
			require.Len(t, fake.Launches, len(row.launches))
			at, _ := coretest.WordsOf[elementwise.IterSpace]()
			if chunks := int64(fake.Launches[0].Words[at["chunks"]]); row.parted > 0 {
				require.Greater(t, chunks, int64(1))
				require.Equal(t, chunks*row.parted*4, plan.WorkspaceSize(), "a float32 for each part of each sum")
			} else {
				require.Equal(t, int64(1), chunks)
				require.Zero(t, plan.WorkspaceSize())
			}
			for i := range row.launches {
				row.launches[i].require(t, &fake.Launches[i], args)
			}
		})
	}
}

func (w *wordsOfLaunch) require(t *testing.T, l *coretest.FakeLaunch, args []tensor.Tensor) {
	at, header := coretest.WordsOf[elementwise.IterSpace]()
	operandAt, size := coretest.WordsOf[elementwise.Operand]()
	require.Equal(t, w.symbol, l.Symbol)
	if w.grid != 0 {
		require.Equal(t, w.grid, l.Grid)
	}
	for d := range tensor.MaxRank {
		want := int64(1)
		if d < len(w.extents) {
			want = w.extents[d]
		}
		require.Equal(t, want, int64(l.Words[at["extent"]+d]), "extent %d", d)
	}
	for name, want := range w.fields {
		require.Contains(t, at, name)
		require.Equal(t, want, int64(l.Words[at[name]]), name)
	}
	if _, given := w.fields["scalar"]; given {
		require.Equal(t, []float64{0.25, 0.75}, []float64{math.Float64frombits(l.Words[at["scalar"]]), math.Float64frombits(l.Words[at["scalar"]+1])})
	}
	inputs := 0
	if l.Symbol != "combine_f32" {
		inputs = len(coretest.KernelSet(t, l.Symbol).In)
		require.Equal(t, w.uses[0]|w.uses[1]<<(2*inputs), int64(l.Words[at["uses"]]), "uses")
	}
	operands := make([]uint64, len(l.Words)-header)
	for _, o := range w.operands {
		place := int(o[0])
		if place >= out {
			place += inputs - out
		}
		words, operand := operands[place*size:], &args[o[1]]
		words[operandAt["data"]], words[operandAt["dtype"]] = uint64(operand.Data), uint64(operand.DType.Row())
		for d, stride := range o[2:] {
			words[operandAt["stride"]+d] = uint64(stride)
		}
	}
	require.Equal(t, operands, l.Words[header:], "operands")
}

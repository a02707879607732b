package elementwise_test

import (
	"fmt"
	"testing"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// The launches of a device of 132 multiprocessors: symbol, extents, how many of them are kept, and
// whether elements are read in vectors. These are choices for speed. That the words of a launch
// agree with each other and with the operands, the model of the kernels checks in every conformance
// trial (coretest/kernel_geometry.go).
func TestLaunchesByHand(t *testing.T) {
	weight := ops.Scalar(0.25)
	for _, row := range []struct {
		name       string
		descriptor elementwise.LerpBackward
		operands   []string
		change     func(args []tensor.Tensor)
		parted     int64 // number of sums that are added in parts
		launches   []string
	}{
		{"contiguous dimensions are one", elementwise.LerpBackward{Shape: []int64{25, 40}}, []string{"dy", "da", "db"}, nil, 0,
			[]string{"lerp_backward_map_f32 [1000] kept 0 in vectors"}},
		{"dy with gaps between rows, da at an odd address", elementwise.LerpBackward{Shape: []int64{6, 40}}, []string{"dy", "da"},
			func(args []tensor.Tensor) { args[0].Strides[0] = 48; args[4].Data += 4 }, 0,
			[]string{"lerp_backward_map_f32 [40 6] kept 1"}},
		{"expanded dy", elementwise.LerpBackward{Shape: []int64{6, 40}}, []string{"dy", "db"},
			func(args []tensor.Tensor) { args[0].Strides = [tensor.MaxRank]int64{} }, 0,
			[]string{"lerp_backward_map_f32 [240] kept 0 in vectors"}},
		{"short rows, db beside them", elementwise.LerpBackward{Shape: []int64{5, 64}, AShape: []int64{5, 1}}, []string{"dy", "da", "db"}, nil, 0,
			[]string{"lerp_backward_rows_f32 [64 5] kept 1 in vectors"}},
		{"long rows in parts", elementwise.LerpBackward{Shape: []int64{200, 1 << 20}, AShape: []int64{200, 1}}, []string{"dy", "da"}, nil, 200,
			[]string{"lerp_backward_rows_f32 [1048576 200] kept 1 in vectors", "combine_f32 [1 200] kept 1"}},
		{"columns in parts", elementwise.LerpBackward{Shape: []int64{1 << 16, 4096}, BShape: []int64{4096}}, []string{"dy", "db"}, nil, 4096,
			[]string{"lerp_backward_columns_f32 [4096 65536] kept 0 in vectors", "combine_f32 [4096] kept 0"}},
		{"columns of an inner dimension", elementwise.LerpBackward{Shape: []int64{3, 8, 40}, BShape: []int64{3, 1, 40}}, []string{"dy", "db"}, nil, 0,
			[]string{"lerp_backward_columns_f32 [40 3 8] kept 1 in vectors"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
			row.descriptor.DType, row.descriptor.Weight = tensor.Float32, &weight
			plan, err := core.Select(row.descriptor, tensor.CUDA(0), ops.Preference{})
			require.NoError(t, err)
			args, workspace := coretest.DeviceArgs(plan, row.operands...)
			if row.change != nil {
				row.change(args)
			}
			require.NoError(t, plan.RunOrdered(0, workspace, args))
			at, _ := coretest.WordsOf[elementwise.IterSpace]()
			var launches []string
			for _, l := range fake.Launches {
				text := fmt.Sprint(l.Symbol, " ", l.Words[at["extent"]:][:l.Words[at["dims"]]+1], " kept ", l.Words[at["kept"]])
				if l.Words[at["wide"]] != 0 {
					text += " in vectors"
				}
				launches = append(launches, text)
			}
			require.Equal(t, row.launches, launches)
			chunks := int64(fake.Launches[0].Words[at["chunks"]])
			require.Equal(t, row.parted > 0, chunks > 1)
			if row.parted > 0 {
				require.Equal(t, chunks*row.parted*4, plan.WorkspaceSize(), "a float32 for each part of each sum")
			} else {
				require.Zero(t, plan.WorkspaceSize())
			}
		})
	}
}

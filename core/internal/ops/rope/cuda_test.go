package rope_test

import (
	"testing"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/rope"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// Where tokens have fewer rows than a thread holds, a thread has several tokens, as many as leave
// blocks enough.
func TestRopeLaunchesOfFewRows(t *testing.T) {
	const many = 1 << 20
	problem, _ := coretest.WordsOf[rope.RopeProblem]()
	for _, c := range []struct {
		about                    string
		batch, heads, seq, width int64
		dtype                    tensor.DType
		change                   func(args []tensor.Tensor)
		kernel                   string
		tokens                   int64
	}{
		{"one row", 1, 1, many, 128, tensor.BFloat16, nil, "half_tokens_bf16", 16},
		{"one row of float32", 1, 1, many, 128, tensor.Float32, nil, "half_tokens_f32", 8},
		{"fewer tokens", 1, 1, 1 << 17, 128, tensor.BFloat16, nil, "half_tokens_bf16", 8},
		{"too few tokens", 1, 1, 1 << 12, 128, tensor.BFloat16, nil, "half_tokens_bf16", 1},
		{"three rows of three batches", 3, 1, many, 128, tensor.Float64, nil, "half_tokens_f64", 8},
		{"units that are no power of two", 1, 1, many, 96, tensor.BFloat16, nil, "half_tokens_bf16", 16},
		{"positions that batches share", 2, 1, many, 128, tensor.BFloat16, func(args []tensor.Tensor) {
			args[rope.Positions] = coretest.DeviceTensor(tensor.Int64, 50<<40, many)
		}, "half_tokens_bf16", 16},
		{"positions of each batch", 2, 1, many, 128, tensor.BFloat16, func(args []tensor.Tensor) {
			args[rope.Positions] = coretest.DeviceTensor(tensor.Int64, 50<<40, 2, many)
		}, "half_bf16", 0},
		{"four rows", 1, 4, many, 128, tensor.BFloat16, nil, "half_bf16", 0},
		{"narrow vectors", 1, 1, many, 128, tensor.BFloat16, func(args []tensor.Tensor) { args[rope.X].Data += 2 }, "half_bf16", 0},
		{"an expanded gradient", 1, 1, many, 128, tensor.BFloat16, func(args []tensor.Tensor) { args[rope.X].Strides = [tensor.MaxRank]int64{} }, "half_bf16", 0},
		{"tables", 1, 1, many, 128, tensor.BFloat16, func(args []tensor.Tensor) {
			args[rope.Cos], args[rope.Sin] = coretest.DeviceTensor(tensor.Float32, 60<<40, many, 128), coretest.DeviceTensor(tensor.Float32, 70<<40, many, 128)
		}, "half_tables_bf16", 0},
	} {
		t.Run(c.about, func(t *testing.T) {
			fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
			d := rope.RopeBackward{BatchSize: c.batch, NumHeads: c.heads, SeqLen: c.seq, HeadDim: c.width, DType: c.dtype, Pairing: "half"}
			plan, err := core.Select(d, tensor.CUDA(0), ops.Preference{})
			require.NoError(t, err)
			args, workspace := coretest.DeviceArgs(plan, "dy", "dx")
			if c.change != nil {
				c.change(args)
			}
			require.NoError(t, plan.RunOrdered(0, workspace, args))
			require.Len(t, fake.Launches, 1)
			require.Equal(t, "rope_backward_"+c.kernel, fake.Launches[0].Symbol)
			word := func(name string) int64 { return int64(fake.Launches[0].Words[problem[name]]) }
			require.Equal(t, c.tokens, word("most"))
			if c.tokens > 1 {
				require.Zero(t, word("tiles")*launch.BlockThreads%word("units"), "a thread stays at its unit")
				require.Equal(t, word("tiles")*launch.BlockThreads/word("units"), word("stride"))
				require.GreaterOrEqual(t, word("stride")*c.tokens, c.seq)
			}
		})
	}
}

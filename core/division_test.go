package core_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// divided are problems that are divided in every way: into many blocks and into one, along rows,
// columns and both, with parts of unequal size at the edges.
var divided = strings.Split(strings.TrimSpace(`
{"family": "lerp_backward", "shape": [1000, 1000], "dtype": "float32", "weight": 0.5}
{"family": "lerp_backward", "shape": [1000, 3000], "dtype": "bfloat16", "weight": 0.5, "b_shape": [3000]}
{"family": "lerp_backward", "shape": [1000, 300], "dtype": "float64", "weight": 0.5, "a_shape": [1000, 1]}
{"family": "lerp_backward", "shape": [3, 7], "dtype": "float32", "weight": 0.5}
{"family": "dequantize_per_token_backward", "shape": [500, 300], "dtype": "float32", "qdtype": "int8"}
{"family": "dequantize_per_token_backward", "shape": [3, 100000], "dtype": "float16", "qdtype": "uint8"}
{"family": "dequantize_per_token", "shape": [500, 300], "dtype": "float32", "qdtype": "int8"}
{"family": "fake_quantize_per_token_backward", "shape": [500, 300], "dtype": "float32", "quant_min": -8, "quant_max": 7}
{"family": "fake_quantize_per_token", "shape": [500, 300], "dtype": "float32", "quant_min": -8, "quant_max": 7}
{"family": "rope_backward", "batch_size": 2, "num_heads": 40, "seq_len": 300, "head_dim": 64, "dtype": "float32"}
{"family": "rope", "batch_size": 1, "num_heads": 3, "seq_len": 4, "head_dim": 6, "dtype": "bfloat16"}
{"family": "lerp_backward", "shape": [64, 100, 128], "dtype": "float32", "weight": 0.5, "b_shape": [100, 1]}
{"family": "rope", "batch_size": 1, "num_heads": 1, "seq_len": 131072, "head_dim": 128, "dtype": "bfloat16", "pairing": "half"}
{"family": "rope_backward", "batch_size": 2, "num_heads": 16, "num_key_heads": 4, "seq_len": 1000, "head_dim": 80, "dtype": "bfloat16", "pairing": "half"}
{"family": "scan_backward", "kind": "cumprod", "shape": [3, 2000, 96], "dtype": "float32", "dim": 1}
{"family": "scan_backward", "kind": "cumsum", "shape": [3000, 100], "dtype": "float32", "dim": 1}
{"family": "scan_backward", "kind": "cumprod", "shape": [100, 3000], "dtype": "float32", "dim": 0}
{"family": "scan_backward", "kind": "cummax", "shape": [3, 400000], "dtype": "float32", "dim": 1}
{"family": "scan_backward", "kind": "logcumsumexp", "shape": [8192, 8192], "dtype": "bfloat16", "dim": 1}
{"family": "scan_backward", "kind": "cumsum", "shape": [8192, 8192], "dtype": "bfloat16", "dim": 0}
{"family": "scan_backward", "kind": "cumprod", "shape": [64, 500], "dtype": "float32", "dim": 1, "carries": true}
{"family": "scan", "kind": "cumsum", "shape": [3000, 100], "dtype": "float32", "dim": 1}
{"family": "scan", "kind": "cummin", "shape": [1000000], "dtype": "float32", "dim": 0}
{"family": "scan", "kind": "cumprod", "shape": [30000, 2], "dtype": "float64", "dim": 0}
{"family": "embedding_bag_backward", "num_embeddings": 50000, "embedding_dim": 64, "num_bags": 100, "total_indices": 5000, "dtype": "float32", "index_dtype": "int64", "mode": "sum"}
{"family": "embedding_bag_backward", "num_embeddings": 500, "embedding_dim": 8, "num_bags": 100, "total_indices": 5000, "dtype": "float32", "index_dtype": "int64", "mode": "max"}
{"family": "embedding_bag_backward", "num_embeddings": 5000, "embedding_dim": 500, "num_bags": 100, "total_indices": 500000, "dtype": "float32", "index_dtype": "int64", "mode": "mean"}
{"family": "embedding_backward", "num_embeddings": 50000, "embedding_dim": 64, "num_indices": 500, "dtype": "float32", "index_dtype": "int64"}
{"family": "unique_rows", "num_rows": 100000, "total": 50000, "index_dtype": "int64"}
{"family": "unique_rows", "num_rows": 100, "total": 5, "index_dtype": "int64"}
`), "\n")

// ranOnTheCPU are problems with a reason for their size: one row, many rows, fewer elements than a
// task, parts of unequal size at the edges.
var ranOnTheCPU = strings.Split(strings.TrimSpace(`
{"family": "lerp_backward", "shape": [3, 7], "dtype": "float32", "weight": 0.5}
{"family": "lerp_backward", "shape": [1, 70000], "dtype": "float32", "weight": 0.5}
{"family": "lerp_backward", "shape": [70, 1500], "dtype": "float32", "weight": 0.5, "b_shape": [1500]}
{"family": "lerp_backward", "shape": [70, 1500], "dtype": "bfloat16", "weight": 0.5, "b_shape": [1500]}
{"family": "lerp_backward", "shape": [3, 300, 70], "dtype": "float64", "weight": 0.5, "b_shape": [3, 1, 70]}
{"family": "lerp_backward", "shape": [500, 300], "dtype": "float64", "weight": 0.5, "b_shape": [500, 1]}
{"family": "lerp_backward", "shape": [2, 70000], "dtype": "float32", "weight": 0.5, "b_shape": [2, 1]}
{"family": "dequantize_per_token_backward", "shape": [500, 300], "dtype": "float64", "qdtype": "int8"}
{"family": "dequantize_per_token_backward", "shape": [2, 70000], "dtype": "float64", "qdtype": "int8"}
{"family": "dequantize_per_token", "shape": [500, 300], "dtype": "float32", "qdtype": "int8"}
{"family": "fake_quantize_per_token_backward", "shape": [1, 70000], "dtype": "float32", "quant_min": -8, "quant_max": 7}
{"family": "fake_quantize_per_token", "shape": [500, 300], "dtype": "float32", "quant_min": -8, "quant_max": 7}
{"family": "rope_backward", "batch_size": 2, "num_heads": 40, "seq_len": 50, "head_dim": 16, "dtype": "float32", "num_key_heads": 3}
{"family": "rope", "batch_size": 1, "num_heads": 1, "seq_len": 700, "head_dim": 64, "dtype": "bfloat16"}
{"family": "rope", "batch_size": 1, "num_heads": 2, "seq_len": 3, "head_dim": 6000, "dtype": "float32"}
{"family": "scan_backward", "kind": "cumsum", "shape": [3000, 50], "dtype": "float32", "dim": 1}
{"family": "scan_backward", "kind": "cumprod", "shape": [50, 3000], "dtype": "float32", "dim": 0}
{"family": "scan_backward", "kind": "cumsum", "shape": [3, 40000], "dtype": "float32", "dim": 1}
{"family": "scan_backward", "kind": "cumsum", "shape": [50000], "dtype": "float32", "dim": 0}
{"family": "scan_backward", "kind": "cumprod", "shape": [7], "dtype": "float32", "dim": 0}
{"family": "scan_backward", "kind": "cummax", "shape": [20, 5000], "dtype": "float32", "dim": 1}
{"family": "scan", "kind": "cumsum", "shape": [3, 200, 70], "dtype": "float32", "dim": 1}
{"family": "scan", "kind": "cumsum", "shape": [300, 500], "dtype": "float32", "dim": 1}
{"family": "scan", "kind": "cumsum", "shape": [100000], "dtype": "float32", "dim": 0}
{"family": "scan", "kind": "cumprod", "shape": [30000, 2], "dtype": "float64", "dim": 0}
{"family": "scan", "kind": "logcumsumexp", "shape": [5, 9000], "dtype": "float32", "dim": 1}
{"family": "embedding_bag_backward", "num_embeddings": 3000, "embedding_dim": 16, "num_bags": 100, "total_indices": 5000, "dtype": "float32", "index_dtype": "int64", "mode": "sum"}
{"family": "embedding_bag_backward", "num_embeddings": 500, "embedding_dim": 8, "num_bags": 100, "total_indices": 5000, "dtype": "float32", "index_dtype": "int64", "mode": "max"}
{"family": "embedding_backward", "num_embeddings": 5, "embedding_dim": 4, "num_indices": 3, "dtype": "float32", "index_dtype": "int64"}
{"family": "embedding_backward", "num_embeddings": 3000, "embedding_dim": 16, "num_indices": 500, "dtype": "float32", "index_dtype": "int64"}
{"family": "unique_rows", "num_rows": 1000, "total": 50000, "index_dtype": "int64"}
{"family": "unique_rows", "num_rows": 100, "total": 5, "index_dtype": "int64"}
`), "\n")

// facts are the parts of a plan's description that its picture shows.
type facts struct {
	Tasks    []launch.Division `json:"tasks"`
	Launches []launchFacts     `json:"launches"`
}

type launchFacts struct {
	Kernel    string            `json:"kernel"`
	Grid      uint32            `json:"grid"`
	Threads   uint32            `json:"threads"`
	Cluster   uint32            `json:"cluster"`
	Shared    uint32            `json:"shared"`
	Divisions []launch.Division `json:"divisions"`
}

func factsOf(t *testing.T, plan *core.Plan) (f facts) {
	require.NoError(t, json.Unmarshal([]byte(plan.DivisionJSON()), &f))
	return f
}

// requireCovers checks that the blocks of a division cover the matrix of the work.
func requireCovers(t *testing.T, d *launch.Division) {
	require.GreaterOrEqual(t, d.Blocks*d.BlockRows*d.BlockColumns, d.Groups*d.Rows*d.Columns)
	require.LessOrEqual(t, d.BlockRows, d.Rows)
	require.LessOrEqual(t, d.BlockColumns, d.Columns)
	require.LessOrEqual(t, d.TileColumns, d.BlockColumns)
	require.Positive(t, d.TileColumns)
	if d.Rows > 1 {
		require.NotEmpty(t, d.RowUnit)
	}
	require.NotEmpty(t, d.ColumnUnit)
}

// onDevice is operand i at an address of its own, which nothing may read.
func onDevice(i int, o *ops.Operand) tensor.Tensor {
	return coretest.DeviceTensor(o.DTypes[0], uintptr(i+1)<<42, coretest.Concrete(o.Shapes[0])...)
}

// operandsOf are operands that a plan accepts: as many outputs and then as few inputs as possible.
func operandsOf(t *testing.T, plan *core.Plan, workspace tensor.Tensor, operand func(i int, o *ops.Operand) tensor.Tensor) (accepted []tensor.Tensor) {
	problem := coretest.ProblemOf(plan)
	most := 0
	for given := range 1 << len(problem.Operands) {
		args, value := make([]tensor.Tensor, len(problem.Operands)), 100
		for i, o := range problem.Operands {
			switch {
			case given>>i&1 == 0:
			case o.Out:
				args[i] = operand(i, &o)
				value += 10
			default:
				args[i] = operand(i, &o)
				value--
			}
		}
		if value > most && plan.CanImplementOrdered(workspace, args) == nil {
			accepted, most = args, value
		}
	}
	require.NotEmpty(t, accepted, "no operands are accepted")
	return accepted
}

// Each family is described on each backend: a family that is missing here has no picture.
func TestEveryFamilyIsDivided(t *testing.T) {
	for _, family := range ops.Families() {
		for list, descriptors := range map[string][]string{"divided": divided, "ranOnTheCPU": ranOnTheCPU} {
			isListed := slices.ContainsFunc(descriptors, func(d string) bool { return strings.Contains(d, `"family": "`+family.Name+`"`) })
			require.True(t, isListed, "no problem of family %s is in %s", family.Name, list)
		}
	}
}

// Tasks cover the work.
func TestDivisionOnTheCPU(t *testing.T) {
	for _, descriptor := range divided {
		plan, err := core.SelectJSON(descriptor, "cpu", "{}")
		require.NoError(t, err)
		f := factsOf(t, plan)
		require.Empty(t, f.Launches)
		require.NotEmpty(t, f.Tasks, "%s does not describe its tasks", descriptor)
		for i := range f.Tasks {
			requireCovers(t, &f.Tasks[i])
		}
	}
}

// requireDescribed checks that the CTAs of a launch are those of its divisions, or fewer that
// take several parts each.
func requireDescribed(t *testing.T, l *launchFacts) {
	require.NotEmpty(t, l.Divisions, "%s does not tell the queue how it divides its work (launch.Queue.Divide)", l.Kernel)
	blocks := int64(0)
	for i := range l.Divisions {
		requireCovers(t, &l.Divisions[i])
		blocks += l.Divisions[i].Blocks
	}
	isLooping := slices.ContainsFunc(looping, func(name string) bool { return strings.Contains(l.Kernel, name) })
	if isLooping {
		require.LessOrEqual(t, int64(l.Grid), blocks, l.Kernel)
	} else {
		require.Equal(t, int64(l.Grid), blocks, l.Kernel)
	}
}

// looping are kernels whose CTAs may take several parts, by parts of their names.
var looping = []string{"_pipelined", "_cluster", "_repair", "unique_rows", "_sorted", "_long_rows"}

// The launches are those of a run. The descriptions are kept in testdata, where tests of the
// pictures read them.
func TestDivisionOnAGPU(t *testing.T) {
	const golden = "testdata/divisions.json"
	described := map[string]json.RawMessage{}
	for _, descriptor := range divided {
		t.Run(descriptor, func(t *testing.T) {
			fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132, Clusters: func(l *driver.Launch) int { return 132 / int(l.Cluster) }}).Install(t)
			plan, err := core.SelectJSON(descriptor, "cuda:0", "{}")
			require.NoError(t, err)
			f := factsOf(t, plan)
			require.Empty(t, fake.Launches, "a description launches nothing")
			described[descriptor] = json.RawMessage(plan.DivisionJSON())

			workspace := tensor.Tensor{}
			if size := plan.WorkspaceSize(); size > 0 {
				workspace = coretest.DeviceTensor(tensor.Uint8, 100<<42, size)
			}
			args := operandsOf(t, plan, workspace, onDevice)
			require.NoError(t, plan.RunOrdered(0, workspace, args))
			require.Len(t, f.Launches, len(fake.Launches))
			for i, l := range fake.Launches {
				require.Equal(t, l.Symbol, f.Launches[i].Kernel)
				require.Equal(t, []uint32{l.Grid, l.Block, l.Cluster, l.Shared},
					[]uint32{f.Launches[i].Grid, f.Launches[i].Threads, f.Launches[i].Cluster, f.Launches[i].Shared})
			}
			for i := range f.Launches {
				requireDescribed(t, &f.Launches[i])
				requireWords(t, &f.Launches[i], fake.Launches[i].Words)
			}
		})
	}
	text, err := json.MarshalIndent(described, "", " ")
	require.NoError(t, err)
	if *coretest.Update {
		require.NoError(t, os.WriteFile(golden, append(text, '\n'), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), string(text)+"\n", "go test -update rewrites %s", golden)
}

// Plans of nothing, and of more than can be launched, are described as well.
func TestDivisionOfExtremes(t *testing.T) {
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
	for _, descriptor := range []string{
		`{"family": "lerp_backward", "shape": [0, 5], "dtype": "float32"}`,
		`{"family": "lerp_backward", "shape": [], "dtype": "float32"}`,
		`{"family": "lerp_backward", "shape": [1099511627776, 32], "dtype": "float64", "weight": 0.5}`,
		`{"family": "scan_backward", "kind": "cumsum", "shape": [], "dtype": "float32"}`,
		`{"family": "scan_backward", "kind": "cumsum", "shape": [4, 0], "dtype": "float32", "dim": 1}`,
		`{"family": "scan", "kind": "cumsum", "shape": [1073741824], "dtype": "float32", "dim": 0}`,
		`{"family": "rope", "batch_size": 0, "num_heads": 3, "seq_len": 4, "head_dim": 6, "dtype": "float32"}`,
		`{"family": "embedding_backward", "num_embeddings": 0, "embedding_dim": 4, "num_indices": 0, "dtype": "float32", "index_dtype": "int64"}`,
		`{"family": "unique_rows", "num_rows": 1, "total": 0, "index_dtype": "int64"}`,
	} {
		for _, device := range []string{"cpu", "cuda:0"} {
			plan, err := core.SelectJSON(descriptor, device, "{}")
			require.NoError(t, err, descriptor)
			f := factsOf(t, plan)
			for i := range f.Tasks {
				requireCovers(t, &f.Tasks[i])
			}
		}
	}
}

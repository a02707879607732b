package core_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/coretest"
)

func geometryOf(t *testing.T, plan *core.Plan) string {
	var facts struct{ Geometry string }
	require.NoError(t, json.Unmarshal([]byte(plan.DescribeJSON()), &facts))
	return facts.Geometry
}

// The launches are those of a run, and the description launches nothing.
func TestGeometryOnAGPU(t *testing.T) {
	for _, c := range []struct{ descriptor, operands string }{
		{`{"family": "lerp_backward", "shape": [1000, 3000], "dtype": "bfloat16", "weight": 0.5, "b_shape": [3000]}`, "dy da db"},
		{`{"family": "fake_quantize_per_token_backward", "shape": [500, 300], "dtype": "float32", "quant_min": -8, "quant_max": 7}`, "dy x scale dx dscale"},
		{`{"family": "rope_backward", "batch_size": 2, "num_heads": 16, "num_key_heads": 4, "seq_len": 1000, "head_dim": 80, "dtype": "bfloat16"}`, "dy dy_k dx dx_k"},
		{`{"family": "scan_backward", "kind": "cumprod", "shape": [2048, 8192], "dtype": "float32", "dim": 0}`, "dy x dx"},
		{`{"family": "scan", "kind": "cummin", "shape": [1000000], "dtype": "float32", "dim": 0}`, "x y indices"},
		{`{"family": "embedding_bag_backward", "num_embeddings": 5000, "embedding_dim": 500, "num_bags": 100, "total_indices": 500000, "dtype": "float32", "index_dtype": "int64", "mode": "max"}`, "dy indices offsets max_indices dweight"},
		{`{"family": "unique_rows", "num_rows": 100000, "total": 50000, "index_dtype": "int64"}`, "indices rows inverse count"},
	} {
		fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132, Clusters: func(l *driver.Launch) int { return 132 / int(l.Cluster) }}).Install(t)
		plan, err := core.SelectJSON(c.descriptor, "cuda:0", "{}")
		require.NoError(t, err)
		geometry := geometryOf(t, plan)
		require.Empty(t, fake.Launches)

		args, workspace := coretest.DeviceArgs(plan, strings.Fields(c.operands)...)
		require.NoError(t, plan.RunOrdered(0, workspace, args))
		var texts []string
		for _, l := range fake.Launches {
			text := fmt.Sprintf("%s: grid %d, block %d", l.Symbol, l.Grid, l.Block)
			if l.Cluster > 0 {
				text += fmt.Sprint(", cluster ", l.Cluster)
			}
			if l.Shared > 0 {
				text += fmt.Sprint(", shared memory ", l.Shared, " bytes")
			}
			texts = append(texts, text)
		}
		require.Equal(t, strings.Join(texts, ", then "), geometry)
	}
}

func TestGeometryOnTheCPU(t *testing.T) {
	for descriptor, geometry := range map[string]string{
		`{"family": "lerp_backward", "shape": [1000, 1000], "dtype": "float32", "weight": 0.5}`:                                                                                                "31 tasks", // of 32768 elements
		`{"family": "lerp_backward", "shape": [2, 70000], "dtype": "float32", "weight": 0.5, "b_shape": [2, 1]}`:                                                                               "6 tasks",  // three for each sum
		`{"family": "dequantize_per_token_backward", "shape": [2, 70000], "dtype": "float64", "qdtype": "int8"}`:                                                                               "6 tasks",  // three for each sum
		`{"family": "rope", "batch_size": 1, "num_heads": 1, "seq_len": 3, "head_dim": 6000, "dtype": "float32"}`:                                                                              "6 tasks",  // two for the pairs of a token
		`{"family": "scan", "kind": "cumsum", "shape": [300, 500], "dtype": "float32", "dim": 1}`:                                                                                              "5 tasks",
		`{"family": "scan_backward", "kind": "cumprod", "shape": [7], "dtype": "float32"}`:                                                                                                     "1 task",
		`{"family": "embedding_bag_backward", "num_embeddings": 3000, "embedding_dim": 16, "num_bags": 100, "total_indices": 5000, "dtype": "float32", "index_dtype": "int64", "mode": "sum"}`: "47 tasks",
		`{"family": "unique_rows", "num_rows": 1000, "total": 50000, "index_dtype": "int64"}`:                                                                                                  "7 tasks", // of 8192 indices
	} {
		plan, err := core.SelectJSON(descriptor, "cpu", "{}")
		require.NoError(t, err)
		require.Equal(t, geometry, geometryOf(t, plan), descriptor)
	}
}

// Plans of nothing, and of more than can be launched, are described as well.
func TestGeometryOfExtremes(t *testing.T) {
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
	tooLarge := "none: a grid exceeds the limit of CUDA"
	for _, c := range []struct{ descriptor, cpu, gpu string }{
		{`{"family": "lerp_backward", "shape": [0, 5], "dtype": "float32"}`, "0 tasks", "no launches"},
		{`{"family": "lerp_backward", "shape": [1099511627776, 32], "dtype": "float64", "weight": 0.5}`, "1073741824 tasks", tooLarge},
		{`{"family": "scan_backward", "kind": "cumsum", "shape": [4, 0], "dtype": "float32", "dim": 1}`, "0 tasks", "no launches"},
		{`{"family": "rope", "batch_size": 0, "num_heads": 3, "seq_len": 4, "head_dim": 6, "dtype": "float32"}`, "0 tasks", "no launches"},
		{`{"family": "embedding_backward", "num_embeddings": 0, "embedding_dim": 4, "num_indices": 0, "dtype": "float32", "index_dtype": "int64"}`, "0 tasks", "no launches"},
	} {
		for device, geometry := range map[string]string{"cpu": c.cpu, "cuda:0": c.gpu} {
			plan, err := core.SelectJSON(c.descriptor, device, "{}")
			require.NoError(t, err, c.descriptor)
			require.Equal(t, geometry, geometryOf(t, plan), c.descriptor)
		}
	}
}

// A description tries only sets of optional operands: with all of them, that of a gradient with 22
// operands takes seconds, and every selection waits for it.
func TestDescriptionsAreCheap(t *testing.T) {
	descriptor := `{"family": "selective_scan_backward", "batch": 1, "dim": 1, "length": 1, "n": 1, "dtype": "float32"}`
	plan, err := core.SelectJSON(descriptor, "cpu", "{}")
	require.NoError(t, err)
	require.Less(t, testing.AllocsPerRun(1, func() { plan.DescribeJSON() }), 2e5)
}

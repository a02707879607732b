package scan_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// BenchmarkScan tells ns per element; `go test -bench Scan/cumprod -cpu 1`.
func BenchmarkScan(b *testing.B) {
	const n = 1 << 20
	layouts := []struct {
		name  string
		shape []int64
		dim   int64
	}{{"rows", []int64{1024, n / 1024}, 1}, {"columns", []int64{n / 1024, 1024}, 0}, {"one", []int64{n}, 0}, {"pairs", []int64{n / 2, 2}, 0}, {"short", []int64{n / 16, 16}, 1}, {"two", []int64{2, n / 2}, 0}}
	kinds := []string{"indices"}
	for _, kind := range scan.Kinds {
		if !kind.IsMinimum {
			kinds = append(kinds, kind.Name)
		}
	}
	for _, kind := range kinds {
		for _, l := range layouts {
			for _, dtype := range tensor.Floats {
				b.Run(fmt.Sprintf("%s/%s/%s", kind, l.name, dtype), func(b *testing.B) { scanBenchmark(b, kind, l.shape, l.dim, dtype) })
			}
		}
	}
}

func scanBenchmark(b *testing.B, kind string, shape []int64, dim int64, dtype tensor.DType) {
	n, _ := tensor.Product(shape)
	random := rand.New(rand.NewPCG(1, 2))
	args := core.Args{}
	for _, name := range []string{"dy", "x", "dx"} {
		values := make([]float64, n)
		for i := range values {
			values[i] = 1 + (random.Float64()-0.5)/100
		}
		args[name] = scanTensor(dtype, shape, values)
	}
	d := scan.ScanBackward{Kind: kind, Shape: shape, DType: dtype, Dim: dim}
	if kind == "indices" {
		d.Kind = "cummax"
		x := scanValues(args["x"])
		delete(args, "x")
		args["indices"] = tensor.Of(scanIndices(x, shape, int(dim)), shape...)
	} else if !scan.ByName[kind].ReadsX {
		delete(args, "x")
	}
	plan, err := core.Select(d, tensor.CPU, ops.Preference{})
	require.NoError(b, err)
	for b.Loop() {
		require.NoError(b, plan.Run(0, tensor.Tensor{}, args))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/elem")
}

package scan_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
	"github.com/sternway/sternway/core/internal/tensor"
)

func TestColumnCluster(t *testing.T) {
	const gpcs = 7 // GPU processing clusters of 16 SMs, one CTA per SM
	clusters := func(l *driver.Launch) int { return gpcs * (16 / int(l.Cluster)) }
	few := func(*driver.Launch) int { return 4 } // clusters of 16 CTAs
	none := func(*driver.Launch) int { return 0 }
	for _, c := range []struct {
		kind          string
		dtype         tensor.DType
		rows, columns int64
		clusters      func(*driver.Launch) int
		sku, kernel   string
		splits, ctas  int64 // of a panel; of the grid
		block         uint32
	}{
		{"cumprod", tensor.Float32, 8192, 8192, clusters, gpu.ColumnCluster, gpu.ColumnCluster, 16, gpcs * 16, 512},
		{"cumprod", tensor.Float32, 8192, 8192, none, gpu.ColumnCluster, gpu.ColumnPipelined, 1, 132, 512},
		{"cumprod", tensor.Float32, 8193, 8192, clusters, gpu.ColumnPipelined, gpu.ColumnPipelined, 1, 132, 512},
		{"cumprod", tensor.Float32, 511, 16384, clusters, gpu.ColumnPipelined, gpu.ColumnPipelined, 1, 132, 512},
		{"cumprod", tensor.Float32, 512, 16384, clusters, gpu.ColumnCluster, gpu.ColumnCluster, 1, gpcs * 16, 512},
		{"cumprod", tensor.Float32, 1024, 8192, clusters, gpu.ColumnCluster, gpu.ColumnCluster, 2, gpcs * 16, 512},
		{"cumprod", tensor.Float32, 1024, 64, clusters, gpu.ColumnCluster, gpu.ColumnCluster, 2, 2 * 2, 512},   // a small operand
		{"cumprod", tensor.Float32, 512, 8192, clusters, gpu.ColumnTiled, gpu.ColumnTiled, 1, 512, 512},        // a CTA of column_tiled holds whole columns
		{"cumsum", tensor.Float32, 512, 8192, clusters, gpu.ColumnPipelined, gpu.ColumnPipelined, 1, 128, 512}, // more than the level-2 cache
		{"cumsum", tensor.Float32, 2048, 4096, clusters, gpu.ColumnTiled, gpu.ColumnTiled, 1, 256, 512},        // column_pipelined would split panels
		{"cumprod", tensor.Float32, 4096, 64, clusters, gpu.ColumnCluster, gpu.ColumnCluster, 8, 2 * 8, 512},
		{"cumprod", tensor.Float32, 7000, 8192, clusters, gpu.ColumnCluster, gpu.ColumnCluster, 16, gpcs * 16, 448}, // 219 warps
		{"cumprod", tensor.Float32, 4608, 8192, clusters, gpu.ColumnCluster, gpu.ColumnCluster, 16, gpcs * 16, 288},
		{"cumprod", tensor.Float32, 4097, 8192, clusters, gpu.ColumnCluster, gpu.ColumnCluster, 15, gpcs * 15, 288}, // one more row than 8 CTAs hold
		{"cumprod", tensor.Float32, 8192, 8192, few, gpu.ColumnCluster, gpu.ColumnPipelined, 1, 132, 512},
		{"logcumsumexp", tensor.Float64, 1100, 1024, clusters, gpu.ColumnCluster, gpu.ColumnCluster, 4, gpcs * 16, 288}, // 35 warps
		{"cumprod", tensor.BFloat16, 8192, 8192, clusters, gpu.ColumnCluster, gpu.ColumnCluster, 16, gpcs * 16, 512},
		{"cumprod", tensor.Float16, 1024, 8192, clusters, gpu.ColumnCluster, gpu.ColumnCluster, 2, gpcs * 16, 512},
		{"cumprod", tensor.Float16, 4100, 136, clusters, gpu.ColumnCluster, gpu.ColumnCluster, 15, 3 * 15, 288}, // 129 warps, the last panel of 8 columns
		{"logcumsumexp", tensor.BFloat16, 8192, 8192, clusters, gpu.ColumnCluster, gpu.ColumnCluster, 16, gpcs * 16, 512},
		{"logcumsumexp", tensor.BFloat16, 6145, 8192, clusters, gpu.ColumnCluster, gpu.ColumnCluster, 15, gpcs * 15, 416}, // 193 warps
		{"logcumsumexp", tensor.Float16, 511, 16384, clusters, gpu.ColumnPipelined, gpu.ColumnPipelined, 1, 132, 512},
		{"cumsum", tensor.Float32, 8192, 8192, clusters, gpu.ColumnPipelined, gpu.ColumnPipelined, 1, 128, 512},
	} {
		about := fmt.Sprintf("%+v", c)
		launches, at, plan := clusterCalls(t, c.clusters, scan.ScanBackward{Kind: c.kind, Shape: []int64{c.rows, c.columns}, DType: c.dtype})
		require.Equal(t, c.sku, plan.SKU().Kernel, about)
		own := launches[at]
		w := wordsOfScan(t, &own)
		require.Contains(t, own.Symbol, "_"+c.kernel+"_", about)
		require.Equal(t, []int64{c.splits, c.ctas, int64(c.block)}, []int64{w.get("splits"), int64(own.Grid), int64(own.Block)}, about)
		if c.kernel != gpu.ColumnCluster {
			continue
		}
		require.Equal(t, c.splits, int64(own.Cluster), about)
		require.False(t, own.Cooperative)
		require.Zero(t, at, "clusters reset the flags of their panels")
		require.Len(t, launches[at:], 2, "the fallback pass is one launch")
		require.Equal(t, num.CeilDiv(c.columns*c.dtype.Size(), gpu.LineBytes), w.get("segments"))
		fallback := wordsOfScan(t, &launches[at+1])
		require.Contains(t, launches[at+1].Symbol, "_"+gpu.ColumnTiled+"_")
		require.Equal(t, []int64{w.get("segments"), gpu.FlagFallback}, []int64{fallback.get("segments"), fallback.get("flags") & gpu.FlagFallback}, "rejected panels are recomputed")
		require.Equal(t, fallback.get("segments") < 89, launches[at+1].Cooperative, "a few panels are split among CTAs: "+about) // 132/89 is 1.5
		require.LessOrEqual(t, 4*(fallback.get("segments")+1), fallback.get("stateOffset"), "the counter of the grid barrier follows the flags")
	}
}

// A device whose CTAs have too little shared memory has no column_cluster, however many clusters
// are resident.
func TestColumnClusterWithoutSharedMemory(t *testing.T) {
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 170, Arch: "sm_120", Clusters: func(*driver.Launch) int { return 16 }}).Install(t)
	for asked, kernel := range map[string]string{"": gpu.ColumnPipelined, gpu.ColumnCluster: gpu.ColumnTiled} {
		fake.Launches = nil
		plan, err := core.Select(scan.ScanBackward{Kind: "cumprod", Shape: []int64{8192, 8192}, DType: tensor.BFloat16}, tensor.CUDA(0), ops.Preference{Kernel: asked})
		require.NoError(t, err)
		args, workspace := coretest.DeviceArgs(plan, "dy", "x", "dx")
		require.NoError(t, plan.RunOrdered(0, workspace, args))
		var symbols []string
		for _, l := range fake.Launches {
			symbols = append(symbols, l.Symbol)
		}
		require.Contains(t, symbols, "scan_backward_cumprod_"+kernel+"_bf16")
		require.NotContains(t, symbols, "scan_backward_cumprod_column_cluster_bf16")
	}
}

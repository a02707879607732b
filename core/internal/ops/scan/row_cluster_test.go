package scan_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
	"github.com/sternway/sternway/core/internal/tensor"
)

// someClusters is the number of clusters that are resident on 120 SMs, as registers and shared
// memory allow.
func someClusters(c *gpu.Config) int64 {
	ctasPerSM := max(1, 384/c.Block)
	if c.Block == 256 { // CTAs of float64 leave registers for more threads
		ctasPerSM = 2
	}
	return 120 * min(ctasPerSM, (228<<10)/(int64(c.SmemBytes)+gpu.RowClusterSmem)) / c.Splits
}

// clusterCalls are the launches of one run on a device with clusters, and the index of the first
// that is not a clear.
func clusterCalls(t *testing.T, clusters func(*driver.Launch) int, d scan.ScanBackward) (launches []coretest.FakeLaunch, at int, plan *core.Plan) {
	t.Helper()
	launches, _, plan = scanCallsWith(t, clusters, d, ops.Preference{}, nil, gradientOperands(d.Kind)...)
	return launches, slices.IndexFunc(launches, func(l coretest.FakeLaunch) bool { return l.Symbol != "scan_clear" }), plan
}

func TestRowCluster(t *testing.T) {
	for _, c := range []struct {
		kind         string
		dtype        tensor.DType
		rows, length int64
		clusters     bool // of the device
		kernel       string
		splits, ctas int64 // of a row; of the grid
		block        uint32
	}{
		{"cumprod", tensor.Float32, 1024, 8192, true, gpu.RowResident, 1, 1024, 512},
		{"cumprod", tensor.Float32, 1024, 8196, true, gpu.RowCluster, 5, 540, 64}, // 9 warps, two in each CTA
		{"cumprod", tensor.Float32, 1024, 12288, false, gpu.RowPipelined, 1, 2 * 132, 256},
		{"cumprod", tensor.Float32, 1024, 12288, true, gpu.RowCluster, 6, 480, 64}, // four CTAs per SM: with more, too many rows are in flight
		{"cumprod", tensor.Float32, 1024, 65536, true, gpu.RowCluster, 16, 288, 128},
		{"cumprod", tensor.Float32, 20, 65536, true, gpu.RowCluster, 16, 320, 128},
		{"cumprod", tensor.Float32, 1024, 98304, true, gpu.RowCluster, 16, 208, 192},
		{"cumprod", tensor.Float32, 1024, 98308, true, gpu.RowCluster, 14, 112, 224},
		{"cumprod", tensor.Float32, 256, 1 << 18, true, gpu.RowCluster, 16, 112, 512},
		{"cumprod", tensor.Float32, 256, 1<<18 + 4, true, gpu.RowCluster, 17, 119, 512}, // 7 rows
		{"cumprod", tensor.Float32, 64, 1 << 20, true, gpu.RowCluster, 64, 128, 512},
		{"cumprod", tensor.Float32, 64, 132 << 14, true, gpu.RowCluster, 132, 132, 512},
		{"cumprod", tensor.Float32, 64, 132<<14 + 4, true, gpu.RowPipelined, 4, 256, 256},
		{"cumprod", tensor.Float64, 64, 1 << 20, true, gpu.RowCluster, 128, 128, 512},
		{"cummax", tensor.Float32, 64, 1 << 20, true, gpu.RowCluster, 64, 128, 512},
		{"cummax", tensor.Float64, 64, 1 << 17, true, gpu.RowCluster, 16, 112, 512},
		{"cummax", tensor.Float64, 64, 1<<17 + 2, true, gpu.RowPipelined, 6, 384, 256},
		{"logcumsumexp", tensor.BFloat16, 256, 1 << 17, true, gpu.RowCluster, 16, 352, 128},
		{"logcumsumexp", tensor.BFloat16, 256, 1 << 18, true, gpu.RowCluster, 16, 224, 256},
		{"logcumsumexp", tensor.BFloat16, 64, 1 << 20, true, gpu.RowCluster, 32, 128, 512},
		{"cumprod", tensor.Float32, 1024, 65537, true, gpu.RowPipelined, 1, 2 * 132, 256},
		{"cumprod", tensor.BFloat16, 1024, 65536, true, gpu.RowCluster, 16, 576, 64},
		{"cumprod", tensor.BFloat16, 1024, 50264, true, gpu.RowCluster, 13, 585, 64},
		{"cumprod", tensor.BFloat16, 1024, 32768, true, gpu.RowCluster, 8, 544, 64},
		{"logcumsumexp", tensor.BFloat16, 1024, 65536, true, gpu.RowCluster, 16, 672, 64},
		{"logcumsumexp", tensor.Float64, 1024, 65536, true, gpu.RowCluster, 16, 240, 256},
		{"logcumsumexp", tensor.Float64, 1024, 32768, true, gpu.RowCluster, 8, 200, 256}, // with more CTAs, too few rows are in flight
		{"cumprod", tensor.Float64, 1024, 65536, false, gpu.RowPipelined, 1, 2 * 132, 256},
		{"cummax", tensor.Float16, 1024, 65536, true, gpu.RowCluster, 16, 592, 64},
		{"cummin", tensor.Float32, 1024, 65536, true, gpu.RowCluster, 16, 304, 128},
		{"cumsum", tensor.Float32, 1024, 65536, true, gpu.RowTiled, 1, 1024, 512},
		{"cumsum", tensor.Float32, 529, 65536, true, gpu.RowTiled, 1, 529, 512},
		{"cumsum", tensor.Float32, 528, 65536, true, gpu.RowPipelined, 1, 264, 256},
		{"cumsum", tensor.BFloat16, 64, 32768, true, gpu.RowTiled, 1, 64, 512}, // two tiles are not worth several launches
		{"cumsum", tensor.BFloat16, 64, 65536, true, gpu.RowPipelined, 4, 256, 256},
	} {
		about := fmt.Sprintf("%+v", c)
		var clusters func(*driver.Launch) int
		if c.clusters {
			clusters = func(l *driver.Launch) int {
				return int(someClusters(&gpu.Config{Block: int64(l.Block), Splits: int64(l.Cluster), SmemBytes: l.Shared}))
			}
		}
		launches, at, plan := clusterCalls(t, clusters, scan.ScanBackward{Kind: c.kind, Shape: []int64{c.rows, c.length}, DType: c.dtype, Dim: 1})
		own := launches[at]
		w := wordsOfScan(t, &own)
		require.Contains(t, own.Symbol, "_"+c.kernel+"_", about)
		require.Equal(t, []int64{c.splits, c.ctas, int64(c.block)}, []int64{w.get("splits"), int64(own.Grid), int64(own.Block)}, about)
		if c.kernel != gpu.RowCluster {
			continue
		}
		require.Equal(t, gpu.RowCluster, plan.SKU().Kernel)
		wide := c.splits > gpu.MaxClusterCTAs
		require.Equal(t, map[bool]int64{false: c.splits}[wide], int64(own.Cluster), about)
		require.Equal(t, wide, own.Cooperative)
		if !hasFastPath(c.kind) {
			require.Len(t, launches[at:], 1, "without a fast path there is no fallback pass")
			continue
		}
		fallback := wordsOfScan(t, &launches[at+1])
		require.NotZero(t, fallback.get("flags")&gpu.FlagFallback, "rejected rows are recomputed")
		require.Zero(t, launches[at+1].Cluster)
		require.Equal(t, c.splits, fallback.get("flagsPerRow"), "each slice has a reject flag")
		require.Equal(t, wide, at > 0, "status words are cleared")
	}
}

// The fallback pass is one launch, however long rows are: CTAs that share a row meet at a grid
// barrier between its phases.
func TestRowClusterFallback(t *testing.T) {
	for length, splits := range map[int64]int64{16384: 1, 32768: 1, 1 << 18: 4} {
		d := scan.ScanBackward{Kind: "cumprod", Shape: []int64{64, length}, DType: tensor.Float32, Dim: 1}
		launches, at, _ := clusterCalls(t, func(*driver.Launch) int { return 7 }, d)
		require.Len(t, launches[at+1:], 1)
		w := wordsOfScan(t, &launches[at+1])
		require.Equal(t, splits, w.get("splits"))
		require.Equal(t, splits > 1, launches[at+1].Cooperative)
		require.LessOrEqual(t, 4*(w.get("segments")*w.get("flagsPerRow")+1), w.get("stateOffset"), "the counter of the grid barrier follows the flags")
	}
}

func TestRowClusterWithoutRoom(t *testing.T) {
	d := scan.ScanBackward{Kind: "cumprod", Shape: []int64{64, 98304}, DType: tensor.Float32, Dim: 1} // 16 slices
	for clusters, kernel := range map[int]string{0: gpu.RowPipelined, 1: gpu.RowCluster} {
		launches, at, plan := clusterCalls(t, func(*driver.Launch) int { return clusters }, d)
		require.Equal(t, gpu.RowCluster, plan.SKU().Kernel)
		require.Contains(t, launches[at].Symbol, kernel)
		require.Equal(t, uint32(16*clusters), launches[at].Cluster)
	}
}

// Where no cluster with spare shared memory is resident, clusters ask for what they need.
func TestRowClusterLeastSharedMemory(t *testing.T) {
	need := uint32(3 * 16 * 64 * gpu.RowClusterVectors)
	clusters := func(l *driver.Launch) int {
		if l.Shared > need {
			return 0
		}
		return 120
	}
	launches, at, _ := clusterCalls(t, clusters, scan.ScanBackward{Kind: "cumprod", Shape: []int64{1024, 12288}, DType: tensor.Float32, Dim: 1})
	require.Equal(t, []uint32{6, 492, 64, need}, []uint32{launches[at].Cluster, uint32(launches[at].Grid), uint32(launches[at].Block), launches[at].Shared})
}

// The rows in flight saturate memory, and a few rounds over the grid are balanced.
func TestRowClusterRounds(t *testing.T) {
	for rows, atOnce := range map[int64]int64{10: 10, 24: 24, 35: 18, 38: 19, 50: 17, 72: 18, 1024: 18} { // 18 saturate memory, 24 are resident
		d := scan.ScanBackward{Kind: "cumprod", Shape: []int64{rows, 65536}, DType: tensor.Float32, Dim: 1}
		launches, at, _ := clusterCalls(t, func(*driver.Launch) int { return 24 }, d)
		require.Equal(t, 16*atOnce, int64(launches[at].Grid), rows)
	}
}

// Rows in flight scale with bandwidth, and those of 16 bits scale with it twice, as far as they are
// resident. On a bandwidth-rich device large compute-bound column clusters are left to
// column_pipelined.
func TestBandwidthRichDevices(t *testing.T) {
	const h100, h200 = 3352e9, 4917e9
	for _, c := range []struct {
		kind      string
		dtype     tensor.DType
		rows, n   int64
		dim       int64
		bandwidth int64
		kernel    string
		grid      int64
	}{
		{"cumprod", tensor.Float32, 1024, 65536, 1, 0, gpu.RowCluster, 16 * 18},
		{"cumprod", tensor.Float32, 1024, 65536, 1, 1000e9, gpu.RowCluster, 16 * 18},
		{"cumprod", tensor.Float32, 1024, 65536, 1, h100, gpu.RowCluster, 16 * 18},
		{"cumprod", tensor.Float32, 1024, 65536, 1, h200, gpu.RowCluster, 16 * 25},
		{"cumprod", tensor.Float32, 1024, 65536, 1, 2 * h100, gpu.RowCluster, 16 * 33},
		{"cumprod", tensor.BFloat16, 1024, 65536, 1, h100, gpu.RowCluster, 16 * 36},
		{"cumprod", tensor.BFloat16, 1024, 65536, 1, h200, gpu.RowCluster, 16 * 40}, // 72 would saturate memory, 40 are resident
		{"logcumsumexp", tensor.BFloat16, 8192, 8192, 0, h100, gpu.ColumnCluster, 16 * 40},
		{"logcumsumexp", tensor.BFloat16, 8192, 8192, 0, h200, gpu.ColumnPipelined, 128},
		{"logcumsumexp", tensor.BFloat16, 8192, 2048, 0, h200, gpu.ColumnCluster, 16 * 32}, // column_pipelined would have too few panels
		{"logcumsumexp", tensor.BFloat16, 4096, 8192, 0, h200, gpu.ColumnCluster, 8 * 40},
		{"logcumsumexp", tensor.Float32, 8192, 8192, 0, h200, gpu.ColumnCluster, 16 * 40},
		{"cumprod", tensor.BFloat16, 8192, 8192, 0, h200, gpu.ColumnCluster, 16 * 40},
	} {
		about := fmt.Sprintf("%+v", c)
		fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132, Bandwidth: c.bandwidth, Clusters: func(*driver.Launch) int { return 40 }}).Install(t)
		plan, err := core.Select(scan.ScanBackward{Kind: c.kind, Shape: []int64{c.rows, c.n}, DType: c.dtype, Dim: c.dim}, tensor.CUDA(0), ops.Preference{})
		require.NoError(t, err)
		args, workspace := coretest.DeviceArgs(plan, "dy", "x", "dx")
		require.NoError(t, plan.RunOrdered(0, workspace, args))
		own := fake.Launches[slices.IndexFunc(fake.Launches, func(l coretest.FakeLaunch) bool { return l.Symbol != "scan_clear" })]
		require.Equal(t, c.kernel, plan.SKU().Kernel, about)
		require.Contains(t, own.Symbol, "_"+c.kernel+"_", about)
		require.Equal(t, c.grid, int64(own.Grid), about)
	}
}

// An SM with one more CTA than others delays all rows with a slice there: up to a tenth fewer rows
// are kept in flight if these load SMs equally.
func TestRowClusterBalancePerSM(t *testing.T) {
	d := scan.ScanBackward{Kind: "cummax", Shape: []int64{2048, 32768}, DType: tensor.BFloat16, Dim: 1} // 79 rows saturate memory
	for five, atOnce := range map[int64]int64{71: 79, 72: 72, 77: 77, 79: 79, 82: 79} {                 // resident rows with five CTAs per SM
		clusters := func(l *driver.Launch) int {
			if l.Shared > (227<<10)/6-gpu.RowClusterSmem {
				return int(five)
			}
			return 92
		}
		launches, at, _ := clusterCalls(t, clusters, d)
		require.Equal(t, 8*atOnce, int64(launches[at].Grid), five)
	}
}

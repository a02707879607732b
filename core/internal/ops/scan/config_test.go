package scan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
	"github.com/sternway/sternway/core/internal/tensor"
)

// The workspace of a plan holds the states of every launch configuration, and every element has its
// thread.
func TestShapesOfScans(t *testing.T) {
	for _, shape := range [][]int64{
		{1}, {2, 1}, {31, 33}, {100, 1000}, {3, 8193}, {2, 1 << 20}, {8192, 8192}, {16, 40000}, {1 << 20, 2}, {64, 1024, 64}, {7, 5, 3, 2},
	} {
		for _, dtype := range tensor.Floats {
			for _, kind := range scan.BackwardFamily.Kinds {
				for dim := range shape {
					for _, kernel := range append([]string{""}, gpu.FastPathKernels...) {
						d := scan.ScanBackward{Kind: kind.Name, Shape: shape, DType: dtype, Dim: int64(dim)}
						p, err := d.Problem()
						require.NoError(t, err)
						p.Arch = "sm_90"
						chosen, err := p.Compile(p, 132, true, ops.Preference{Kernel: kernel})
						if err != nil {
							require.ErrorIs(t, err, errs.ErrUnsupported)
							continue
						}
						s := chosen.(*scan.Program)
						problem := s.Problem()
						requireConfig(t, &problem, s.Kernel(), s.Workspace())
					}
				}
			}
		}
	}
}

// limits are those of a device with so much shared memory.
func limits(smemBytes int64) *gpu.DeviceLimits {
	return &gpu.DeviceLimits{SmemBytes: smemBytes, ResidentClusters: someClusters}
}

// requireConfig checks the launch configuration of a kernel before and after it is fitted to a
// device.
func requireConfig(t *testing.T, p *gpu.Problem, kernel string, workspace int64) {
	t.Helper()
	c := gpu.Configure(p, kernel, p.Inner)
	require.LessOrEqual(t, gpu.WorkspaceBytes(p, &c), workspace)
	require.Zero(t, c.Block%32)
	require.LessOrEqual(t, c.Block, int64(512))
	p.Device.Limits = limits(227 << 10)
	switch kernel {
	case gpu.RowPacked:
		require.LessOrEqual(t, c.RowsPerWarp*p.Length, 32*gpu.RowPackedVectors*p.Vector(), "whole rows in a warp")
		require.GreaterOrEqual(t, c.Grid*c.Block/32*c.RowsPerWarp, p.Rows)
	case gpu.RowResident:
		require.GreaterOrEqual(t, c.WarpsPerRow*32*gpu.RowItems(p), p.PaddedLength(), "a row in its warps")
		require.GreaterOrEqual(t, c.Grid*c.RowsPerCTA, p.Rows)
	case gpu.RowTiled:
		require.GreaterOrEqual(t, c.Splits*c.TilesPerSplit*c.Block*gpu.TiledItems(p), p.PaddedLength(), "a row in its tiles")
	case gpu.ColumnPipelined, gpu.RowPipelined:
		requirePipelined(t, p, c, workspace)
	case gpu.RowCluster:
		requireRowCluster(t, p, c, workspace)
	case gpu.ColumnCluster:
		requireColumnCluster(t, p, c)
	case gpu.ColumnTiled:
		require.GreaterOrEqual(t, c.Splits*c.TilesPerSplit*c.ThreadsDown*p.Kind.ColumnTiledRows.Of(p), p.Length, "a column in its tiles")
		require.GreaterOrEqual(t, c.Segments*c.PanelColumns, p.Rows)
		if c.ThreadsAcross*c.ThreadsDown > 32 {
			require.GreaterOrEqual(t, c.Block, c.PanelColumns, "one thread owns the carry of each column")
		}
	}
}

func requirePipelined(t *testing.T, p *gpu.Problem, c gpu.Config, workspace int64) {
	t.Helper()
	tile := gpu.TileOf(p, c.Kernel)
	require.GreaterOrEqual(t, c.Splits*c.TilesPerSplit*tile.Length, p.Length, "a row in its tiles")
	require.GreaterOrEqual(t, c.Segments*tile.Columns, p.Rows)
	require.True(t, gpu.FitToDevice(p, &c))
	static, maxSplits := int64(gpu.ColumnPipelinedSmem), int64(0)
	if c.Kernel == gpu.RowPipelined {
		static, maxSplits = p.Kind.RowPipelinedSmem.Of(p), p.Kind.MaxCooperativeSplits.Of(p)
	}
	require.LessOrEqual(t, c.CTAsPerSM*(int64(c.SmemBytes)+static), int64(227<<10))
	if !c.Cooperative {
		return
	}
	require.LessOrEqual(t, c.Splits, maxSplits, "each CTA reads the status of all others of its row")
	require.LessOrEqual(t, c.Grid, 132*c.CTAsPerSM, "all CTAs are resident")
	require.GreaterOrEqual(t, c.Stages, int64(3), "a tile is retained for another round")
	for _, smem := range []int64{163 << 10, 99 << 10} {
		p.Device.Limits = limits(smem)
		if !gpu.FitToDevice(p, &c) {
			require.Equal(t, int64(99<<10), smem)
			return
		}
		require.LessOrEqual(t, num.CeilDiv(c.Grid, 132)*(int64(c.SmemBytes)+static), smem, "all CTAs are resident on a device with less shared memory")
		require.LessOrEqual(t, gpu.WorkspaceBytes(p, &c), workspace)
	}
}

func requireRowCluster(t *testing.T, p *gpu.Problem, c gpu.Config, workspace int64) {
	t.Helper()
	slices := func() {
		items := gpu.RowClusterItems(p)
		require.GreaterOrEqual(t, c.Splits*c.Block*items, p.Length, "a row in its slices")
		require.Less(t, (c.Splits-1)*c.Block*items, p.Length, "no slice is empty")
	}
	slices()
	require.True(t, gpu.FitToDevice(p, &c))
	slices()
	require.LessOrEqual(t, c.Block, int64(gpu.RowClusterThreads))
	if c.InCluster() {
		require.LessOrEqual(t, c.Splits, int64(gpu.MaxClusterCTAs), "a CTA has room for a state of each")
	} else {
		require.LessOrEqual(t, c.Splits, c.Block, "each thread reads the status of one CTA")
		require.LessOrEqual(t, c.Grid, p.Device.NumSMs, "all CTAs are resident")
	}
	require.Zero(t, c.Grid%c.Splits, "CTAs keep their place in rows")
	require.LessOrEqual(t, gpu.WorkspaceBytes(p, &c), workspace)
}

func requireColumnCluster(t *testing.T, p *gpu.Problem, c gpu.Config) {
	t.Helper()
	require.GreaterOrEqual(t, c.Splits*c.Block, p.Length, "a column in its slices, of as many rows as CTAs have threads")
	require.Less(t, (c.Splits-1)*c.Block, p.Length, "no slice is empty")
	require.LessOrEqual(t, c.Splits, int64(gpu.MaxClusterCTAs), "a CTA has room for a state of each")
	require.LessOrEqual(t, c.Block, int64(gpu.ColumnClusterThreads))
	require.GreaterOrEqual(t, c.Segments*c.PanelColumns, p.Rows)
	require.True(t, gpu.FitToDevice(p, &c))
	require.Zero(t, c.Grid%c.Splits, "CTAs keep their place in panels")
	fallback := gpu.Fallback(p, &c)
	require.Equal(t, c.PanelColumns, fallback.ThreadsAcross*p.Kind.ColumnTiledColumns.Of(p), "the fallback pass has the panels of the fast path")
}

// A general kernel, which leaves no record flags, is selected where a pipelined one needs more
// workspace than allowed; and none where that needs more, too.
func TestScansWithinAWorkspace(t *testing.T) {
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132, Exports: coretest.ExportsOfKernels(t)}).Install(t)
	for _, c := range []struct {
		shape              []int64
		pipelined, general string
	}{{[]int64{1, 1 << 26}, gpu.RowPipelined, gpu.RowTiled}, {[]int64{8192, 8192}, gpu.ColumnPipelined, gpu.ColumnTiled}} {
		d := scan.ScanBackward{Kind: "cummax", Shape: c.shape, DType: tensor.Float32, Dim: map[string]int64{gpu.RowPipelined: 1}[c.pipelined]}
		whole, err := core.Select(d, tensor.CUDA(0), ops.Preference{})
		require.NoError(t, err)
		require.Equal(t, c.pipelined, whole.SKU().Kernel)
		require.Greater(t, whole.WorkspaceSize(), int64(1<<26/8))
		limit := whole.WorkspaceSize() / 2
		plan, err := core.Select(d, tensor.CUDA(0), ops.Preference{MaxWorkspace: &limit})
		require.NoError(t, err)
		require.Equal(t, c.general, plan.SKU().Kernel)
		require.LessOrEqual(t, plan.WorkspaceSize(), limit)
		fake.Launches = nil
		args, workspace := coretest.DeviceArgs(plan, "dy", "x", "dx")
		require.NoError(t, plan.RunOrdered(0, workspace, args))
		for _, l := range fake.Launches {
			require.Contains(t, l.Symbol, c.general)
		}
		limit = plan.WorkspaceSize() - 1
		_, err = core.Select(d, tensor.CUDA(0), ops.Preference{MaxWorkspace: &limit})
		require.ErrorIs(t, err, errs.ErrUnsupported)
	}
}

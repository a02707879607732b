package scan_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
)

// selectionDevices are the devices of the golden table: one of each generation, and one that is
// bandwidth-rich.
var selectionDevices = []struct {
	name      string
	arch      string
	numSMs    int
	shared    int
	bandwidth int64
	clusters  bool
}{
	{"A100", "sm_80", 108, 163 << 10, 2039e9, false},
	{"H100", "sm_90", 132, 227 << 10, 3352e9, true},
	{"H200", "sm_90", 132, 227 << 10, 4917e9, true},
	{"RTX 5090", "sm_120", 170, 99 << 10, 1792e9, true},
}

// selectionShapes are rows and columns around every border of the selection: lengths of one warp,
// of one CTA, of a cluster and beyond, with few rows and with many, and lengths that are not whole
// vectors.
var selectionShapes = []struct {
	shape []int64
	dim   int64
}{
	{[]int64{1 << 20, 2}, 1}, {[]int64{65536, 16}, 1}, {[]int64{65536, 100}, 1}, {[]int64{8192, 257}, 1}, {[]int64{16384, 1024}, 1},
	{[]int64{8192, 4096}, 1}, {[]int64{8192, 8192}, 1}, {[]int64{4096, 16384}, 1}, {[]int64{2048, 50257}, 1}, {[]int64{1024, 65536}, 1},
	{[]int64{256, 1 << 18}, 1}, {[]int64{64, 1 << 20}, 1}, {[]int64{4, 1 << 24}, 1}, {[]int64{1, 1 << 26}, 1}, {[]int64{3, 5001}, 1}, {[]int64{1, 1 << 16}, 1},
	{[]int64{2, 1 << 20}, 0}, {[]int64{100, 65536}, 0}, {[]int64{512, 8192}, 0}, {[]int64{8192, 8192}, 0}, {[]int64{8192, 512}, 0},
	{[]int64{1 << 16, 64}, 0}, {[]int64{1 << 20, 2}, 0}, {[]int64{1 << 20, 100}, 0}, {[]int64{16, 2048, 128}, 1}, {[]int64{5000, 33}, 0},
}

// TestScanSelection compares the launches of a grid of shapes, dtypes, layouts and devices with a
// golden table. A line that equals the one of the device above, or the one of aligned operands, is
// left out. A change of the table is a change of speed: measure it.
func TestScanSelection(t *testing.T) {
	const golden = "testdata/scan_selection.golden"
	var table strings.Builder
	seen := map[string]string{}
	for _, device := range selectionDevices {
		fake := &coretest.FakeCUDA{Devices: 1, NumSMs: device.numSMs, Shared: device.shared, Bandwidth: device.bandwidth, Arch: device.arch}
		if device.clusters {
			fake.Clusters = func(l *driver.Launch) int { // clusters that shared memory and registers allow
				ctasPerSM := max(1, min(2048/int(l.Block), 65536/(64*int(l.Block)), (228<<10)/max(int(l.Shared)+1024, 1)))
				return device.numSMs / max(int(l.Cluster), 1) * ctasPerSM
			}
		}
		fake.Install(t)
		fmt.Fprintf(&table, "# %s: %d multiprocessors, %d bytes of shared memory, %.0f GB/s\n", device.name, device.numSMs, device.shared, float64(device.bandwidth)/1e9)
		for _, scanned := range selectionScans {
			for _, dtype := range []tensor.DType{tensor.BFloat16, tensor.Float32, tensor.Float64} {
				for _, s := range selectionShapes {
					for _, operands := range scanned.operands {
						fields := scan.Scan{Kind: scanned.kind, Shape: s.shape, DType: dtype, Dim: s.dim}
						d := ops.Descriptor(fields)
						if !scanned.isForward {
							d = scan.ScanBackward(fields)
						}
						problem := fmt.Sprintf("%s %s %s dim %d by %s", scanned.kind, tensor.ShapeText(s.shape), dtype, s.dim, strings.Join(operands[:len(operands)-1], ", "))
						if scanned.isForward {
							problem = fmt.Sprintf("forward %s %s %s dim %d to %s", scanned.kind, tensor.ShapeText(s.shape), dtype, s.dim, strings.Join(operands[1:], ", "))
						}
						aligned := selectionOf(t, fake, d, operands, 0)
						if aligned != seen[problem] {
							seen[problem] = aligned
							fmt.Fprintf(&table, "%s: %s\n", problem, aligned)
						}
						if misaligned := selectionOf(t, fake, d, operands, 1); misaligned != aligned {
							fmt.Fprintf(&table, "%s, misaligned: %s\n", problem, misaligned)
						}
					}
				}
			}
		}
	}
	if *coretest.Update {
		require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))
		require.NoError(t, os.WriteFile(golden, []byte(table.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err, "go test -update writes it")
	wanted, got := strings.Split(string(want), "\n"), strings.Split(table.String(), "\n")
	for i := range min(len(wanted), len(got)) {
		require.Equal(t, wanted[i], got[i], "line %d of %s; go test -update rewrites it", i+1, golden)
	}
	require.Equal(t, len(wanted), len(got))
}

// selectionScans are the kinds of the golden table, with the operands of each of their runs.
var selectionScans = []struct {
	kind      string
	isForward bool
	operands  [][]string
}{
	{"cumsum", false, [][]string{{"dy", "dx"}}},
	{"cumprod", false, [][]string{{"dy", "x", "dx"}}},
	{"cummax", false, [][]string{{"dy", "x", "dx"}, {"dy", "indices", "dx"}}},
	{"logcumsumexp", false, [][]string{{"dy", "x", "dx"}}},
	{"cumprod", true, [][]string{{"x", "y"}}},
	{"cummax", true, [][]string{{"x", "y"}, {"x", "y", "indices"}}},
	{"logcumsumexp", true, [][]string{{"x", "y"}}},
}

// selectionOf is the workspace of a problem and its launches, with operands that begin some
// elements after an aligned address. If a run without the workspace is accepted, its launches are
// the same.
func selectionOf(t *testing.T, fake *coretest.FakeCUDA, d ops.Descriptor, operands []string, first int64) string {
	t.Helper()
	plan, launches, err := launchesOf(t, fake, d, operands, first, true)
	require.NoError(t, err)
	if _, spared, err := launchesOf(t, fake, d, operands, first, false); err == nil {
		require.Equal(t, launches, spared)
	} else {
		require.ErrorIs(t, err, errs.ErrWorkspaceTooSmall)
	}
	return fmt.Sprintf("%s, %d bytes%s", plan.SKU().Kernel, plan.WorkspaceSize(), launches)
}

// launchesOf are the launches of a run of a new plan.
func launchesOf(t *testing.T, fake *coretest.FakeCUDA, d ops.Descriptor, operands []string, first int64, hasWorkspace bool) (*core.Plan, string, error) {
	t.Helper()
	fake.Launches = nil
	plan, err := core.Select(d, tensor.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	args, workspace := coretest.DeviceArgs(plan, operands...)
	for i := range args {
		if args[i].Given() {
			args[i].Data += uintptr(first * args[i].DType.Size())
		}
	}
	if !hasWorkspace {
		workspace = tensor.Tensor{}
	}
	err = plan.RunOrdered(0, workspace, args)
	text := ""
	for i := range fake.Launches {
		text += "; " + launchText(t, &fake.Launches[i])
	}
	return plan, text, err
}

// launchText is a launch in short: the kernel, its CTAs and their threads, shared memory, cluster,
// and words of ScanArgs: `tiles_per_split`, `splits` and `segments`; the launch configuration, by
// name; `flags`, `state_offset` and `record_offset`.
func launchText(t *testing.T, l *coretest.FakeLaunch) string {
	text := fmt.Sprintf("%s %dx%d", strings.TrimPrefix(l.Symbol, "scan_backward_"), l.Grid, l.Block)
	if l.Shared > 0 {
		text += fmt.Sprint(" shared ", l.Shared)
	}
	if l.Cluster > 1 {
		text += fmt.Sprint(" cluster ", l.Cluster)
	}
	if l.Cooperative {
		text += " cooperative"
	}
	if l.Symbol == "scan_clear" {
		return text
	}
	w := wordsOfScan(t, l)
	text += fmt.Sprint(" ", []int64{w.get("tilesPerSplit"), w.get("splits"), w.get("segments")})
	for _, name := range []string{"rowsPerWarp", "rowsPerCTA", "warpsPerRow", "flagsPerRow", "threadsAcross", "threadsDown", "stages", "statusOffset"} {
		if value := w.get(name); value != 0 {
			text += fmt.Sprint(" ", name, " ", value)
		}
	}
	return text + fmt.Sprint(" ", []int64{w.get("flags"), w.get("stateOffset"), w.get("recordOffset")})
}

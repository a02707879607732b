package scan_test

import (
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

type selectionDevice struct {
	name      string
	arch      string
	numSMs    int
	shared    int
	bandwidth int64
	clusters  bool
}

// selectionDevices are one device of each generation, and one that is bandwidth-rich.
var selectionDevices = []selectionDevice{
	{"A100", "sm_80", 108, 163 << 10, 2039e9, false},
	{"H100", "sm_90", 132, 227 << 10, 3352e9, true},
	{"H200", "sm_90", 132, 227 << 10, 4917e9, true},
	{"RTX 5090", "sm_120", 170, 99 << 10, 1792e9, true},
}

// install puts the device in the place of the driver.
func (d selectionDevice) install(t *testing.T) *coretest.FakeCUDA {
	fake := &coretest.FakeCUDA{Devices: 1, NumSMs: d.numSMs, Shared: d.shared, Bandwidth: d.bandwidth, Arch: d.arch}
	if d.clusters {
		fake.Clusters = func(l *driver.Launch) int { // clusters that shared memory and registers allow
			ctasPerSM := max(1, min(2048/int(l.Block), 65536/(64*int(l.Block)), (228<<10)/max(int(l.Shared)+1024, 1)))
			return d.numSMs / max(int(l.Cluster), 1) * ctasPerSM
		}
	}
	return fake.Install(t)
}

// selectionShapes are rows and columns around every border of the selection: lengths of one warp,
// of one CTA, of a cluster and beyond, with few rows and with many, and lengths that are not whole
// vectors. Digests stand for their launches.
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

// selectionScan is a run of a kind, with its operands.
type selectionScan struct {
	name      string
	kind      string
	isForward bool
	operands  []string
}

// selectionScans are all runs that may have kernels of their own: cummin has those of cummax, and
// a scan that is its own gradient has those of it.
var selectionScans = func() (gradients []selectionScan) {
	var forwards []selectionScan
	for _, kind := range scan.Kinds {
		if kind.IsMinimum {
			continue
		}
		gradients = append(gradients, selectionScan{kind.Name + "_backward", kind.Name, false, gradientOperands(kind.Name)})
		if kind.IsOwnGradient() {
			continue
		}
		forwards = append(forwards, selectionScan{kind.Name, kind.Name, true, []string{"x", "y"}})
		if kind.ReadsIndices {
			gradients = append(gradients, selectionScan{kind.Name + "_backward by indices", kind.Name, false, []string{"dy", "indices", "dx"}})
			forwards = append(forwards, selectionScan{kind.Name + " with indices", kind.Name, true, []string{"x", "y", "indices"}})
		}
	}
	return append(gradients, forwards...)
}()

func (s selectionScan) descriptor(shape []int64, dtype tensor.DType, dim int64) ops.Descriptor {
	fields := scan.Scan{Kind: s.kind, Shape: shape, DType: dtype, Dim: dim}
	if s.isForward {
		return fields
	}
	return scan.ScanBackward(fields)
}

var selectionDTypes = []tensor.DType{tensor.BFloat16, tensor.Float32, tensor.Float64}

// selectionSegments are tensors of some rows or adjacent columns, whose length varies up to a power
// of two.
var selectionSegments = []struct {
	count, dim int64
	name       string
	power      int
}{{64, 1, "rows", 24}, {4096, 1, "rows", 20}, {64, 0, "columns", 24}, {4096, 0, "columns", 20}}

var launchesFile = flag.String("launches", "", "a file for the launches behind the digests of TestScanSelection")

// TestScanSelection compares the selected kernels with a golden file. Its first part has the
// lengths at which a run changes its kernel; problems that change alike share a line. Its second
// part has digests of every launch at selectionShapes: they pin the launch configurations, splits
// and workspaces, too. A change of the file is a change of speed: measure it.
func TestScanSelection(t *testing.T) {
	const golden = "testdata/scan_selection.golden"
	var text strings.Builder
	for _, d := range selectionDevices {
		fmt.Fprintf(&text, "# %s: %d multiprocessors, %d bytes of shared memory, %.0f GB/s\n", d.name, d.numSMs, d.shared, float64(d.bandwidth)/1e9)
	}
	writeChanges(t, &text)
	writeDigests(t, &text)
	if *coretest.Update {
		require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))
		require.NoError(t, os.WriteFile(golden, []byte(text.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err, "go test -update writes it")
	wanted, got := strings.Split(string(want), "\n"), strings.Split(text.String(), "\n")
	for i := range min(len(wanted), len(got)) {
		require.Equal(t, wanted[i], got[i], "line %d of %s; go test -update rewrites it. Of a digest, write the launches before and "+
			"after the change by go test -run TestScanSelection -launches FILE, and compare them", i+1, golden)
	}
	require.Equal(t, len(wanted), len(got))
}

// writeChanges writes the kernel of a run at length 1, and each length from which it is another
// one.
func writeChanges(t *testing.T, text *strings.Builder) {
	problems := make([]sharedLines, 2*len(selectionSegments)) // for aligned and misaligned operands
	for k := range problems {
		problems[k] = sharedLines{}
	}
	for _, device := range selectionDevices {
		fake := device.install(t)
		for k := range problems {
			segments, first := selectionSegments[k/2], int64(k%2)
			for _, scanned := range selectionScans {
				for _, dtype := range selectionDTypes {
					text := changes(segments.power, func(length int64) string {
						shape := []int64{length, segments.count}
						if segments.dim == 1 {
							shape = []int64{segments.count, length}
						}
						_, launches, err := launchesOf(t, fake, scanned.descriptor(shape, dtype, segments.dim), scanned.operands, first, true)
						require.NoError(t, err)
						return kernelOf(t, launches)
					})
					problems[k][text] = append(problems[k][text], [3]string{scanned.name, dtype.String(), device.name})
				}
			}
		}
	}
	text.WriteString("\n# A line has scans, dtypes and devices, the kernel at length 1, and the lengths from which a run takes another one.\n" +
		"# Lengths are powers of two, and multiples of 16 between two that differ.\n")
	for k := range problems {
		segments := selectionSegments[k/2]
		fmt.Fprintf(text, "\n# %d %s%s\n%s", segments.count, segments.name, []string{"", ", misaligned by one element"}[k%2], problems[k].text())
	}
}

// changes is a function of the length in words: its value at 1, and each length at which it
// changes. Lengths are the powers of two and, between two of them with different values, the
// multiples of 16.
func changes(power int, at func(length int64) string) string {
	last := at(1)
	text := "1 " + last
	var search func(low, high int64, after string)
	search = func(low, high int64, after string) {
		switch middle := (low + high) / 2 / 16 * 16; {
		case after == last:
		case middle <= low:
			text, last = fmt.Sprintf("%s, %d %s", text, high, after), after
		default:
			search(low, middle, at(middle))
			search(middle, high, after)
		}
	}
	for k := range power {
		search(1<<k, 2<<k, at(2<<k))
	}
	return text
}

// selectionKernel finds the name of a kernel in a symbol.
var selectionKernel = regexp.MustCompile("(row|column)_(packed|resident|tiled|pipelined|cluster)")

// kernelOf is the kernel of the first launch that scans.
func kernelOf(t *testing.T, launches []coretest.FakeLaunch) string {
	i := slices.IndexFunc(launches, func(l coretest.FakeLaunch) bool { return selectionKernel.MatchString(l.Symbol) })
	require.NotEqual(t, -1, i)
	kernel := selectionKernel.FindString(launches[i].Symbol)
	if launches[i].Cooperative {
		kernel += " (cooperative)"
	}
	return kernel
}

// sharedLines are the problems of each text. A problem is a scan, a dtype and a device.
type sharedLines map[string][][3]string

// text has a line for each text and each set of problems that is a product of scans, dtypes and
// devices.
func (s sharedLines) text() string {
	var lines []string
	for text, sets := range s {
		for _, axis := range []int{2, 1, 0} {
			sets = merged(sets, axis)
		}
		for _, set := range sets {
			lines = append(lines, fmt.Sprintf("%s | %s | %s: %s\n", set[0], set[1], set[2], text))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// merged joins the sets that differ in one axis alone.
func merged(sets [][3]string, axis int) (joined [][3]string) {
	at := map[[3]string]int{}
	for _, set := range sets {
		others := set
		others[axis] = ""
		if i, ok := at[others]; ok {
			joined[i][axis] += ", " + set[axis]
			continue
		}
		at[others] = len(joined)
		joined = append(joined, set)
	}
	return joined
}

// writeDigests writes a digest for each device, scan and dtype: of the launches at selectionShapes,
// with aligned operands and with misaligned ones.
func writeDigests(t *testing.T, text *strings.Builder) {
	var every strings.Builder
	fmt.Fprintf(text, "\n# Digests of the launches of selectionShapes: bfloat16, float32, float64\n")
	for _, device := range selectionDevices {
		fake := device.install(t)
		for _, scanned := range selectionScans {
			fmt.Fprintf(text, "%-34s", device.name+" "+scanned.name)
			for _, dtype := range selectionDTypes {
				digest := crc32.NewIEEE()
				for _, s := range selectionShapes {
					for first, layout := range []string{"aligned", "misaligned"} {
						launches := selectionOf(t, fake, scanned.descriptor(s.shape, dtype, s.dim), scanned.operands, int64(first))
						line := fmt.Sprintf("%s %s %s %s dim %d %s: %s\n", device.name, scanned.name, tensor.ShapeText(s.shape), dtype, s.dim, layout, launches)
						every.WriteString(line)
						_, _ = digest.Write([]byte(line))
					}
				}
				fmt.Fprintf(text, " %08x", digest.Sum32())
			}
			text.WriteString("\n")
		}
	}
	if *launchesFile != "" {
		require.NoError(t, os.WriteFile(*launchesFile, []byte(every.String()), 0o644))
	}
}

// selectionOf is the workspace of a problem and its launches, with operands that begin some
// elements after an aligned address. If a run without the workspace is accepted, its launches are
// the same.
func selectionOf(t *testing.T, fake *coretest.FakeCUDA, d ops.Descriptor, operands []string, first int64) string {
	t.Helper()
	plan, launches, err := launchesOf(t, fake, d, operands, first, true)
	require.NoError(t, err)
	text := fmt.Sprintf("%s, %d bytes", plan.SKU().Kernel, plan.WorkspaceSize())
	for i := range launches {
		text += "; " + launchText(t, &launches[i])
	}
	if _, spared, err := launchesOf(t, fake, d, operands, first, false); err == nil {
		require.Equal(t, launches, spared)
	} else {
		require.ErrorIs(t, err, errs.ErrWorkspaceTooSmall)
	}
	return text
}

// launchesOf are the launches of a run of a new plan.
func launchesOf(t *testing.T, fake *coretest.FakeCUDA, d ops.Descriptor, operands []string, first int64, hasWorkspace bool) (*core.Plan, []coretest.FakeLaunch, error) {
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
	return plan, fake.Launches, err
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

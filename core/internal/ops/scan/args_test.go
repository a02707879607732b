package scan_test

import (
	"fmt"
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
	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// scanCalls are the launches of one run of a scan on a device of 132 SMs, without clusters.
func scanCalls(t *testing.T, d scan.ScanBackward, preference ops.Preference, change func(args []tensor.Tensor), operands ...string) ([]coretest.FakeLaunch, []tensor.Tensor, *core.Plan) {
	t.Helper()
	return scanCallsWith(t, nil, d, preference, change, operands...)
}

// scanCallsWith are the launches of one run on a device of 132 SMs with clusters.
func scanCallsWith(t *testing.T, clusters func(*driver.Launch) int, d scan.ScanBackward, preference ops.Preference, change func(args []tensor.Tensor), operands ...string) ([]coretest.FakeLaunch, []tensor.Tensor, *core.Plan) {
	t.Helper()
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132, Clusters: clusters}).Install(t)
	plan, err := core.Select(d, tensor.CUDA(0), preference)
	require.NoError(t, err)
	args, workspace := coretest.DeviceArgs(plan, operands...)
	if change != nil {
		change(args)
	}
	require.NoError(t, plan.RunOrdered(0, workspace, args))
	return fake.Launches, args, plan
}

// scanWords reads fields of gpu.ScanArgs by name, and those of its operands, "inputs[0]" for
// example.
type scanWords struct {
	t          *testing.T
	at, inside map[string]int
	words      []uint64
}

func wordsOfScan(t *testing.T, l *coretest.FakeLaunch) scanWords {
	at, size := coretest.WordsOf[gpu.ScanArgs]()
	inside, operand := coretest.WordsOf[gpu.Strided]()
	for list, end := range map[string]int{"inputs": at["outputs"], "outputs": size} {
		for i := range (end - at[list]) / operand {
			at[fmt.Sprintf("%s[%d]", list, i)] = at[list] + i*operand
		}
	}
	require.Len(t, l.Words, size, l.Symbol)
	return scanWords{t, at, inside, l.Words}
}

func (w scanWords) get(name string) int64 {
	require.Contains(w.t, w.at, name)
	return int64(w.words[w.at[name]])
}

func (w scanWords) of(operand, name string) int64 {
	return int64(w.words[w.at[operand]+w.inside[name]])
}

func (w scanWords) strides(operand string, n int) (strides []int64) {
	for d := range n {
		strides = append(strides, int64(w.words[w.at[operand]+w.inside["stride"]+d]))
	}
	return strides
}

func TestWordsOfScans(t *testing.T) {
	t.Run("rows, reversed", func(t *testing.T) {
		launches, args, plan := scanCalls(t, scan.ScanBackward{Kind: "cumprod", Shape: []int64{6, 40}, DType: tensor.Float32, Dim: 1, Reverse: true}, ops.Preference{}, nil, "dy", "x", "dx")
		require.Len(t, launches, 1)
		require.Equal(t, "scan_backward_cumprod_row_packed_f32", launches[0].Symbol)
		w := wordsOfScan(t, &launches[0])
		require.Equal(t, int64(40), w.get("n"))
		require.Equal(t, int64(1), w.get("dims"))
		require.Equal(t, int64(6), w.get("extent"))
		require.Equal(t, int64(6), w.get("segments"))
		require.Equal(t, int64(gpu.FlagReversed|gpu.FlagVectorized), w.get("flags"))
		require.Equal(t, int64(args[operand.Dx].Data), w.of("outputs[0]", "data"))
		require.Equal(t, int64(239), w.of("outputs[0]", "first"), "rows that lie end to end are mirrored together")
		require.Equal(t, int64(-1), w.of("outputs[0]", "step"))
		require.Equal(t, []int64{-40}, w.strides("inputs[1]", 1))
		require.Zero(t, w.get("states"))
		require.Equal(t, gpu.RowPacked, plan.SKU().Kernel)
	})
	t.Run("dx transposed", func(t *testing.T) {
		launches, _, plan := scanCalls(t, scan.ScanBackward{Kind: "cumsum", Shape: []int64{5000, 300}, DType: tensor.Float32, Dim: 0}, ops.Preference{}, func(args []tensor.Tensor) {
			for _, i := range []int{0, operand.Dx} {
				args[i].Strides[0], args[i].Strides[1] = 1, 5000
			}
		}, "dy", "dx")
		require.Equal(t, gpu.ColumnPipelined, plan.SKU().Kernel)
		require.Len(t, launches, 1)
		require.Equal(t, "scan_backward_cumsum_row_resident_f32", launches[0].Symbol, "the kernel for where dx is dense")
	})
	t.Run("long rows, one way or both", func(t *testing.T) {
		for _, c := range []struct {
			against int // the operand that runs against the others
			kernel  string
		}{{-1, gpu.RowPipelined}, {0, gpu.RowTiled}, {1, gpu.RowTiled}, {operand.Dx, gpu.RowTiled}} {
			launches, _, _ := scanCalls(t, scan.ScanBackward{Kind: "logcumsumexp", Shape: []int64{300, 1 << 16}, DType: tensor.Float32, Dim: 1}, ops.Preference{}, func(args []tensor.Tensor) {
				if c.against >= 0 {
					args[c.against].Strides[1] = -1
					args[c.against].Data += 4 * (1<<16 - 1)
				}
			}, "dy", "x", "dx")
			if launches[0].Symbol == "scan_clear" {
				launches = launches[1:]
			}
			require.Equal(t, "scan_backward_logcumsumexp_"+c.kernel+"_f32", launches[0].Symbol, "operand %d", c.against)
		}
	})
	t.Run("one long row, x elsewhere in vectors than dx", func(t *testing.T) {
		launches, _, plan := scanCalls(t, scan.ScanBackward{Kind: "cummin", Shape: []int64{1<<22 + 1}, DType: tensor.BFloat16, Tie: "first"}, ops.Preference{},
			func(args []tensor.Tensor) { args[1].Data += 2 }, "dy", "x", "dx")
		require.Len(t, launches, 3)
		for i, phase := range []int64{gpu.FlagUpsweepPrefix, gpu.FlagUpsweepSuffix, 0} {
			require.Equal(t, "scan_backward_cumextremum_row_tiled_bf16", launches[i].Symbol)
			w := wordsOfScan(t, &launches[i])
			require.Equal(t, phase|gpu.FlagFirst|gpu.FlagMinimum, w.get("flags"))
			require.GreaterOrEqual(t, w.get("splits")*w.get("tilesPerSplit")*512*32, int64(1<<22), "tiles cover the row")
			require.Equal(t, w.get("splits"), int64(launches[i].Grid))
			require.Equal(t, int64(100<<40), w.get("states"))
			require.Equal(t, int64(16), w.get("stateOffset"), "flags of rows by indices come first")
			require.Zero(t, w.get("rejectFlags"))
		}
		w := wordsOfScan(t, &launches[0])
		splits, all := w.get("splits"), w.get("splits")*w.get("tilesPerSplit")
		require.GreaterOrEqual(t, plan.WorkspaceSize(), 16+4*splits+4*all+8*splits, "prefixes of splits, prefixes before tiles, suffixes of splits")
	})
	t.Run("indices of a forward", func(t *testing.T) {
		fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
		plan, err := core.Select(scan.Scan{Kind: "cummax", Shape: []int64{64, 1000}, DType: tensor.Float32, Dim: 1}, tensor.CUDA(0), ops.Preference{})
		require.NoError(t, err)
		args, workspace := coretest.DeviceArgs(plan, "x", "y", "indices")
		args[operand.ForwardIndices].Strides[0], args[operand.ForwardIndices].Strides[1] = 1, 64
		require.NoError(t, plan.RunOrdered(0, workspace, args))
		require.Len(t, fake.Launches, 1)
		require.Equal(t, "scan_indices_row_resident_f32", fake.Launches[0].Symbol)
		w := wordsOfScan(t, &fake.Launches[0])
		for word, number := range map[string]int{"inputs[0]": operand.ForwardX, "outputs[0]": operand.ForwardY, "outputs[1]": operand.ForwardIndices} {
			require.Equal(t, int64(args[number].Data), w.of(word, "data"), word)
		}
		require.Zero(t, w.of("inputs[1]", "data"))
		require.Zero(t, w.of("inputs[2]", "data"))
		require.Equal(t, int64(-64), w.of("outputs[1]", "step"))
		require.Equal(t, int64(gpu.FlagVectorized|gpu.FlagReversed), w.get("flags"), "indices are stored one by one, in any layout")
	})
	t.Run("indices", func(t *testing.T) {
		launches, args, _ := scanCalls(t, scan.ScanBackward{Kind: "cummax", Shape: []int64{700, 30}, DType: tensor.Float64, Dim: 0}, ops.Preference{}, nil, "dy", "indices", "dx")
		require.Len(t, launches, 4)
		require.Equal(t, "scan_clear", launches[0].Symbol)
		require.Equal(t, []uint64{100 << 40, 8}, launches[0].Words, "an int32 for all rows and for each")
		require.Equal(t, "scan_backward_indices_column_tiled_f64", launches[1].Symbol)
		require.Equal(t, "scan_backward_indices_repair_f64", launches[3].Symbol)
		w := wordsOfScan(t, &launches[2])
		require.Equal(t, int64(args[operand.Indices].Data), w.of("inputs[1]", "data"))
		require.Equal(t, int64(100<<40), w.get("rejectFlags"))
	})
	t.Run("pipelined", func(t *testing.T) {
		long := []int64{5000, 8192}
		for _, c := range []struct {
			about    string
			kind     string
			shape    []int64
			dim      int64
			change   func(args []tensor.Tensor)
			launches []string // kernels
		}{
			{"persistent CTAs", "cummax", long, 0, nil, []string{"cumextremum_records_column_pipelined", "cumextremum_column_pipelined"}},
			{"a fallback pass by column_tiled", "cumprod", long, 0, nil, []string{"cumprod_column_pipelined", "cumprod_column_tiled"}},
			{"few columns, split", "logcumsumexp", []int64{5000, 1024}, 0, nil,
				[]string{"logcumsumexp_column_pipelined", "logcumsumexp_column_pipelined", "logcumsumexp_column_pipelined", "logcumsumexp_column_tiled"}},
			{"no prefix", "cumsum", []int64{5000, 1024}, 0, nil, []string{"cumsum_column_pipelined", "cumsum_column_pipelined"}},
			{"in the middle", "cummax", []int64{3, 5000, 4096}, 1, nil, []string{"cumextremum_records_column_pipelined", "cumextremum_column_pipelined"}},
			{"short columns", "cumsum", []int64{100, 8192}, 0, nil, []string{"cumsum_column_tiled"}},
			{"short columns, recomputed by the CTA", "logcumsumexp", []int64{100, 8192}, 0, nil, []string{"logcumsumexp_column_tiled"}},
			{"odd columns that no CTA holds, with a fallback pass", "cumprod", []int64{3000, 11101}, 0, nil, []string{"cumprod_column_tiled", "cumprod_column_tiled"}},
			{"a small tensor", "cumprod", []int64{500, 64}, 0, nil, []string{"cumprod_column_tiled"}},
			{"narrow", "cummax", []int64{1 << 20, 16}, 0, nil, []string{"cumextremum_column_tiled", "cumextremum_column_tiled", "cumextremum_column_tiled"}},
			{"narrow, with a fallback pass", "cumprod", []int64{1 << 20, 16}, 0, nil, slices.Repeat([]string{"cumprod_column_tiled"}, 4)},
			{"long rows", "cummin", []int64{1024, 65536}, 1, nil, []string{"cumextremum_records_row_pipelined", "cumextremum_row_pipelined"}},
			{"record pass of a cooperative row", "cummax", []int64{1 << 22}, 0, nil, []string{"scan_clear", "cumextremum_records_row_pipelined", "cumextremum_row_pipelined"}},
			{"record pass of few columns, split", "cummax", []int64{5000, 1024}, 0, nil,
				[]string{"cumextremum_records_column_pipelined", "cumextremum_records_column_pipelined", "cumextremum_column_pipelined", "cumextremum_column_pipelined"}},
			{"a cooperative long row", "cumprod", []int64{1 << 22}, 0, nil,
				[]string{"scan_clear", "cumprod_row_pipelined", "cumprod_row_pipelined", "cumprod_row_tiled"}},
			{"a long row of an odd length", "cummin", []int64{1<<22 + 1}, 0, nil, []string{"scan_clear", "cumextremum_records_row_pipelined", "cumextremum_row_pipelined"}},
			{"longer rows that begin inside a vector", "logcumsumexp", []int64{1024, 1<<18 + 1}, 1, nil, []string{"logcumsumexp_row_pipelined", "logcumsumexp_row_tiled"}},
			{"no prefix, cooperative rows", "cumsum", []int64{100, 1 << 18}, 1, nil, []string{"scan_clear", "cumsum_row_pipelined"}},
			{"long rows that row_tiled reads once", "cumsum", []int64{1024, 65536}, 1, nil, []string{"cumsum_row_tiled"}},
			{"an odd length", "cumsum", []int64{1024, 65535}, 1, nil, []string{"cumsum_row_tiled"}},
			{"one dy for each longer row", "logcumsumexp", []int64{1024, 1 << 22}, 1, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 1, 0 },
				[]string{"logcumsumexp_row_pipelined", "logcumsumexp_row_tiled"}},
			{"an odd address", "cummax", long, 0, func(args []tensor.Tensor) { args[1].Data += 4 }, []string{"cumextremum_column_tiled"}},
			{"an odd stride", "cummax", long, 0, func(args []tensor.Tensor) { args[0].Strides[0] = 8193 }, []string{"cumextremum_column_tiled"}},
			{"one dy for all", "cummax", long, 0, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 0, 0 }, []string{"cumextremum_column_tiled"}},
		} {
			launches, _, _ := scanCalls(t, scan.ScanBackward{Kind: c.kind, Shape: c.shape, DType: tensor.Float32, Dim: c.dim}, ops.Preference{}, c.change, gradientOperands(c.kind)...)
			var kernels []string
			for _, l := range launches {
				kernels = append(kernels, strings.TrimSuffix(strings.TrimPrefix(l.Symbol, "scan_backward_"), "_f32"))
			}
			require.Equal(t, c.launches, kernels, c.about)
			cooperative := kernels[0] == "scan_clear"
			if cooperative {
				launches, kernels = launches[1:], kernels[1:]
			}
			if _, kernel, _ := strings.Cut(strings.Replace(kernels[0], "_records_", "_", 1), "_"); !gpu.IsSpecialized(kernel) {
				continue
			}
			require.Equal(t, cooperative, launches[0].Cooperative, "CTAs that wait for each other are resident")
			w, last := wordsOfScan(t, &launches[0]), wordsOfScan(t, &launches[len(launches)-1])
			require.LessOrEqual(t, int(launches[0].Shared), 220<<10, c.about)
			require.GreaterOrEqual(t, w.get("stages"), int64(2))
			ctas, tile, fallbackTile := int64(132), int64(16*16), int64(16*16)
			if strings.Contains(kernels[0], gpu.RowPipelined) {
				ctas, tile, fallbackTile = 264, 256*16, 512*8
				if cooperative && strings.HasPrefix(kernels[0], "cumextremum") {
					ctas = 396
				}
			}
			if c.kind == "cumsum" {
				tile *= 2
			}
			require.Equal(t, min(w.get("segments")*w.get("splits"), ctas), int64(launches[0].Grid))
			require.GreaterOrEqual(t, w.get("splits")*w.get("tilesPerSplit")*tile, w.get("n"), "tiles cover a row")
			if hasFastPath(c.kind) {
				require.Equal(t, w.get("rejectFlags"), last.get("rejectFlags"))
				require.GreaterOrEqual(t, w.get("stateOffset"), 4*w.get("segments"), "a reject flag for every segment comes first")
				require.NotZero(t, last.get("flags")&gpu.FlagFallback)
				splits, grid := w.get("segments")*last.get("splits"), int64(launches[len(launches)-1].Grid)
				require.Equal(t, min(splits, 264), grid, "persistent CTAs look at all flags")
				require.Equal(t, last.get("splits") > 1, launches[len(launches)-1].Cooperative, "CTAs that share a segment meet at a grid barrier")
				require.Equal(t, w.get("splits") > 1, last.get("splits") > 1)
				require.GreaterOrEqual(t, last.get("splits")*last.get("tilesPerSplit")*fallbackTile, w.get("n"), "tiles cover a segment")
				require.Equal(t, strings.Contains(kernels[0], gpu.ColumnPipelined), launches[len(launches)-1].Shared > 0, "column_tiled keeps states in shared memory")
			}
		}
	})
	t.Run("no workspace without indices", func(t *testing.T) {
		(&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
		for _, c := range []struct {
			kind        string
			n           int64
			onlyIndices bool // need the workspace
		}{{"cummax", 1000, true}, {"cummax", 1 << 22, false}, {"logcumsumexp", 1 << 22, false}} {
			plan, err := core.Select(scan.ScanBackward{Kind: c.kind, Shape: []int64{c.n}, DType: tensor.Float32}, tensor.CUDA(0), ops.Preference{})
			require.NoError(t, err)
			require.Positive(t, plan.WorkspaceSize())
			args, _ := coretest.DeviceArgs(plan, "dy", "x", "dx")
			if err := plan.RunOrdered(0, tensor.Tensor{}, args); c.onlyIndices {
				require.NoError(t, err)
				args, _ = coretest.DeviceArgs(plan, "dy", "indices", "dx")
				require.ErrorIs(t, plan.RunOrdered(0, tensor.Tensor{}, args), errs.ErrWorkspaceTooSmall)
			} else {
				require.ErrorIs(t, err, errs.ErrWorkspaceTooSmall)
			}
		}
	})
	t.Run("no workspace with contiguous operands", func(t *testing.T) {
		(&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
		for _, family := range []string{"forward", "backward"} {
			fields := scan.Scan{Kind: "cumsum", Shape: []int64{1024, 1, 8192}, DType: tensor.BFloat16, Dim: 2}
			d, operands := ops.Descriptor(fields), []string{"x", "y"}
			if family == "backward" {
				d, operands = scan.ScanBackward(fields), []string{"dy", "dx"}
			}
			plan, err := core.Select(d, tensor.CUDA(0), ops.Preference{})
			require.NoError(t, err)
			require.Positive(t, plan.WorkspaceSize())
			args, _ := coretest.DeviceArgs(plan, operands...)
			out := &args[slices.Index(plan.Operands(), operands[1])]
			out.Strides[1] = 12345 // of one position: the array is contiguous
			require.NoError(t, plan.RunOrdered(0, tensor.Tensor{}, args), family)
			out.Strides[0], out.Strides[2] = 1, 1024
			require.ErrorIs(t, plan.RunOrdered(0, tensor.Tensor{}, args), errs.ErrWorkspaceTooSmall, family)
		}
	})
	t.Run("no workspace with a kernel that is asked for", func(t *testing.T) {
		fake := &coretest.FakeCUDA{Devices: 1, NumSMs: 132}
		fake.Install(t)
		for _, kernel := range []string{gpu.RowResident, gpu.RowTiled, gpu.RowPipelined, gpu.ColumnTiled, gpu.ColumnPipelined} {
			for _, shape := range [][]int64{{1024, 8192}, {8, 1 << 20}, {4096, 64}} {
				for dim := range int64(2) {
					d := scan.ScanBackward{Kind: "cumsum", Shape: shape, DType: tensor.Float32, Dim: dim}
					plan, err := core.Select(d, tensor.CUDA(0), ops.Preference{Kernel: kernel})
					if err != nil || plan.WorkspaceSize() == 0 {
						continue // the kernel does not take these rows, or needs no workspace in any layout
					}
					args, _ := coretest.DeviceArgs(plan, "dy", "dx")
					require.ErrorIs(t, plan.RunOrdered(0, tensor.Tensor{}, args), errs.ErrWorkspaceTooSmall, "%s, %v, dim %d", kernel, shape, dim)
				}
			}
		}
	})
	t.Run("vectorized", func(t *testing.T) {
		row, rows, odd, long := []int64{64, 1000}, []int64{64, 30}, []int64{64, 1001}, []int64{300, 50257}
		const misaligned, lineAligned = int64(gpu.FlagVectorized | gpu.FlagMisaligned), int64(gpu.FlagVectorized | gpu.FlagMisaligned | gpu.FlagLineAligned)
		for _, c := range []struct {
			about   string
			shape   []int64
			reverse bool
			change  func(args []tensor.Tensor)
			flags   int64 // of FlagVectorized, FlagMisaligned, FlagLineAligned
		}{
			{"rows of whole vectors", row, false, nil, gpu.FlagVectorized},
			{"reversed", row, true, nil, gpu.FlagVectorized},
			{"a stride of whole vectors", row, false, func(args []tensor.Tensor) { args[0].Strides[0] = 1004 }, gpu.FlagVectorized},
			{"a stride of others", row, false, func(args []tensor.Tensor) { args[0].Strides[0] = 1003 }, 0},
			{"an odd address", row, false, func(args []tensor.Tensor) { args[1].Data += 4 }, 0},
			{"every other element", row, false, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 2000, 2 }, 0},
			{"rows of other lengths", odd, false, nil, misaligned},
			{"reversed rows of other lengths", odd, true, nil, misaligned},
			{"rows of other lengths that begin at the same places of vectors", odd, false, func(args []tensor.Tensor) { args[1].Strides[0] = 1013 }, misaligned},
			{"rows of other lengths that do not", odd, false, func(args []tensor.Tensor) { args[1].Strides[0] = 1012 }, 0},
			{"rows of other lengths at odd addresses", odd, false, func(args []tensor.Tensor) {
				args[0].Data, args[1].Data, args[operand.Dx].Data = args[0].Data+4, args[1].Data+4, args[operand.Dx].Data+4
			}, 0},
			{"rows of other lengths that overlap", odd, false, func(args []tensor.Tensor) { args[1].Strides[0] = 1 }, 0},
			{"the last of rows of other lengths first", odd, false, func(args []tensor.Tensor) { args[1].Strides[0] = -1001 }, 0},
			{"rows of other lengths, a number for each", odd, false, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 1, 0 }, misaligned},
			{"long rows", []int64{300, 50264}, false, nil, gpu.FlagVectorized},
			{"long rows that begin inside sectors", []int64{300, 1<<22 + 4}, true, nil, lineAligned},
			{"long rows that begin inside vectors", long, false, nil, lineAligned},
			{"long rows that begin inside the same lines", long, true, func(args []tensor.Tensor) { args[0].Strides[0], args[1].Data = 50289, args[1].Data+128 }, lineAligned},
			{"long rows that do not", long, false, func(args []tensor.Tensor) { args[0].Strides[0] = 50261 }, misaligned},
			{"long rows of which one begins inside another line", long, false, func(args []tensor.Tensor) { args[1].Data += 16 }, misaligned},
			{"three dimensions", []int64{4, 5, 1000}, false, func(args []tensor.Tensor) { args[0].Strides[0] = 5004 }, 0},
			{"short rows, whole vectors together", rows, false, nil, gpu.FlagVectorized},
			{"short rows, reversed", rows, true, nil, gpu.FlagVectorized},
			{"one dy for all", row, false, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 0, 0 }, gpu.FlagVectorized},
			{"one dy for each row, reversed", row, true, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 1, 0 }, gpu.FlagVectorized},
			{"one x for all", row, false, func(args []tensor.Tensor) { args[1].Strides[0], args[1].Strides[1] = 0, 0 }, 0},
			{"short rows, one dy for all", rows, false, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 0, 0 }, gpu.FlagVectorized},
			{"short rows, one dy for each", rows, false, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 1, 0 }, 0},
			{"short rows, an odd address", rows, false, func(args []tensor.Tensor) { args[operand.Dx].Data += 4 }, 0},
		} {
			launches, _, _ := scanCalls(t, scan.ScanBackward{Kind: "logcumsumexp", Shape: c.shape, DType: tensor.Float32, Dim: int64(len(c.shape) - 1), Reverse: c.reverse},
				ops.Preference{}, c.change, "dy", "x", "dx")
			if launches[0].Symbol == "scan_clear" {
				launches = launches[1:]
			}
			require.Equal(t, c.flags, wordsOfScan(t, &launches[0]).get("flags")&lineAligned, c.about)
		}
	})
	t.Run("short rows", func(t *testing.T) {
		for _, c := range []struct {
			kind   string
			dtype  tensor.DType
			n      int64
			kernel string
		}{
			{"cumprod", tensor.Float32, 128, gpu.RowPacked},
			{"cumprod", tensor.Float32, 127, gpu.RowPacked},   // four rows are whole vectors
			{"cumprod", tensor.Float32, 129, gpu.RowResident}, // four rows are longer than a warp holds
			{"cumprod", tensor.Float32, 130, gpu.RowPacked},
			{"logcumsumexp", tensor.BFloat16, 127, gpu.RowPacked},
			{"logcumsumexp", tensor.BFloat16, 129, gpu.RowResident},
			{"logcumsumexp", tensor.Float64, 129, gpu.RowResident},
			{"cumextremum", tensor.Float32, 129, gpu.RowPacked},
			{"cumsum", tensor.Float32, 129, gpu.RowPacked},
		} {
			kind := c.kind
			if kind == "cumextremum" {
				kind = "cummax"
			}
			launches, _, _ := scanCalls(t, scan.ScanBackward{Kind: kind, Shape: []int64{64, c.n}, DType: c.dtype, Dim: 1}, ops.Preference{}, nil, gradientOperands(kind)...)
			require.Equal(t, "scan_backward_"+c.kind+"_"+c.kernel+"_"+c.dtype.Suffix(), launches[0].Symbol, "%d", c.n)
		}
	})
	t.Run("by indices", func(t *testing.T) {
		for _, c := range []struct {
			dtype   tensor.DType
			rows, n int64
			kernel  string
		}{
			{tensor.BFloat16, 1024, 2048, gpu.RowResident}, {tensor.BFloat16, 1024, 4096, gpu.RowTiled}, {tensor.Float32, 1024, 8192, gpu.RowTiled}, {tensor.Float64, 1024, 4096, gpu.RowResident},
			{tensor.Float32, 100, 8192, gpu.RowResident}, // too few to fill the device
		} {
			launches, _, _ := scanCalls(t, scan.ScanBackward{Kind: "cummin", Shape: []int64{c.rows, c.n}, DType: c.dtype, Dim: 1}, ops.Preference{}, nil, "dy", "indices", "dx")
			require.Equal(t, "scan_backward_indices_"+c.kernel+"_"+c.dtype.Suffix(), launches[1].Symbol, "%+v", c)
			require.Len(t, launches, 3, "flags are cleared, and rows whose indices no scan gives are repaired")
		}
	})
	t.Run("nothing to do", func(t *testing.T) {
		for _, shape := range [][]int64{{0}, {0, 5}, {5, 0}, {0, 8192, 64}, {0, 64, 8192}} {
			for dim := range shape {
				launches, _, _ := scanCalls(t, scan.ScanBackward{Kind: "logcumsumexp", Shape: shape, DType: tensor.Float32, Dim: int64(dim)}, ops.Preference{}, nil, "dy", "x", "dx")
				require.Empty(t, launches, "%v along %d", shape, dim)
			}
		}
	})
}

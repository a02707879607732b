package scan_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
)

// scanCalls are the launches of one run of a scan on a device of 132 multiprocessors, without clusters.
func scanCalls(t *testing.T, d scan.ScanBackward, preference ops.Preference, change func(args []tensor.Tensor), operands ...string) ([]coretest.FakeLaunch, []tensor.Tensor, *core.Plan) {
	t.Helper()
	return scanCallsWith(t, nil, d, preference, change, operands...)
}

// scanCallsWith are those on a device with as many clusters.
func scanCallsWith(t *testing.T, clusters func(*driver.Launch) int, d scan.ScanBackward, preference ops.Preference, change func(args []tensor.Tensor), operands ...string) ([]coretest.FakeLaunch, []tensor.Tensor, *core.Plan) {
	t.Helper()
	fake := (&coretest.FakeCUDA{Devices: 1, Units: 132, Clusters: clusters}).Install(t)
	plan, err := core.Select(d, tensor.CUDA(0), preference)
	require.NoError(t, err)
	args, workspace := coretest.DeviceArgs(plan, operands...)
	if change != nil {
		change(args)
	}
	require.NoError(t, plan.RunOrdered(0, workspace, args))
	return fake.Launches, args, plan
}

// scanWords reads fields of ScanArgs, and of its operands, by their names in cuda/scan.cuh.
type scanWords struct {
	t          *testing.T
	at, inside map[string]int
	words      []uint64
}

func wordsOfScan(t *testing.T, l *coretest.FakeLaunch) scanWords {
	at, size := coretest.WordsOf(t, "scan", "ScanArgs")
	inside, operand := coretest.WordsOf(t, "scan", "Strided")
	for i, name := range []string{"dy", "x", "dx"} { // declared last, and counted as one word each
		at[name] = size - 3 + i*operand
	}
	require.Len(t, l.Words, size-3+3*operand, l.Symbol)
	return scanWords{t, at, inside, l.Words}
}

func (w scanWords) get(name string) int64 { return int64(w.words[w.at[name]]) }

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
		require.Equal(t, "scan_backward_cumprod_rows_f32", launches[0].Symbol)
		w := wordsOfScan(t, &launches[0])
		require.Equal(t, int64(40), w.get("n"))
		require.Equal(t, int64(1), w.get("dims"))
		require.Equal(t, int64(6), w.get("extent"))
		require.Equal(t, int64(6), w.get("segments"))
		require.Equal(t, int64(scan.ScanReversed|scan.ScanDense), w.get("flags"))
		require.Equal(t, int64(args[scan.DxOperand].Data), w.of("dx", "data"))
		require.Equal(t, int64(239), w.of("dx", "first"), "rows that lie end to end are mirrored together")
		require.Equal(t, int64(-1), w.of("dx", "step"))
		require.Equal(t, []int64{-40}, w.strides("x", 1))
		require.Zero(t, w.get("states"))
		require.Equal(t, "rows", plan.SKU().Kernel)
	})
	t.Run("dx transposed", func(t *testing.T) {
		launches, _, plan := scanCalls(t, scan.ScanBackward{Kind: "cumsum", Shape: []int64{5000, 300}, DType: tensor.Float32, Dim: 0}, ops.Preference{}, func(args []tensor.Tensor) {
			for _, i := range []int{0, scan.DxOperand} {
				args[i].Strides[0], args[i].Strides[1] = 1, 5000
			}
		}, "dy", "dx")
		require.Equal(t, "strips", plan.SKU().Kernel)
		require.Len(t, launches, 1)
		require.Equal(t, "scan_backward_cumsum_row_f32", launches[0].Symbol, "the kernel for where dx is dense")
	})
	t.Run("long rows, one way or both", func(t *testing.T) {
		for _, c := range []struct {
			against int // the operand that runs against the others
			kernel  string
		}{{-1, "long"}, {0, "tiles"}, {1, "tiles"}, {scan.DxOperand, "tiles"}} {
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
		for i, phase := range []int64{scan.ScanHeads, scan.ScanTails, 0} {
			require.Equal(t, "scan_backward_cumextremum_tiles_bf16", launches[i].Symbol)
			w := wordsOfScan(t, &launches[i])
			require.Equal(t, phase|scan.ScanFirst|scan.ScanMinimum, w.get("flags"))
			require.GreaterOrEqual(t, w.get("splits")*w.get("tiles_per_split")*512*32, int64(1<<22), "tiles cover the row")
			require.Equal(t, w.get("splits"), int64(launches[i].Grid))
			require.Equal(t, int64(100<<40), w.get("states"))
			require.Equal(t, int64(16), w.get("state_offset"), "what is known of indices comes first")
			require.Zero(t, w.get("reject_flags"))
		}
		w := wordsOfScan(t, &launches[0])
		parts, all := w.get("splits"), w.get("splits")*w.get("tiles_per_split")
		require.GreaterOrEqual(t, plan.WorkspaceSize(), 16+4*parts+4*all+8*parts, "heads, heads of tiles, tails")
	})
	t.Run("indices", func(t *testing.T) {
		launches, args, _ := scanCalls(t, scan.ScanBackward{Kind: "cummax", Shape: []int64{700, 30}, DType: tensor.Float64, Dim: 0}, ops.Preference{}, nil, "dy", "indices", "dx")
		require.Len(t, launches, 4)
		require.Equal(t, "scan_clear", launches[0].Symbol)
		require.Equal(t, []uint64{100 << 40, 8}, launches[0].Words, "an int32 for all rows and for each")
		require.Equal(t, "scan_backward_indices_columns_f64", launches[1].Symbol)
		require.Equal(t, "scan_backward_indices_repair_f64", launches[3].Symbol)
		w := wordsOfScan(t, &launches[2])
		require.Equal(t, int64(args[scan.IndicesOperand].Data), w.of("x", "data"))
		require.Equal(t, int64(100<<40), w.get("reject_flags"))
	})
	t.Run("rings", func(t *testing.T) {
		long := []int64{5000, 8192}
		for _, c := range []struct {
			about    string
			kind     string
			shape    []int64
			dim      int64
			change   func(args []tensor.Tensor)
			launches []string // kernels
		}{
			{"a block for each strip", "cummax", long, 0, nil, []string{"cumextremum_records_strips", "cumextremum_strips"}},
			{"what it cannot do is left to columns", "cumprod", long, 0, nil, []string{"cumprod_strips", "cumprod_columns"}},
			{"few columns, in parts", "logcumsumexp", []int64{5000, 1024}, 0, nil,
				[]string{"logcumsumexp_strips", "logcumsumexp_strips", "logcumsumexp_strips", "logcumsumexp_columns"}},
			{"no heads", "cumsum", []int64{5000, 1024}, 0, nil, []string{"cumsum_strips", "cumsum_strips"}},
			{"in the middle", "cummax", []int64{3, 5000, 4096}, 1, nil, []string{"cumextremum_records_strips", "cumextremum_strips"}},
			{"short columns", "cumsum", []int64{100, 8192}, 0, nil, []string{"cumsum_columns"}},
			{"short columns, done again by the block", "logcumsumexp", []int64{100, 8192}, 0, nil, []string{"logcumsumexp_columns"}},
			{"odd columns that no block holds, done again by a launch", "cumprod", []int64{3000, 11101}, 0, nil, []string{"cumprod_columns", "cumprod_columns"}},
			{"a small tensor", "cumprod", []int64{500, 64}, 0, nil, []string{"cumprod_columns"}},
			{"narrow", "cummax", []int64{1 << 20, 16}, 0, nil, []string{"cumextremum_columns", "cumextremum_columns", "cumextremum_columns"}},
			{"narrow, done again", "cumprod", []int64{1 << 20, 16}, 0, nil, slices.Repeat([]string{"cumprod_columns"}, 4)},
			{"long rows", "cummin", []int64{1024, 65536}, 1, nil, []string{"cumextremum_records_long", "cumextremum_long"}},
			{"records of a long row, with a team", "cummax", []int64{1 << 22}, 0, nil, []string{"scan_clear", "cumextremum_records_long", "cumextremum_long"}},
			{"records of few columns, in parts", "cummax", []int64{5000, 1024}, 0, nil,
				[]string{"cumextremum_records_strips", "cumextremum_records_strips", "cumextremum_strips", "cumextremum_strips"}},
			{"a long row, with a team", "cumprod", []int64{1 << 22}, 0, nil,
				[]string{"scan_clear", "cumprod_long", "cumprod_long", "cumprod_tiles"}},
			{"a long row of an odd length", "cummin", []int64{1<<22 + 1}, 0, nil, []string{"scan_clear", "cumextremum_records_long", "cumextremum_long"}},
			{"longer rows that begin in vectors of others", "logcumsumexp", []int64{1024, 1<<18 + 1}, 1, nil, []string{"logcumsumexp_long", "logcumsumexp_tiles"}},
			{"no heads, with teams", "cumsum", []int64{100, 1 << 18}, 1, nil, []string{"scan_clear", "cumsum_long"}},
			{"long rows of what is read once by others", "cumsum", []int64{1024, 65536}, 1, nil, []string{"cumsum_tiles"}},
			{"an odd length", "cumsum", []int64{1024, 65535}, 1, nil, []string{"cumsum_tiles"}},
			{"a number for each longer row", "logcumsumexp", []int64{1024, 1 << 22}, 1, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 1, 0 },
				[]string{"logcumsumexp_long", "logcumsumexp_tiles"}},
			{"an odd address", "cummax", long, 0, func(args []tensor.Tensor) { args[1].Data += 4 }, []string{"cumextremum_columns"}},
			{"an odd stride", "cummax", long, 0, func(args []tensor.Tensor) { args[0].Strides[0] = 8193 }, []string{"cumextremum_columns"}},
			{"a number for all", "cummax", long, 0, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 0, 0 }, []string{"cumextremum_columns"}},
		} {
			inputs := []string{"dy", "x", "dx"}
			if c.kind == "cumsum" {
				inputs = []string{"dy", "dx"}
			}
			launches, _, _ := scanCalls(t, scan.ScanBackward{Kind: c.kind, Shape: c.shape, DType: tensor.Float32, Dim: c.dim}, ops.Preference{}, c.change, inputs...)
			var kernels []string
			for _, l := range launches {
				kernels = append(kernels, strings.TrimSuffix(strings.TrimPrefix(l.Symbol, "scan_backward_"), "_f32"))
			}
			require.Equal(t, c.launches, kernels, c.about)
			team := kernels[0] == "scan_clear"
			if team {
				launches, kernels = launches[1:], kernels[1:]
			}
			if scan.ScanKernels[strings.Split(kernels[0], "_")[1]].Instead == "" {
				continue
			}
			require.Equal(t, team, launches[0].Together, "blocks that wait for each other are on the device at once")
			w, last := wordsOfScan(t, &launches[0]), wordsOfScan(t, &launches[len(launches)-1])
			require.LessOrEqual(t, int(launches[0].Shared), 220<<10, c.about)
			require.GreaterOrEqual(t, w.get("width"), int64(2), "tiles of the ring")
			blocks, tile, again := int64(132), int64(16*16), int64(16*16)
			if strings.Contains(kernels[0], "long") {
				blocks, tile, again = 264, 256*16, 512*8
				if team && len(launches) == 2 && c.kind == "cummax" {
					blocks = 396
				}
			}
			if c.kind == "cumsum" {
				tile *= 2
			}
			require.Equal(t, min(w.get("segments")*w.get("splits"), blocks), int64(launches[0].Grid))
			require.GreaterOrEqual(t, w.get("splits")*w.get("tiles_per_split")*tile, w.get("n"), "tiles cover a row")
			if scan.Tamed(c.kind) {
				require.Equal(t, w.get("reject_flags"), last.get("reject_flags"))
				require.GreaterOrEqual(t, w.get("state_offset"), 4*w.get("segments"), "a mark for every strip comes first")
				require.NotZero(t, last.get("flags")&scan.ScanMarked)
				parts, grid := w.get("segments")*last.get("splits"), int64(launches[len(launches)-1].Grid)
				require.Equal(t, min(parts, 264), grid, "each looks at some parts")
				require.Equal(t, last.get("splits") > 1, launches[len(launches)-1].Together, "blocks that share a strip meet")
				require.Equal(t, w.get("splits") > 1, last.get("splits") > 1)
				require.GreaterOrEqual(t, last.get("splits")*last.get("tiles_per_split")*again, w.get("n"), "which are all of a strip")
				require.Equal(t, strings.Contains(kernels[0], "strips"), launches[len(launches)-1].Shared > 0, "columns have their states there")
			}
		}
	})
	t.Run("no workspace without indices", func(t *testing.T) {
		(&coretest.FakeCUDA{Devices: 1, Units: 132}).Install(t)
		for _, c := range []struct {
			kind   string
			n      int64
			spared string
		}{{"cummax", 1000, "indices"}, {"cummax", 1 << 22, ""}, {"logcumsumexp", 1 << 22, ""}} {
			plan, err := core.Select(scan.ScanBackward{Kind: c.kind, Shape: []int64{c.n}, DType: tensor.Float32}, tensor.CUDA(0), ops.Preference{})
			require.NoError(t, err)
			require.Equal(t, c.spared, plan.WorkspaceFor())
			require.Positive(t, plan.WorkspaceSize())
			args, _ := coretest.DeviceArgs(plan, "dy", "x", "dx")
			if err := plan.RunOrdered(0, tensor.Tensor{}, args); c.spared != "" {
				require.NoError(t, err)
				args, _ = coretest.DeviceArgs(plan, "dy", c.spared, "dx")
				require.ErrorIs(t, plan.RunOrdered(0, tensor.Tensor{}, args), errs.ErrWorkspaceTooSmall)
			} else {
				require.ErrorIs(t, err, errs.ErrWorkspaceTooSmall)
			}
		}
	})
	t.Run("dense", func(t *testing.T) {
		row, rows, odd, long := []int64{64, 1000}, []int64{64, 30}, []int64{64, 1001}, []int64{300, 50257}
		const leads, lines = int64(scan.ScanDense | scan.ScanLeads), int64(scan.ScanDense | scan.ScanLeads | scan.ScanLines)
		for _, c := range []struct {
			about   string
			shape   []int64
			reverse bool
			change  func(args []tensor.Tensor)
			dense   int64 // these flags
		}{
			{"rows of whole vectors", row, false, nil, scan.ScanDense},
			{"reversed", row, true, nil, scan.ScanDense},
			{"a stride of whole vectors", row, false, func(args []tensor.Tensor) { args[0].Strides[0] = 1004 }, scan.ScanDense},
			{"a stride of others", row, false, func(args []tensor.Tensor) { args[0].Strides[0] = 1003 }, 0},
			{"an odd address", row, false, func(args []tensor.Tensor) { args[1].Data += 4 }, 0},
			{"every other element", row, false, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 2000, 2 }, 0},
			{"rows of other lengths", odd, false, nil, leads},
			{"reversed rows of other lengths", odd, true, nil, leads},
			{"rows of other lengths that begin at the same places of vectors", odd, false, func(args []tensor.Tensor) { args[1].Strides[0] = 1013 }, leads},
			{"rows of other lengths that do not", odd, false, func(args []tensor.Tensor) { args[1].Strides[0] = 1012 }, 0},
			{"rows of other lengths at odd addresses", odd, false, func(args []tensor.Tensor) {
				args[0].Data, args[1].Data, args[scan.DxOperand].Data = args[0].Data+4, args[1].Data+4, args[scan.DxOperand].Data+4
			}, 0},
			{"rows of other lengths that overlap", odd, false, func(args []tensor.Tensor) { args[1].Strides[0] = 1 }, 0},
			{"the last of rows of other lengths first", odd, false, func(args []tensor.Tensor) { args[1].Strides[0] = -1001 }, 0},
			{"rows of other lengths, a number for each", odd, false, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 1, 0 }, leads},
			{"long rows", []int64{300, 50264}, false, nil, scan.ScanDense},
			{"long rows that begin inside sectors", []int64{300, 1<<22 + 4}, true, nil, lines},
			{"long rows that begin inside vectors", long, false, nil, lines},
			{"long rows that begin inside the same lines", long, true, func(args []tensor.Tensor) { args[0].Strides[0], args[1].Data = 50289, args[1].Data+128 }, lines},
			{"long rows that do not", long, false, func(args []tensor.Tensor) { args[0].Strides[0] = 50261 }, leads},
			{"long rows of which one begins inside another line", long, false, func(args []tensor.Tensor) { args[1].Data += 16 }, leads},
			{"three dimensions", []int64{4, 5, 1000}, false, func(args []tensor.Tensor) { args[0].Strides[0] = 5004 }, 0},
			{"short rows, whole vectors together", rows, false, nil, scan.ScanDense},
			{"short rows, reversed", rows, true, nil, scan.ScanDense},
			{"a number for all", row, false, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 0, 0 }, scan.ScanDense},
			{"a number for each row, reversed", row, true, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 1, 0 }, scan.ScanDense},
			{"an x for all", row, false, func(args []tensor.Tensor) { args[1].Strides[0], args[1].Strides[1] = 0, 0 }, 0},
			{"short rows, a number for all", rows, false, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 0, 0 }, scan.ScanDense},
			{"short rows, a number for each", rows, false, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 1, 0 }, 0},
			{"short rows, an odd address", rows, false, func(args []tensor.Tensor) { args[scan.DxOperand].Data += 4 }, 0},
		} {
			launches, _, _ := scanCalls(t, scan.ScanBackward{Kind: "logcumsumexp", Shape: c.shape, DType: tensor.Float32, Dim: int64(len(c.shape) - 1), Reverse: c.reverse},
				ops.Preference{}, c.change, "dy", "x", "dx")
			if launches[0].Symbol == "scan_clear" {
				launches = launches[1:]
			}
			require.Equal(t, c.dense, wordsOfScan(t, &launches[0]).get("flags")&lines, c.about)
		}
	})
	t.Run("full", func(t *testing.T) {
		for _, c := range []struct {
			about   string
			shape   []int64
			reverse bool
			change  func(args []tensor.Tensor)
			full    int64
		}{
			{"warps that are full", []int64{64, 8192}, false, nil, scan.ScanFull},
			{"a stride of whole vectors", []int64{64, 8192}, false, func(args []tensor.Tensor) { args[0].Strides[0] = 8200 }, scan.ScanFull},
			{"reversed", []int64{64, 8192}, true, nil, 0},
			{"a warp that is not", []int64{64, 8184}, false, nil, 0},
			{"a number for all", []int64{64, 8192}, false, func(args []tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 0, 0 }, 0},
			{"an odd address", []int64{64, 8192}, false, func(args []tensor.Tensor) { args[1].Data += 2 }, 0},
			{"rows of full blocks", []int64{64, 1024}, false, nil, scan.ScanFull},
			{"a block with fewer rows than others", []int64{66, 1024}, false, nil, 0},
			{"pieces", []int64{64, 16384}, false, nil, 0},
		} {
			launches, _, _ := scanCalls(t, scan.ScanBackward{Kind: "logcumsumexp", Shape: c.shape, DType: tensor.BFloat16, Dim: 1, Reverse: c.reverse},
				ops.Preference{}, c.change, "dy", "x", "dx")
			require.Equal(t, c.full, wordsOfScan(t, &launches[0]).get("flags")&scan.ScanFull, c.about)
		}
	})
	t.Run("short rows", func(t *testing.T) {
		for _, c := range []struct {
			kind   string
			dtype  tensor.DType
			n      int64
			kernel string
		}{
			{"cumprod", tensor.Float32, 128, "rows"},
			{"cumprod", tensor.Float32, 127, "rows"}, // four of them are whole vectors
			{"cumprod", tensor.Float32, 129, "row"},  // four are more than a warp has
			{"cumprod", tensor.Float32, 130, "rows"},
			{"logcumsumexp", tensor.BFloat16, 127, "rows"},
			{"logcumsumexp", tensor.BFloat16, 129, "row"},
			{"logcumsumexp", tensor.Float64, 129, "row"},
			{"cumextremum", tensor.Float32, 129, "rows"},
			{"cumsum", tensor.Float32, 129, "rows"},
		} {
			kind, inputs := c.kind, []string{"dy", "x", "dx"}
			switch kind {
			case "cumsum":
				inputs = []string{"dy", "dx"}
			case "cumextremum":
				kind = "cummax"
			}
			launches, _, _ := scanCalls(t, scan.ScanBackward{Kind: kind, Shape: []int64{64, c.n}, DType: c.dtype, Dim: 1}, ops.Preference{}, nil, inputs...)
			require.Equal(t, "scan_backward_"+c.kind+"_"+c.kernel+"_"+c.dtype.Suffix(), launches[0].Symbol, "%d", c.n)
		}
	})
	t.Run("by indices", func(t *testing.T) {
		for _, c := range []struct {
			dtype   tensor.DType
			rows, n int64
			kernel  string
		}{
			{tensor.BFloat16, 1024, 2048, "row"}, {tensor.BFloat16, 1024, 4096, "tiles"}, {tensor.Float32, 1024, 8192, "tiles"}, {tensor.Float64, 1024, 4096, "row"},
			{tensor.Float32, 100, 8192, "row"}, // too few to keep all threads busy by themselves
		} {
			launches, _, _ := scanCalls(t, scan.ScanBackward{Kind: "cummin", Shape: []int64{c.rows, c.n}, DType: c.dtype, Dim: 1}, ops.Preference{}, nil, "dy", "indices", "dx")
			require.Equal(t, "scan_backward_indices_"+c.kernel+"_"+c.dtype.Suffix(), launches[1].Symbol, "%+v", c)
			require.Len(t, launches, 3, "marks are cleared, and rows that no scan gives are done again")
		}
	})
	t.Run("nothing to do", func(t *testing.T) {
		for _, shape := range [][]int64{{0}, {0, 5}, {5, 0}} {
			launches, _, _ := scanCalls(t, scan.ScanBackward{Kind: "logcumsumexp", Shape: shape, DType: tensor.Float32}, ops.Preference{}, nil, "dy", "x", "dx")
			require.Empty(t, launches)
		}
	})
}

// The workspace that a plan asks for holds the states of whatever its runs launch, and every row has its threads.
func TestShapesOfScans(t *testing.T) {
	for _, shape := range [][]int64{
		{1}, {2, 1}, {31, 33}, {100, 1000}, {3, 8193}, {2, 1 << 20}, {8192, 8192}, {16, 40000}, {1 << 20, 2}, {64, 1024, 64}, {7, 5, 3, 2},
	} {
		for _, dtype := range tensor.Floats {
			for _, kind := range scan.Scan.Kinds {
				for dim := range shape {
					for _, kernel := range append([]string{""}, scan.KernelsOfTamed...) {
						d := scan.ScanBackward{Kind: kind.Name, Shape: shape, DType: dtype, Dim: int64(dim)}
						p, err := d.Problem()
						require.NoError(t, err)
						p.Arch = "sm_90"
						chosen, err := p.Compile(p, 132, true, ops.Preference{Kernel: kernel})
						if err != nil {
							require.ErrorIs(t, err, errs.ErrUnsupported)
							continue
						}
						s := chosen.(*scan.ScanProgram)
						g := s.Share(s.Code(), s.Variant, s.RowCount(), s.Inner())
						require.LessOrEqual(t, s.Needs(s.Code(), &g), s.Workspace())
						require.Zero(t, g.Block%32)
						require.LessOrEqual(t, g.Block, int64(512))
						lane := s.Lane(s.Code())
						if s.Variant == "pieces" {
							lane = s.PieceLane()
						}
						switch s.Variant {
						case "rows":
							require.LessOrEqual(t, g.Width*s.Length(), 32*scan.RowsVectors*s.Vector(), "whole rows in a warp")
							require.GreaterOrEqual(t, g.Grid*g.Block/32*g.Width, s.RowCount())
						case "row":
							require.GreaterOrEqual(t, g.Height*32*lane, s.Padded(), "a row in its warps")
							require.GreaterOrEqual(t, g.Grid*g.Width, s.RowCount())
						case "tiles":
							require.GreaterOrEqual(t, g.Parts*g.Tiles*g.Block*s.Walked(s.Code()), s.Padded(), "a row in its tiles")
						case "strips", "long":
							across, length, _ := s.RingTile(s.Variant)
							require.GreaterOrEqual(t, g.Parts*g.Tiles*length, s.Length(), "a row in its tiles")
							require.GreaterOrEqual(t, g.Strips*across, s.RowCount())
							require.True(t, scan.ScanKernels[g.Kernel].Fill(s, &g, &scan.ScanRoom{Shared: 227 << 10}))
							beside, team := int64(scan.StripBeside), int64(0)
							if s.Variant == "long" {
								_, beside, team = s.LongBlocks()
							}
							require.LessOrEqual(t, g.Beside*(int64(g.Shared)+beside), int64(227<<10))
							if s.Together(&g) {
								require.LessOrEqual(t, g.Parts, team, "threads hear all blocks of a team")
								require.LessOrEqual(t, g.Grid, 132*g.Beside, "all blocks are on the device")
								require.GreaterOrEqual(t, g.Width, int64(3), "a tile stays for a turn")
								for _, shared := range []int{163 << 10, 99 << 10} {
									if !scan.ScanKernels[g.Kernel].Fill(s, &g, &scan.ScanRoom{Shared: shared}) {
										require.Equal(t, 99<<10, shared)
										break
									}
									require.LessOrEqual(t, num.CeilDiv(g.Grid, 132)*(int64(g.Shared)+beside), int64(shared), "all blocks are on a device with less shared memory")
									require.LessOrEqual(t, s.Needs(s.Code(), &g), s.Workspace())
								}
							}
						case "pieces":
							require.GreaterOrEqual(t, g.Parts*g.Block*lane, s.Length(), "a row in its pieces")
							require.Less(t, (g.Parts-1)*g.Block*lane, s.Length(), "none of which is empty")
							require.True(t, s.FillPieces(&g, &scan.ScanRoom{Shared: 227 << 10, Clusters: someClusters}))
							require.GreaterOrEqual(t, g.Parts*g.Block*lane, s.Length(), "a row in its pieces")
							require.Less(t, (g.Parts-1)*g.Block*lane, s.Length(), "none of which is empty")
							require.LessOrEqual(t, g.Block, int64(scan.PieceThreads))
							if g.Clustered() {
								require.LessOrEqual(t, g.Parts, int64(scan.ClusterBlocks), "a block has room for a state of each")
							} else {
								require.LessOrEqual(t, g.Parts, g.Block, "each thread hears one")
								require.LessOrEqual(t, g.Grid, int64(s.Units), "all blocks are on the device")
							}
							require.Zero(t, g.Grid%g.Parts, "blocks keep their place in rows")
							require.LessOrEqual(t, s.Needs(s.Code(), &g), s.Workspace())
						case "slabs":
							require.GreaterOrEqual(t, g.Parts*g.Block, s.Length(), "a column in its slabs, of as many rows as blocks have threads")
							require.Less(t, (g.Parts-1)*g.Block, s.Length(), "none of which is empty")
							require.Zero(t, g.Block%32)
							require.LessOrEqual(t, g.Parts, int64(scan.ClusterBlocks), "a block has room for a state of each")
							require.LessOrEqual(t, g.Block, int64(scan.SlabThreads))
							require.GreaterOrEqual(t, g.Strips*g.Columns, s.RowCount())
							require.True(t, s.FillSlabs(&g, &scan.ScanRoom{Shared: 227 << 10, Clusters: someClusters}))
							require.Zero(t, g.Grid%g.Parts, "blocks keep their place in strips")
							again := s.Again(&g)
							across, _ := s.Own(s.Code())
							require.Equal(t, g.Columns, again.Width*across, "strips that are done again are the same")
						case "columns":
							_, down := s.Own(s.Code())
							require.GreaterOrEqual(t, g.Parts*g.Tiles*g.Height*down, s.Length(), "a column in its tiles")
							require.GreaterOrEqual(t, g.Strips*g.Columns, s.RowCount())
							if g.Width*g.Height > 32 {
								require.GreaterOrEqual(t, g.Block, g.Columns, "a thread for what enters each column")
							}
						}
					}
				}
			}
		}
	}
}

// Where the workspace is to be small, a kernel without a ring is chosen, which leaves no records; and none where even that needs more.
func TestScansWithinAWorkspace(t *testing.T) {
	fake := (&coretest.FakeCUDA{Devices: 1, Units: 132, Exports: coretest.ExportsOfKernels(t)}).Install(t)
	for _, c := range []struct {
		shape       []int64
		ring, plain string
	}{{[]int64{1, 1 << 26}, "long", "tiles"}, {[]int64{8192, 8192}, "strips", "columns"}} {
		d := scan.ScanBackward{Kind: "cummax", Shape: c.shape, DType: tensor.Float32, Dim: map[string]int64{"long": 1}[c.ring]}
		whole, err := core.Select(d, tensor.CUDA(0), ops.Preference{})
		require.NoError(t, err)
		require.Equal(t, c.ring, whole.SKU().Kernel)
		require.Greater(t, whole.WorkspaceSize(), int64(1<<26/8))
		limit := whole.WorkspaceSize() / 2
		plan, err := core.Select(d, tensor.CUDA(0), ops.Preference{MaxWorkspace: &limit})
		require.NoError(t, err)
		require.Equal(t, c.plain, plan.SKU().Kernel)
		require.LessOrEqual(t, plan.WorkspaceSize(), limit)
		fake.Launches = nil
		args, workspace := coretest.DeviceArgs(plan, "dy", "x", "dx")
		require.NoError(t, plan.RunOrdered(0, workspace, args))
		for _, l := range fake.Launches {
			require.Contains(t, l.Symbol, c.plain)
		}
		limit = plan.WorkspaceSize() - 1
		_, err = core.Select(d, tensor.CUDA(0), ops.Preference{MaxWorkspace: &limit})
		require.ErrorIs(t, err, errs.ErrUnsupported)
	}
}

// Numbers that Go repeats are those of the kernels.
func TestConstantsOfScans(t *testing.T) {
	source := coretest.CudaSource(t, "scan")
	constant := func(name string) int {
		match := regexp.MustCompile(`\b` + name + ` = (\d+)`).FindStringSubmatch(source)
		require.NotNil(t, match, name)
		n, err := strconv.Atoi(match[1])
		require.NoError(t, err)
		return n
	}
	require.Equal(t, scan.ScanRowThreads, constant("kRowResidentThreads"))
	require.Equal(t, scan.PieceThreads, constant("kRowClusterThreads"))
	require.Equal(t, scan.PieceVectors, constant("kRowClusterVectors"))
	require.Equal(t, scan.PieceHeard, 32*constant("kLookBackWarps"))
	require.Equal(t, scan.SlabThreads, constant("kColumnClusterThreads"))
	require.Equal(t, scan.SlabSeen, constant("kClusterBaseRows"))
	require.Equal(t, scan.LineBytes, constant("kPanelBytes"))
	require.Equal(t, scan.ClusterBlocks, constant("kClusterBlocks"))
	require.Equal(t, scan.ScanRowsThreads, constant("kRowPackedThreads"))
	require.Equal(t, scan.ScanColumnThreads, constant("kColumnThreads"))
	require.Equal(t, scan.StripThreads, constant("kColumnPipelinedThreads"))
	require.Equal(t, scan.LongThreads, constant("kRowPipelinedThreads"))
	for name, bit := range map[string]int{"kFallback": scan.ScanMarked, "kFirst": scan.ScanFirst, "kMinimum": scan.ScanMinimum, "kReversed": scan.ScanReversed, "kUpsweepPrefix": scan.ScanHeads, "kUpsweepSuffix": scan.ScanTails, "kVectorized": scan.ScanDense, "kMisaligned": scan.ScanLeads,
		"kLineAligned": scan.ScanLines, "kFullWarps": scan.ScanFull, "kPrefetchNextRow": scan.ScanForesee} {
		require.Equal(t, bit, constant(name), name)
	}
	for _, own := range []string{
		"kBytesPerThread = sizeof(T) == 8 || !(K::NEEDS_PREFIX || __is_same(typename K::Value, i64)) ? 8 : 4",
		"U = X || K::READS_RECORDS ? 4 : 8, I = U * V, TILE = kRowPipelinedThreads * I",
		"COOPERATIVE = !BOTH || sizeof(T) == 4 || (sizeof(T) == 2 && !K::STORES_ELEMENTS)",
		"kVectorsPerThread = K::STORES_ELEMENTS && sizeof(T) == 2 ? 2 : __is_same(typename K::Value, void) && sizeof(T) > 2 ? 8 : 4",
		"kPackedVectors = kHasFastPath<K> && !K::IS_FAST && sizeof(T) < 8 ? 2 : 4",
		"kTiledVectors = __is_same(typename K::Value, void) ? 4 : kVectorsPerThread<K, T> / 2",
		"W = sizeof(T) == 2 ? 2 : sizeof(T) == 4 && !BOTH ? 2 : 1, R = sizeof(T) == 8 || !X && !K::READS_RECORDS || sizeof(T) == 4 && !BOTH ? 8 : 16",
		"kRowsPerThread = (sizeof(T) == 4 && (K::NEEDS_PREFIX || __is_same(typename K::Value, i64))) || (sizeof(T) == 2 && K::NEEDS_PREFIX && !kHasFastPath<K>) ? 16 : 8",
	} {
		require.True(t, strings.Contains(source, own), "own repeats %s", own)
	}
	require.Contains(t, coretest.CudaSource(t, "scan_logcumsumexp"), "WIDTH == 2 && COUNT == 32 ? "+strconv.Itoa(2*scan.SlabAgain)+" :")
}

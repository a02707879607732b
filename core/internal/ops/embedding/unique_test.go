package embedding_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// stepped lays out an operand of rank 1 with a stride.
func stepped(step int64) coretest.Layout {
	return coretest.Layout{Name: fmt.Sprint("stride ", step), Strides: func([]int64) []int64 { return []int64{step} }}
}

// Around a word of 32 rows, a task of words and one of positions; tables that are large for their
// indices; few rows for many of them.
func TestUniqueRows(t *testing.T) {
	first, last := int64(0), int64(-1)
	for _, rows := range []int64{0, 1, 31, 32, 33, 1 << 17, 1<<17 + 1, 1<<31 - 2} {
		for _, total := range []int64{0, 1, 31, 32, 33, 8191, 8193, 65537} {
			if rows == 0 && total > 0 {
				continue // no index is in [0, 0)
			}
			for k, dtype := range []tensor.DType{tensor.Int32, tensor.Int64} {
				random := rand.New(rand.NewPCG(3, uint64(total)))
				draws := map[string]func(int64) int64{
					"uniform": func(int64) int64 { return random.Int64N(rows) },
					"skewed":  func(int64) int64 { return rows / (1 + random.Int64N(min(rows, 1000))) % rows },
					"equal":   func(int64) int64 { return rows - 1 },
					"falling": func(k int64) int64 { return rows - 1 - k%rows },
				}
				for name, draw := range draws {
					for at, padding := range []*int64{nil, &first, &last} {
						if padding != nil && rows == 0 {
							continue
						}
						d := embedding.UniqueRows{NumRows: rows, Total: total, IndexDType: dtype, PaddingIdx: padding}
						in := []coretest.Layout{coretest.Contiguous, stepped(-1), stepped(2), stepped(0)}[(k+at+int(total))%4]
						out := []coretest.Layout{coretest.Contiguous, stepped(3), coretest.Flipped}[at]
						t.Run(fmt.Sprint(name, rows, " ", total, dtype, at, in.Name), func(t *testing.T) { coretest.NewUniqueCall(d, draw, in, out).Run(t) })
						if at == 1 {
							t.Run(fmt.Sprint("wide ", name, rows, " ", total, dtype, in.Name), func(t *testing.T) {
								coretest.WideNumbers(t)
								coretest.NewUniqueCall(d, draw, in, out).Run(t)
							})
						}
					}
				}
			}
		}
	}
}

// More rows or indices than 32 bits number: places are int64 then; on a GPU they are refused.
func TestUniqueRowsCounts(t *testing.T) {
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	random, last := rand.New(rand.NewPCG(9, 9)), int64(-1)
	for _, rows := range []int64{1<<31 - 1, 1 << 32, 1<<40 + 3} {
		for _, padding := range []*int64{nil, &last} {
			d := embedding.UniqueRows{NumRows: rows, Total: 500, IndexDType: tensor.Int64, PaddingIdx: padding}
			coretest.NewUniqueCall(d, func(k int64) int64 { return (rows - 1 - random.Int64N(1<<(1+k%31))) }, coretest.Contiguous, coretest.Contiguous).Run(t)
		}
	}
	for _, d := range []embedding.UniqueRows{{NumRows: 1<<31 - 1, Total: 3, IndexDType: tensor.Int64}, {NumRows: 3, Total: 1<<31 - 1, IndexDType: tensor.Int64}} {
		_, err := core.Select(d, tensor.CPU, ops.Preference{})
		require.NoError(t, err)
		_, err = core.Select(d, tensor.CUDA(0), ops.Preference{})
		require.ErrorIs(t, err, errs.ErrUnsupported)
		require.ErrorContains(t, err, "must be less than 2147483647 on a GPU")
	}
}

// Results do not depend on the number of threads; runs at the same time do not disturb each other,
// larger or smaller.
func TestUniqueRowsThreads(t *testing.T) {
	defer func(n int) { require.NoError(t, core.SetNumThreads(n)) }(core.NumThreads())
	for _, threads := range []int{1, 2, 3, 8} {
		require.NoError(t, core.SetNumThreads(threads))
		var group sync.WaitGroup
		for worker := range 3 {
			padding := int64(worker)
			d := embedding.UniqueRows{NumRows: []int64{300000, 70, 1 << 30}[worker], Total: []int64{200000, 90000, 3000}[worker], IndexDType: tensor.Int64, PaddingIdx: &padding}
			random := rand.New(rand.NewPCG(uint64(worker), 1))
			c := coretest.NewUniqueCall(d, func(int64) int64 { return random.Int64N(d.NumRows) }, coretest.Contiguous, coretest.Contiguous)
			plan, err := core.Select(d, tensor.CPU, ops.Preference{})
			require.NoError(t, err)
			group.Go(func() {
				for range 4 {
					if err := plan.Run(0, tensor.Tensor{}, c.Args); err != nil {
						panic(err)
					}
					c.RequireDefinition(t)
				}
			})
		}
		group.Wait()
	}
}

// The words of a launch are the fields of the struct in cuda/, and the stages come in their order.
func TestUniqueRowsWords(t *testing.T) {
	at, size := coretest.WordsOf[embedding.UniqueArgs]()
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	padding := int64(-1)
	d := embedding.UniqueRows{NumRows: 1 << 20, Total: 50000, IndexDType: tensor.Int64, PaddingIdx: &padding}
	plan, err := core.Select(d, tensor.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	args, workspace := coretest.DeviceArgs(plan, plan.Operands()...)
	args[embedding.UniqueIndices].Strides[0] = -3
	require.NoError(t, plan.RunOrdered(7, workspace, args))
	require.EqualValues(t, 8*(1<<15)+256+4*(1<<10), plan.WorkspaceSize(), "words, 32 totals, 1024 counts")
	grids := []uint32{65, 4, 128, 128, 196}
	require.Len(t, fake.Launches, len(grids))
	for stage, l := range fake.Launches {
		require.Len(t, l.Words, size)
		require.Equal(t, []any{"unique_rows", uintptr(7), grids[stage], uint32(launch.BlockThreads)}, []any{l.Symbol, l.Stream, l.Grid, l.Block})
		for name, want := range map[string]int64{"indices": 1 << 40, "indexStep": -24, "indexWide": 1, "rows": 2 << 40, "rowsStep": 8, "inverse": 3 << 40,
			"inverseStep": 4, "count": 4 << 40, "workspace": 100 << 40, "numRows": 1 << 20, "total": 50000, "padding": 1<<20 - 1, "most": 50000,
			"words": 1 << 15, "totalsAt": 8 << 15, "countsAt": 8<<15 + 256, "shift": 5, "stage": int64(stage), "end": int64(stage + 1)} {
			require.Equal(t, want, int64(l.Words[at[name]]), "%s in stage %d", name, stage)
		}
	}
	stages := []string{"clear", "set_bits", "count", "rows", "inverse"}
	require.Len(t, stages, embedding.UniqueStages)
	for stage, name := range stages {
		require.Regexp(t, fmt.Sprintf(`(case %d|default): %s\(args\)`, stage, name), coretest.CudaSource(t, "unique_rows"))
	}
}

// One block does what is small, in one launch. Where nothing occurs, a count of 0 is written all
// the same.
func TestUniqueRowsLaunches(t *testing.T) {
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	at, _ := coretest.WordsOf[embedding.UniqueArgs]()
	for _, row := range []struct {
		rows, total int64
		kernel      string
		launches    string // their first stages
	}{
		{1000, 640, "", "0"}, {1 << 17, 1 << 13, "", "0"}, {1<<17 + 1, 5, "", "01234"}, {5, 1<<13 + 1, "", "01234"}, {1000, 640, "marked", "01234"},
		{0, 0, "", "0"}, {1<<31 - 2, 0, "", "0"}, {1<<31 - 2, 0, "marked", "0234"}, {0, 9, "", "0"}, {0, 1 << 20, "", "01234"},
	} {
		fake.Launches = nil
		plan, err := core.Select(embedding.UniqueRows{NumRows: row.rows, Total: row.total, IndexDType: tensor.Int32}, tensor.CUDA(0), ops.Preference{Kernel: row.kernel})
		require.NoError(t, err)
		args, workspace := coretest.DeviceArgs(plan, plan.Operands()...)
		require.NoError(t, plan.RunOrdered(0, workspace, args))
		var stages strings.Builder
		for _, l := range fake.Launches {
			fmt.Fprint(&stages, l.Words[at["stage"]])
			require.True(t, l.Block == launch.BlockThreads || l.Block == embedding.UniqueBlock && l.Grid == 1)
		}
		require.Equal(t, row.launches, stages.String(), "%v", row)
		require.EqualValues(t, embedding.UniqueStages, fake.Launches[len(fake.Launches)-1].Words[at["end"]])
		if row.launches == "0" {
			require.Equal(t, []uint32{1, embedding.UniqueBlock}, []uint32{fake.Launches[0].Grid, fake.Launches[0].Block})
		}
	}
	_, err := core.Select(embedding.UniqueRows{NumRows: 1<<17 + 1, Total: 5, IndexDType: tensor.Int32}, tensor.CUDA(0), ops.Preference{Kernel: "single"})
	require.ErrorIs(t, err, errs.ErrUnsupported)
}

// Parts of the workspace lie one behind the other, whatever the problem, and hold what the kernel
// reads of them.
func TestUniqueRowsWorkspace(t *testing.T) {
	for _, rows := range []int64{0, 1, 32767, 32768, 32769, 1 << 20, 10_000_001, 1<<31 - 2} {
		l := (&embedding.UniqueProgram{D: embedding.UniqueRows{NumRows: rows, Total: 10}}).Layout()
		groups := l.Words / embedding.UniqueGroup
		require.GreaterOrEqual(t, l.Words*32, rows)
		require.Zero(t, l.Words%embedding.UniqueBlock, "blocks read words without a look at where they end")
		require.LessOrEqual(t, l.Totals+4*((groups-1)>>l.Shift+1), l.Counts)
		require.Zero(t, l.Counts%16, "zeros are written 16 bytes at a time")
		require.LessOrEqual(t, int64(1)<<l.Shift, 2*(groups>>l.Shift)+1, "as few totals as counts")
	}
}

// Integers are exact, and say so.
func TestUniqueRowsGuarantee(t *testing.T) {
	plan, err := core.Select(embedding.UniqueRows{NumRows: 5, Total: 3, IndexDType: tensor.Int32}, tensor.CPU, ops.Preference{})
	require.NoError(t, err)
	require.Equal(t, core.SKU{Category: "embedding", Op: "unique_rows", Element: "int32", Arch: plan.SKU().Arch, Backend: "cpu", Kernel: "single",
		Guarantee: core.PrecisionGuarantee{MathPrecision: "int32", Accumulator: "int32", BitStableOnSameHardware: true, Deterministic: true}}, plan.SKU())
}

// Under SetCheck a launch reads the indices first, and refuses what the CPU does.
func TestUniqueRowsChecksValuesOnADevice(t *testing.T) {
	core.SetCheck(true)
	defer core.SetCheck(false)
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	plan, err := core.Select(embedding.UniqueRows{NumRows: 5, Total: 3, IndexDType: tensor.Int64}, tensor.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	args, workspace := coretest.DeviceArgs(plan, plan.Operands()...)
	for _, row := range []struct {
		indices []int64
		wanted  string
	}{{[]int64{4, 0, 4}, ""}, {[]int64{4, 5, -1}, "indices must be in [0, 5), the rows of the table, got 5 at position 1"}} {
		fake.Launches = nil
		fake.Memory = map[uintptr][]byte{args[embedding.UniqueIndices].Data: unsafe.Slice((*byte)(unsafe.Pointer(&row.indices[0])), 24)}
		if err := plan.RunOrdered(0, workspace, args); row.wanted == "" {
			require.NoError(t, err)
			require.Len(t, fake.Launches, 1)
		} else {
			require.ErrorContains(t, err, row.wanted)
			require.ErrorIs(t, err, errs.ErrInvalidProblem)
			require.Empty(t, fake.Launches, "nothing is written")
		}
	}
}

package scan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// linearCalls are the launches of one run on a device of 132 SMs.
func linearCalls(t *testing.T, d ops.Descriptor, change func(args []tensor.Tensor), operands ...string) ([]coretest.FakeLaunch, *core.Plan) {
	t.Helper()
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
	plan, err := core.Select(d, tensor.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	args, workspace := coretest.DeviceArgs(plan, operands...)
	if change != nil {
		change(args)
	}
	require.NoError(t, plan.RunOrdered(0, workspace, args))
	return fake.Launches, plan
}

func symbolsOf(launches []coretest.FakeLaunch) (symbols []string) {
	for i := range launches {
		symbols = append(symbols, launches[i].Symbol)
	}
	return symbols
}

// The kind follows from where factors are. It alone finds a kernel that reads one factor for rows
// that have several, and a number of 32 bits read as one of 16.
func TestKindsOfLinearRecurrences(t *testing.T) {
	asNumber := func(args []tensor.Tensor) { args[operand.LinearA].DType = tensor.Float32 }
	for _, c := range []struct {
		name   string
		d      scan.LinearRecurrence
		change func(args []tensor.Tensor)
		symbol string
		flags  int64
	}{
		{"a factor for each element", scan.LinearRecurrence{Shape: []int64{64, 8192}, Dim: 1}, nil, "linear_recurrence_row_resident_bf16", 0},
		{"for each row", scan.LinearRecurrence{Shape: []int64{64, 8192}, Dim: 1, AShape: []int64{64, 1}}, nil, "linear_recurrence_one_row_resident_bf16", gpu.FlagOneFactor},
		{"for each short row", scan.LinearRecurrence{Shape: []int64{64, 32}, Dim: 1, AShape: []int64{64, 1}}, nil, "linear_recurrence_row_packed_bf16", 0},
		{"for short rows", scan.LinearRecurrence{Shape: []int64{64, 32}, Dim: 1, AShape: []int64{}}, nil, "linear_recurrence_one_row_packed_bf16", gpu.FlagOneFactor},
		{"a number of 32 bits", scan.LinearRecurrence{Shape: []int64{64, 32}, Dim: 1, AShape: []int64{}}, asNumber, "linear_recurrence_one_row_packed_bf16", gpu.FlagOneFactor | gpu.FlagFactorWide},
		{"for each column", scan.LinearRecurrence{Shape: []int64{8192, 64}, AShape: []int64{64}}, nil, "linear_recurrence_one_column_pipelined_bf16", gpu.FlagOneFactor},
		{"packed", scan.LinearRecurrence{Shape: []int64{64, 8192}, Dim: 1, AShape: []int64{64, 1}, NumSequences: new(int64)}, nil, "linear_recurrence_one_packed_row_resident_bf16", gpu.FlagOneFactor},
	} {
		c.d.DType = tensor.BFloat16
		names := []string{"a", "b", "h"}
		if c.d.NumSequences != nil {
			*c.d.NumSequences = 3
			names = append(names, "cu_seqlens")
		}
		launches, _ := linearCalls(t, c.d, c.change, names...)
		last := &launches[len(launches)-1]
		require.Equal(t, c.symbol, last.Symbol, c.name)
		at, size := coretest.WordsOf[gpu.LinearArgs]()
		require.Len(t, last.Words, size)
		special := int64(last.Words[at["flags"]]) & (gpu.FlagOneFactor | gpu.FlagFactorWide)
		require.Equal(t, c.flags, special, c.name)
		inside, _ := coretest.WordsOf[gpu.Strided]()
		a := last.Words[at["inputs"]+sizeOfStrided()+inside["data"]] // the second input
		require.Equal(t, c.flags == 0, a != 0, "%s: a is read if rows have no factor", c.name)
		require.Equal(t, c.flags != 0, last.Words[at["factor"]+inside["data"]] != 0, c.name)
	}
}

func sizeOfStrided() int {
	_, size := coretest.WordsOf[gpu.Strided]()
	return size
}

// The factor of a row keeps other dims from being merged if it is counted among the operands: rows
// would not be read in vectors.
func TestAFactorHasDimsOfItsOwn(t *testing.T) {
	d := scan.LinearRecurrence{Shape: []int64{4, 16, 8192}, AShape: []int64{16, 1}, Dim: 2, DType: tensor.Float32}
	launches, _ := linearCalls(t, d, nil, "a", "b", "h")
	require.Equal(t, []string{"linear_recurrence_one_row_resident_f32"}, symbolsOf(launches))
	at, _ := coretest.WordsOf[gpu.LinearArgs]()
	words := launches[0].Words
	require.Equal(t, uint64(1), words[at["dims"]])
	require.NotZero(t, words[at["flags"]]&gpu.FlagVectorized)
	require.Equal(t, []uint64{16, 4}, words[at["factorExtent"]:at["factorExtent"]+2])
}

// sumModel runs launches of scan_sum as the kernel does, on a workspace of float64.
type sumModel struct {
	t         *testing.T
	workspace []float64
	to        map[uint64]float64 // by address
}

func (m *sumModel) run(l *coretest.FakeLaunch) {
	at, size := coretest.WordsOf[gpu.SumArgs]()
	require.Len(m.t, l.Words, size)
	get := func(name string) int64 { return int64(l.Words[at[name]]) }
	offset := func(dims, extents, strides string, index int64) (sum int64) {
		for d := range get(dims) {
			extent := int64(l.Words[at[extents]+int(d)])
			sum += index % extent * int64(l.Words[at[strides]+int(d)])
			index /= extent
		}
		require.Zero(m.t, index)
		return sum
	}
	across, tiles := get("across"), num.CeilDiv(get("kept"), get("across"))
	require.Zero(m.t, across&(across-1))
	for block := range int64(l.Grid) {
		for x := range across {
			chunk, k := block/tiles, block%tiles*across+x
			if k >= get("kept") {
				continue
			}
			sum := 0.0
			for r := chunk * get("chunk"); r < min((chunk+1)*get("chunk"), get("reduced")); r++ {
				sum += m.workspace[get("terms")+offset("keptDims", "keptExtent", "keptStride", k)+offset("reducedDims", "reducedExtent", "reducedStride", r)]
			}
			if to := l.Words[at["to"]]; to != 0 {
				address := to + uint64(8*offset("keptDims", "keptExtent", "toStride", k))
				require.NotContains(m.t, m.to, address)
				m.to[address] = sum
			} else {
				m.workspace[get("partial")+chunk*get("kept")+k] = sum
			}
		}
	}
}

// Every term is added to its own sum, once. It alone finds terms that two sums share, and sums of a
// gradient with strides of its own.
func TestSumsOfGradients(t *testing.T) {
	for i, c := range []struct{ shape, own []int64 }{
		{[]int64{3, 5}, []int64{3, 1}}, {[]int64{3, 5}, []int64{5}}, {[]int64{3, 5}, []int64{}}, {[]int64{3, 5}, []int64{1, 1}},
		{[]int64{40, 3000}, []int64{40, 1}}, {[]int64{40, 3000}, []int64{3000}}, {[]int64{30000, 2}, []int64{2}}, {[]int64{300000}, []int64{1}},
		{[]int64{4, 50, 6, 70}, []int64{50, 1, 70}}, {[]int64{4, 50, 6, 70}, []int64{4, 1, 6, 1}}, {[]int64{1, 50, 1, 7}, []int64{50, 1, 1}},
		{[]int64{3, 0}, []int64{3, 1}}, {[]int64{0, 5}, []int64{5}}, {[]int64{0, 5}, []int64{}},
	} {
		d := scan.LinearRecurrenceBackward{Shape: c.shape, AShape: c.own, Dim: int64(i % len(c.shape)), DType: tensor.Float64}
		var da tensor.Tensor
		launches, plan := linearCalls(t, d, func(args []tensor.Tensor) {
			for k := range c.own { // gaps, and dimensions in another order
				args[operand.LinearDA].Strides[k] = 3 * int64(1<<(7*k%21))
			}
			da = args[operand.LinearDA]
		}, "dh", "a", "h", "da", "db")
		name := fmt.Sprint(c.shape, c.own)
		m := sumModel{t, make([]float64, plan.WorkspaceSize()/8), map[uint64]float64{}}
		n, _ := tensor.Product(c.shape)
		expected, strides, sums := map[uint64]float64{}, da.ElementStrides(), 0
		lead := len(c.shape) - len(c.own)
		total, _ := tensor.Product(c.own)
		for k := range total {
			expected[uint64(int64(da.Data)+8*at(c.own, strides, k))] = 0
		}
		ownStrides := make([]int64, len(c.shape))
		for k := lead; k < len(c.shape); k++ {
			if c.own[k-lead] == c.shape[k] {
				ownStrides[k] = strides[k-lead]
			}
		}
		for l := range launches {
			if !strings.HasPrefix(launches[l].Symbol, "scan_sum_") {
				continue
			}
			if sums++; sums == 1 {
				words, _ := coretest.WordsOf[gpu.SumArgs]()
				terms := int64(launches[l].Words[words["terms"]])
				if n > 0 {
					scanWords, _ := coretest.WordsOf[gpu.LinearArgs]()
					second := launches[l-1].Words[scanWords["outputs"]+sizeOfStrided():]
					require.Equal(t, launches[l].Words[words["workspace"]], second[0], "terms are in the workspace")
					require.Equal(t, int64(second[1]), terms, name)
				}
				for k := range n {
					m.workspace[terms+placeOfTerm(c.shape, int(d.Dim), k, launches, l-1)] += float64(k%1000 + 1)
					expected[uint64(int64(da.Data)+8*at(c.shape, ownStrides, k))] += float64(k%1000 + 1)
				}
			}
			m.run(&launches[l])
		}
		require.NotZero(t, sums, name)
		require.Equal(t, expected, m.to, name)
	}
}

// placeOfTerm is where a kernel stores term k among the terms: at k, or in the sum of a group of a
// row. Groups follow each other, each with a number of every row.
func placeOfTerm(shape []int64, dim int, k int64, launches []coretest.FakeLaunch, scan int) int64 {
	words, _ := coretest.WordsOf[gpu.LinearArgs]()
	get := func(name string) int64 { return int64(launches[scan].Words[words[name]]) }
	if get("flags")&gpu.FlagSecondSummed == 0 {
		return k
	}
	groups := get("splits") * get("tilesPerSplit")
	switch {
	case get("threadsDown") > 0:
		groups *= get("threadsDown")
	case get("warpsPerRow") > 0:
		groups = get("warpsPerRow")
	default:
		groups *= int64(launches[scan].Block) / 32
	}
	inner, _ := tensor.Product(shape[dim+1:])
	outer, _ := tensor.Product(shape[:dim])
	row, position := k/inner/shape[dim]*inner+k%inner, k/inner%shape[dim]
	return position*groups/shape[dim]*outer*inner + row
}

// at is the offset of a linear index over a shape, the last dimension fastest.
func at(shape, strides []int64, index int64) (offset int64) {
	for d := len(shape) - 1; d >= 0; d-- {
		offset += index % shape[d] * strides[d]
		index /= shape[d]
	}
	return offset
}

// Terms are accumulators, and workspace for them is needed only where they are summed.
func TestTermsOfGradients(t *testing.T) {
	d := scan.LinearRecurrenceBackward{Shape: []int64{64, 4096}, AShape: []int64{64, 1}, Dim: 1, DType: tensor.BFloat16}
	words, _ := coretest.WordsOf[gpu.LinearArgs]()
	launches, plan := linearCalls(t, d, nil, "dh", "a", "h", "da", "db")
	require.Equal(t, []string{"linear_recurrence_terms_row_resident_bf16", "scan_sum_bf16"}, symbolsOf(launches))
	require.NotZero(t, launches[0].Words[words["flags"]]&gpu.FlagVectorized, "sums are not read in vectors")
	flags := uint64(gpu.FlagOneFactor | gpu.FlagFactorWide | gpu.FlagSecondWide | gpu.FlagSecondSummed | gpu.FlagNoResult | gpu.FlagResultWide)
	require.Equal(t, uint64(gpu.FlagSecondWide|gpu.FlagSecondSummed), launches[0].Words[words["flags"]]&flags)
	require.GreaterOrEqual(t, plan.WorkspaceSize(), int64(4*64*4096))
	launches, _ = linearCalls(t, d, nil, "dh", "a", "h", "db")
	require.Equal(t, []string{"linear_recurrence_one_row_resident_bf16"}, symbolsOf(launches))
	d.AShape = []int64{4096}
	launches, _ = linearCalls(t, d, nil, "dh", "a", "h", "db")
	require.Equal(t, []string{"linear_recurrence_backward_row_resident_bf16"}, symbolsOf(launches))
	launches, _ = linearCalls(t, d, nil, "dh", "a", "h", "da")
	require.Equal(t, uint64(gpu.FlagSecondWide|gpu.FlagNoResult), launches[0].Words[words["flags"]]&flags)
	d.DType = tensor.Float32
	launches, _ = linearCalls(t, d, nil, "dh", "a", "h", "da")
	require.Equal(t, "linear_recurrence_backward_row_resident_f32", launches[0].Symbol, "accumulators are elements")
	d.DType = tensor.BFloat16
	d.AShape = []int64{}
	asNumber := func(args []tensor.Tensor) { args[operand.LinearBackwardA].DType = tensor.Float32 }
	launches, _ = linearCalls(t, d, asNumber, "dh", "a", "h", "da")
	require.Equal(t, []string{"linear_recurrence_terms_row_resident_bf16", "scan_sum_bf16"}, symbolsOf(launches))
	require.Equal(t, flags&^gpu.FlagResultWide, launches[0].Words[words["flags"]]&flags)
}

// The gradient of the terms alone is a recurrence with the same factor in the other direction,
// unless a state enters or leaves. It alone finds one that runs in the direction of the forward.
func TestGradientsOfTermsAlone(t *testing.T) {
	words, _ := coretest.WordsOf[gpu.LinearArgs]()
	inside, _ := coretest.WordsOf[gpu.Strided]()
	for _, reverse := range []bool{false, true} {
		d := scan.LinearRecurrence{Shape: []int64{64, 8192}, AShape: []int64{64, 1}, Dim: 1, Reverse: reverse, DType: tensor.Float32}
		gradient, _ := linearCalls(t, scan.LinearRecurrenceBackward(d), nil, "dh", "a", "h", "db")
		forward, _ := linearCalls(t, d, nil, "a", "b", "h")
		require.Equal(t, []string{"linear_recurrence_one_row_resident_f32"}, symbolsOf(gradient))
		require.Equal(t, symbolsOf(forward), symbolsOf(gradient))
		step := words["outputs"] + inside["step"]
		require.Equal(t, -int64(forward[0].Words[step]), int64(gradient[0].Words[step]))
		for _, state := range []string{"dfinal_state", "dinitial_state"} {
			gradient, _ = linearCalls(t, scan.LinearRecurrenceBackward(d), nil, "dh", "a", "h", "db", "initial_state", state)
			require.Equal(t, []string{"linear_recurrence_backward_row_resident_f32"}, symbolsOf(gradient))
		}
	}
}

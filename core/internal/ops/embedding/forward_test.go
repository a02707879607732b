package embedding_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	tensorpkg "github.com/sternway/sternway/core/internal/tensor"
)

// forwardCall has the operands of a run of many tables, of which one table is a case.
type forwardCall struct {
	memory           map[string]*coretest.Memory
	args             core.Args
	indices, offsets []int64
	tables           [][3]int64
}

// add makes an operand; nil: a poisoned output.
func (c *forwardCall) add(name string, dtype tensorpkg.DType, l coretest.Layout, value func(i int64) float64, shape ...int64) {
	m := coretest.NewMemory(dtype, tensorpkg.CPU, shape, l)
	if value == nil {
		m.Poison()
	} else {
		m.Fill(value)
	}
	c.memory[name], c.args[name] = m, m.Tensor
}

// newForwardCall draws operands of tables of rows x widths, each with as many bags. last: positions
// after the last bag.
func newForwardCall(mode string, dtype, index, sample tensorpkg.DType, l coretest.Layout, tables [][2]int64, bags, total, last int64) *forwardCall {
	random := rand.New(rand.NewPCG(7, uint64(total)))
	c := &forwardCall{memory: map[string]*coretest.Memory{}, args: core.Args{}, tables: [][3]int64{{}}}
	lengths := make([]int64, int64(len(tables))*bags)
	for range total - last {
		lengths[random.IntN(len(lengths))]++
	}
	for _, n := range lengths {
		c.offsets = append(c.offsets, int64(len(c.indices)))
		for range n {
			c.indices = append(c.indices, random.Int64N(tables[(int64(len(c.offsets))-1)/bags][0]))
		}
	}
	c.offsets = append(c.offsets, int64(len(c.indices)))
	for range last {
		c.indices = append(c.indices, 0)
	}
	for t, size := range tables {
		row := c.tables[t]
		gap := int64(t) % 2 * 16
		c.tables = append(c.tables, [3]int64{row[0] + size[0], row[1] + size[0]*size[1] + gap, row[2] + size[1]})
	}
	ends := c.tables[len(tables)]
	normal := func(int64) float64 { return random.NormFloat64() }
	c.add("indices", index, l, func(i int64) float64 { return float64(c.indices[i]) }, total)
	if mode == "sum" {
		c.add("per_sample_weights", sample, l, normal, total)
	}
	if mode == "max" {
		c.add("max_indices", index, l, nil, bags, ends[2])
	}
	c.add("y", dtype, l, nil, bags, ends[2])
	return c
}

// requireDefinition compares the outputs with the formulas of EmbeddingBag. weights are the tables,
// row by row.
func (c *forwardCall) requireDefinition(t *testing.T, mode string, bags, padding int64, weights [][]float64) {
	t.Helper()
	y, columns := c.memory["y"], c.tables[len(c.tables)-1][2]
	got, argmaxes, samples := y.Values(), []float64(nil), []float64(nil)
	if m := c.memory["max_indices"]; m != nil {
		argmaxes = m.Values()
		m.RequireOnlyElementsWritten(t, "max_indices")
	}
	if m := c.memory["per_sample_weights"]; m != nil {
		samples = m.Values()
	}
	y.RequireOnlyElementsWritten(t, "y")
	for table := range len(c.tables) - 1 {
		first, width := c.tables[table][2], c.tables[table+1][2]-c.tables[table][2]
		for at := range bags * width {
			bag, column := at/width, at%width
			sum, size, counted, argmax := 0.0, 0.0, 0.0, -1.0
			for i := c.offsets[int64(table)*bags+bag]; i < c.offsets[int64(table)*bags+bag+1]; i++ {
				if c.indices[i] == padding {
					continue
				}
				x := weights[table][c.indices[i]*width+column]
				switch {
				case mode != "max":
					if samples != nil {
						x *= samples[i]
					}
					sum, size = sum+x, size+math.Abs(x)
				case counted == 0 || x > sum:
					sum, argmax = x, float64(c.indices[i])
				}
				counted++
			}
			if mode == "mean" && counted > 0 {
				sum, size = sum/counted, size/counted
			}
			where := bag*columns + first + column
			scratch := coretest.Tolerance(y.DType, tensorpkg.Float64, int64(counted)+1, sum, size)
			require.InDelta(t, sum, got[where], scratch+1e-300, "table %d, bag %d, column %d", table, bag, column)
			if argmaxes != nil {
				require.InDelta(t, argmax, argmaxes[where], 0, "table %d, bag %d, column %d", table, bag, column)
			}
		}
	}
}

// Every mode of one table, in every dtype and layout: strided weights take loops of their own, as
// do 16-bit ones and columns that fill no vector.
func TestEmbeddingBagForward(t *testing.T) {
	for _, mode := range embedding.BagModes {
		for i, sizes := range [][4]int64{{5, 3, 4, 17}, {1, 1, 1, 1}, {7, 33, 5, 0}, {3, 64, 40, 900}, {40, 130, 6, 50}} {
			for _, dtype := range tensorpkg.Floats {
				for k, l := range []coretest.Layout{coretest.Contiguous, coretest.Permuted, coretest.Gapped, coretest.Flipped} {
					t.Run(fmt.Sprint(mode, sizes, dtype, l.Name), func(t *testing.T) {
						d := coretest.ForwardOf(mode, sizes[0], sizes[1], sizes[2], sizes[3])
						d.DType, d.IndexDType = dtype, []tensorpkg.DType{tensorpkg.Int32, tensorpkg.Int64}[i%2]
						sample, padding, last := dtype, int64(-1), int64(0)
						if (i+k)%2 == 1 && sizes[3] > 0 {
							padding, last, sample = 0, 1, tensorpkg.Float32
							d.PaddingIdx, d.IncludeLastOffset = coretest.Given(-d.NumEmbeddings), true
						}
						c := newForwardCall(mode, dtype, d.IndexDType, sample, l, [][2]int64{{sizes[0], sizes[1]}}, sizes[2], sizes[3], last)
						random := rand.New(rand.NewPCG(3, 4))
						c.add("weight", dtype, l, func(int64) float64 { return random.NormFloat64() }, sizes[0], sizes[1])
						offsets := c.offsets
						if !d.IncludeLastOffset {
							offsets = offsets[:sizes[2]]
						}
						c.add("offsets", d.IndexDType, l, func(i int64) float64 { return float64(offsets[i]) }, int64(len(offsets)))
						plan, err := core.Select(d, tensorpkg.CPU, ops.Preference{})
						require.NoError(t, err)
						require.NoError(t, plan.Run(0, tensorpkg.Tensor{}, c.args))
						c.requireDefinition(t, mode, sizes[2], padding, [][]float64{c.memory["weight"].Values()})
					})
				}
			}
		}
	}
}

// manyTables is a run of tables of several widths, one of them without columns and one without rows
// that are used.
func manyTables(t *testing.T, mode string, dtype tensorpkg.DType, l coretest.Layout, bags int64) (*core.Plan, *forwardCall, [][]float64) {
	t.Helper()
	tables := [][2]int64{{5, 16}, {1, 8}, {60, 0}, {9, 48}, {3, 130}}
	c := newForwardCall(mode, dtype, tensorpkg.Int64, tensorpkg.Float32, l, tables, bags, 30*bags, 0)
	ends := c.tables[len(tables)]
	c.add("tables", tensorpkg.Int64, coretest.Contiguous, func(i int64) float64 { return float64(c.tables[i/3][i%3]) }, int64(len(c.tables)), 3)
	random := rand.New(rand.NewPCG(3, 4))
	c.add("weight", dtype, coretest.Contiguous, func(int64) float64 { return random.NormFloat64() }, ends[1])
	c.add("offsets", tensorpkg.Int32, l, func(i int64) float64 { return float64(c.offsets[i]) }, int64(len(c.offsets)))
	d := embedding.EmbeddingBags{
		NumTables: int64(len(tables)), NumBags: bags, NumRows: ends[0], NumElements: ends[1], NumColumns: ends[2], EmbeddingDim: 130,
		TotalIndices: int64(len(c.indices)), DType: dtype, Mode: mode, IndexDType: tensorpkg.Int64, OffsetDType: coretest.Given(tensorpkg.Int32),
	}
	plan, err := core.Select(d, tensorpkg.CPU, ops.Preference{})
	require.NoError(t, err)
	var weights [][]float64
	values := c.memory["weight"].Values()
	for k, size := range tables {
		weights = append(weights, values[c.tables[k][1]:][:size[0]*size[1]])
	}
	return plan, c, weights
}

// Many tables, each by its own part of weight and of y.
func TestEmbeddingBagsForward(t *testing.T) {
	for _, mode := range embedding.BagModes {
		for _, dtype := range tensorpkg.Floats {
			for _, l := range []coretest.Layout{coretest.Contiguous, coretest.Permuted, coretest.Gapped, coretest.Flipped} {
				t.Run(fmt.Sprint(mode, dtype, l.Name), func(t *testing.T) {
					plan, c, weights := manyTables(t, mode, dtype, l, 7)
					require.NoError(t, plan.Run(0, tensorpkg.Tensor{}, c.args))
					c.requireDefinition(t, mode, 7, -1, weights)
				})
			}
		}
	}
}

// Bits do not depend on the number of threads.
func TestEmbeddingBagsForwardRepeats(t *testing.T) {
	defer func(n int) { require.NoError(t, core.SetNumThreads(n)) }(core.NumThreads())
	plan, c, _ := manyTables(t, "sum", tensorpkg.Float32, coretest.Contiguous, 900)
	var first []byte
	for _, threads := range []int{1, 2, 3, 8} {
		require.NoError(t, core.SetNumThreads(threads))
		c.memory["y"].Poison()
		require.NoError(t, plan.Run(0, tensorpkg.Tensor{}, c.args))
		if bits := c.memory["y"].Bits(); first == nil {
			first = bits
		} else {
			require.Equal(t, first, bits)
		}
	}
}

// Each bad integer is refused by its place, before anything is written.
func TestEmbeddingBagsForwardRefusals(t *testing.T) {
	for _, row := range []struct {
		operand   string
		at, value int64
		wanted    string
	}{
		{"offsets", 0, 1, "offsets must be in order, from 0 to 210, the number of indices, got 1 at position 0"},
		{"offsets", 35, 209, "209 at position 35"},
		{"offsets", 35, 211, "211 at position 35"},
		{"offsets", 3, 212, "212 at position 3"},
		{"indices", 0, 5, "indices must be in [0, 5), the rows of the table, got 5 at position 0, of table 0"},
		{"indices", 209, 3, "in [0, 3), the rows of the table, got 3 at position 209, of table 4"},
		{"indices", 209, -1, "got -1 at position 209, of table 4"},
		{"tables", 0, 1, "1 at [0, 0]"},
		{"tables", 1, -1, "-1 at [0, 1]"},
		{"tables", 3, -4, "-4 at [1, 0]"},
		{"tables", 4, 79, "79 at [1, 1]"},
		{"tables", 8, 999, "999 at [2, 2]"},
		{"tables", 15, 77, "77 at [5, 0]"},
		{"tables", 16, 1 << 40, "1099511627776 at [5, 1]"},
		{"tables", 17, 201, "201 at [5, 2]"},
	} {
		plan, c, _ := manyTables(t, "mean", tensorpkg.Float32, coretest.Contiguous, 7)
		values := c.memory[row.operand].Values()
		c.memory[row.operand].Fill(func(i int64) float64 {
			if i == row.at {
				return float64(row.value)
			}
			return values[i]
		})
		for _, m := range c.memory {
			m.Seal()
		}
		err := plan.Run(0, tensorpkg.Tensor{}, c.args)
		require.ErrorIs(t, err, errs.ErrInvalidProblem, row)
		require.ErrorContains(t, err, row.wanted)
		for name, m := range c.memory {
			m.RequireUntouched(t, name)
		}
	}
}

// is_aligned is a promise about tables, which the CPU checks.
func TestEmbeddingBagsForwardAlignment(t *testing.T) {
	for _, row := range []struct {
		tables [][3]int64
		wanted string
	}{
		{[][3]int64{{}, {2, 16, 8}, {4, 28, 12}}, ""},
		{[][3]int64{{}, {2, 14, 7}, {4, 28, 12}}, "tables must be multiples of 4, as is_aligned says, got 7 at [1, 2]"},
		{[][3]int64{{}, {2, 18, 8}, {4, 28, 12}}, "got 18 at [1, 1]"},
	} {
		c := newForwardCall("mean", tensorpkg.Float32, tensorpkg.Int64, tensorpkg.Float32, coretest.Contiguous, [][2]int64{{2, 8}, {2, 4}}, 3, 9, 0)
		c.add("tables", tensorpkg.Int64, coretest.Contiguous, func(i int64) float64 { return float64(row.tables[i/3][i%3]) }, 3, 3)
		c.add("weight", tensorpkg.Float32, coretest.Contiguous, func(int64) float64 { return 1 }, 28)
		c.add("offsets", tensorpkg.Int64, coretest.Contiguous, func(i int64) float64 { return float64(c.offsets[i]) }, 7)
		d := embedding.EmbeddingBags{NumTables: 2, NumBags: 3, NumRows: 4, NumElements: 28, NumColumns: 12, EmbeddingDim: 8, TotalIndices: 9,
			DType: tensorpkg.Float32, Mode: "mean", IndexDType: tensorpkg.Int64, IsAligned: true}
		plan, err := core.Select(d, tensorpkg.CPU, ops.Preference{})
		require.NoError(t, err)
		if err = plan.Run(0, tensorpkg.Tensor{}, c.args); row.wanted == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, row.wanted)
		}
	}
}

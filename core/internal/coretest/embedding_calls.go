package coretest

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// BagOf is a problem of rows x columns weights and some bags and positions, without its dtype.
func BagOf(mode string, rows, columns, bags, total int64) embedding.EmbeddingBagBackward {
	return embedding.EmbeddingBagBackward{NumEmbeddings: rows, EmbeddingDim: columns, NumBags: bags, TotalIndices: total, Mode: mode, IndexDType: tensor.Int64}
}

// ForwardOf is the forward of a problem of BagOf.
func ForwardOf(mode string, rows, columns, bags, total int64) embedding.EmbeddingBag {
	return embedding.EmbeddingBag{NumEmbeddings: rows, EmbeddingDim: columns, NumBags: bags, TotalIndices: total, Mode: mode, IndexDType: tensor.Int64}
}

// Learning is a problem with an optimizer.
func Learning(d embedding.EmbeddingBagBackward, optimizer string) embedding.EmbeddingBagBackward {
	d.Optimizer = optimizer
	return d
}

// TablesOf is a forward of three tables, of 5 rows of 16 columns, 4 of 8 and 6 of 40, each with 3
// bags.
func TablesOf(mode string) embedding.EmbeddingBags {
	return embedding.EmbeddingBags{
		NumTables: 3, NumBags: 3, NumRows: 15, NumElements: 5*16 + 4*8 + 6*40, NumColumns: 64, EmbeddingDim: 40, TotalIndices: 20,
		Mode: mode, IndexDType: tensor.Int32, IsAligned: true,
	}
}

// BagWith is a small problem in float32 with a change.
func BagWith(change func(*embedding.EmbeddingBagBackward)) embedding.EmbeddingBagBackward {
	d := BagOf("sum", 5, 3, 2, 7)
	d.DType = tensor.Float32
	change(&d)
	return d
}

// BagCall holds the operands of one run by name.
type BagCall struct {
	D       embedding.EmbeddingBagBackward
	Args    core.Args
	Memory  map[string]*Memory
	indices []int64
	offsets []int64
}

// WideNumbers makes all plans of a test number rows, bags and positions in 64 bits.
func WideNumbers(t *testing.T) {
	t.Helper()
	bag, unique := embedding.BagWide, embedding.UniqueWide
	t.Cleanup(func() { embedding.BagWide, embedding.UniqueWide = bag, unique })
	embedding.BagWide, embedding.UniqueWide = 0, 0
}

// NewBagCall draws operands; bags end where the next begins, the last one before the last two
// positions where the last offset counts.
func NewBagCall(d embedding.EmbeddingBagBackward, l Layout) *BagCall {
	return NewBagCallOf(d, l, d.DType)
}

// NewBagCallOf is newBagCall with weights of samples, and their gradient, of another dtype.
func NewBagCallOf(d embedding.EmbeddingBagBackward, l Layout, sample tensor.DType) *BagCall {
	random := rand.New(rand.NewPCG(5, uint64(d.TotalIndices)))
	c := &BagCall{D: d, Args: core.Args{}, Memory: map[string]*Memory{}}
	for range d.TotalIndices {
		c.indices = append(c.indices, random.Int64N(d.NumEmbeddings))
	}
	end := d.TotalIndices
	if d.IncludeLastOffset {
		end = max(0, end-2)
	}
	for range d.NumBags {
		c.offsets = append(c.offsets, random.Int64N(end+1))
	}
	slices.Sort(c.offsets)
	if d.NumBags > 0 {
		c.offsets[0] = 0
	}
	if d.IncludeLastOffset {
		c.offsets = append(c.offsets, end)
	}
	number := func(name string, dtype tensor.DType, value func(i int64) float64, shape ...int64) {
		m := NewMemory(dtype, tensor.CPU, shape, l).Fill(value)
		c.Memory[name], c.Args[name] = m, m.Tensor
	}
	normal := func(int64) float64 { return random.NormFloat64() }
	offsetDType := d.IndexDType
	if d.OffsetDType != nil {
		offsetDType = *d.OffsetDType
	}
	number("dy", d.DType, normal, d.NumBags, d.EmbeddingDim)
	number("indices", d.IndexDType, func(i int64) float64 { return float64(c.indices[i]) }, d.TotalIndices)
	number("offsets", offsetDType, func(i int64) float64 { return float64(c.offsets[i]) }, int64(len(c.offsets)))
	switch d.Mode {
	case "sum":
		number("per_sample_weights", sample, normal, d.TotalIndices)
		number("weight", d.DType, normal, d.NumEmbeddings, d.EmbeddingDim)
		c.Output("d_per_sample_weights", sample, l, d.TotalIndices)
	case "max":
		number("max_indices", d.IndexDType, func(i int64) float64 {
			first, end := c.bag(i / d.EmbeddingDim)
			if first == end {
				return 0
			}
			return float64(c.indices[first+random.Int64N(end-first)])
		}, d.NumBags, d.EmbeddingDim)
	}
	c.Output("dweight", d.DType, l, d.NumEmbeddings, d.EmbeddingDim)
	return c
}

// NewEmbeddingCall draws operands of an embedding without bags. Its definition is that of bags of
// one position each whose weights are 1.
func NewEmbeddingCall(d embedding.EmbeddingBackward, l Layout) *BagCall {
	bags := BagOf("sum", d.NumEmbeddings, d.EmbeddingDim, d.NumIndices, d.NumIndices)
	bags.DType, bags.IndexDType, bags.PaddingIdx, bags.ScaleGradByFreq = d.DType, d.IndexDType, d.PaddingIdx, d.ScaleGradByFreq
	c := NewBagCall(bags, l)
	for i := range c.offsets {
		c.offsets[i] = int64(i)
	}
	c.Memory["per_sample_weights"].Fill(func(int64) float64 { return 1 })
	delete(c.Memory, "d_per_sample_weights")
	for name := range c.Args {
		if name != "dy" && name != "indices" && name != "dweight" {
			delete(c.Args, name)
		}
	}
	return c
}

// Output allocates an output and adds it to the operands.
func (c *BagCall) Output(name string, dtype tensor.DType, l Layout, shape ...int64) {
	m := NewMemory(dtype, tensor.CPU, shape, l).Poison()
	c.Memory[name], c.Args[name] = m, m.Tensor
}

func (c *BagCall) bag(b int64) (first, end int64) {
	if b+1 < int64(len(c.offsets)) {
		return c.offsets[b], c.offsets[b+1]
	}
	return c.offsets[b], c.D.TotalIndices
}

// definition is dweight and d_per_sample_weights by the formulas of EmbeddingBagBackward.
func (c *BagCall) definition() (dweight, dsample []sumOf) {
	d, padding := c.D, c.D.Padding()
	dweight, dsample = make([]sumOf, d.NumEmbeddings*d.EmbeddingDim), make([]sumOf, d.TotalIndices)
	values := map[string][]float64{}
	for name, m := range c.Memory {
		values[name] = m.Values()
	}
	frequency := map[int64]float64{}
	each := func(visit func(b, i, row int64, counted float64)) {
		for b := range d.NumBags {
			first, end := c.bag(b)
			counted := 0.0
			for i := first; i < end; i++ {
				if c.indices[i] != padding {
					counted++
				}
			}
			for i := first; i < end; i++ {
				if c.indices[i] != padding {
					visit(b, i, c.indices[i], counted)
				}
			}
		}
	}
	each(func(_, _, row int64, _ float64) { frequency[row]++ })
	claimed := map[int64]bool{}
	each(func(b, i, row int64, counted float64) {
		for column := range d.EmbeddingDim {
			element := b*d.EmbeddingDim + column
			term := values["dy"][element]
			switch d.Mode {
			case "sum":
				dsample[i].add(TermOf(term * values["weight"][row*d.EmbeddingDim+column]))
				term *= values["per_sample_weights"][i]
			case "mean":
				term /= counted
			case "max":
				if claimed[element] || int64(values["max_indices"][element]) != row {
					continue
				}
				claimed[element] = true
			}
			if d.ScaleGradByFreq {
				term /= frequency[row]
			}
			dweight[row*d.EmbeddingDim+column].add(TermOf(term))
		}
	})
	return dweight, dsample
}

// RequireDefinition compares the outputs of the call with the definition.
func (c *BagCall) RequireDefinition(t *testing.T, plan *core.Plan) {
	t.Helper()
	dweight, dsample := c.definition()
	for name, wanted := range map[string][]sumOf{"dweight": dweight, "d_per_sample_weights": dsample} {
		m := c.Memory[name]
		if m == nil {
			continue
		}
		m.RequireOnlyElementsWritten(t, name)
		for k, got := range m.Values() {
			want := wanted[k].value()
			scratch := Tolerance(m.DType, ProblemOf(plan).Element.Accumulator(), max(c.D.TotalIndices, c.D.EmbeddingDim), want, wanted[k].size)
			require.InDelta(t, want, got, scratch+1e-300, "%s at %d", name, k)
		}
	}
}

// uniqueCall holds the operands of one run by name; outputs are poisoned.
type uniqueCall struct {
	D      embedding.UniqueRows
	Args   core.Args
	Memory map[string]*Memory
}

// NewUniqueCall allocates the operands of a UniqueRows problem.
func NewUniqueCall(d embedding.UniqueRows, draw func(k int64) int64, in, out Layout) *uniqueCall {
	c := &uniqueCall{D: d, Args: core.Args{}, Memory: map[string]*Memory{}}
	add := func(name string, m *Memory) { c.Memory[name], c.Args[name] = m, m.Tensor }
	add("indices", NewMemory(d.IndexDType, tensor.CPU, []int64{d.Total}, in).Fill(func(k int64) float64 { return float64(draw(k)) }))
	add("rows", NewMemory(tensor.Int64, tensor.CPU, []int64{d.MaxRows()}, out).Poison())
	add("inverse", NewMemory(d.InverseDType(), tensor.CPU, []int64{d.Total}, out).Poison())
	add("count", NewMemory(tensor.Int64, tensor.CPU, []int64{1}, out).Poison())
	return c
}

// RequireDefinition compares the outputs with what a set and a sort make of the indices.
func (c *uniqueCall) RequireDefinition(t *testing.T) {
	t.Helper()
	indices, padding, places := c.Memory["indices"].Values(), float64(c.D.Padding()), map[float64]float64{}
	rows := []float64{}
	for _, index := range indices {
		if _, known := places[index]; !known && index != padding {
			rows = append(rows, index)
			places[index] = 0
		}
	}
	slices.Sort(rows)
	for k, row := range rows {
		places[row] = float64(k)
		if c.D.PaddingIdx != nil {
			places[row]++
		}
	}
	inverse := make([]float64, len(indices))
	for k, index := range indices {
		inverse[k] = places[index]
	}
	count := float64(len(rows))
	for int64(len(rows)) < c.D.MaxRows() {
		rows = append(rows, -1)
	}
	for name, want := range map[string][]float64{"rows": rows, "inverse": inverse, "count": {count}} {
		RequireSame(t, want, c.Memory[name].Values(), name)
		c.Memory[name].RequireOnlyElementsWritten(t, name)
	}
	c.Memory["indices"].RequireUntouched(t, "indices")
}

// Run runs the call on the CPU and compares the outputs with the definition.
func (c *uniqueCall) Run(t *testing.T) {
	t.Helper()
	plan, err := core.Select(c.D, tensor.CPU, ops.Preference{})
	require.NoError(t, err)
	require.NoError(t, plan.Run(0, tensor.Tensor{}, c.Args))
	c.RequireDefinition(t)
}

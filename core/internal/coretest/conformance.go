package coretest

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/ops/rope"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// Trial is one case of the conformance suite: a problem, and what its operands look like. It runs
// in every dtype and layout, on every backend, with every subset of its optional outputs.
type Trial struct {
	Reason     string         // why this case is here
	Descriptor ops.Descriptor // without its dtype
	Without    []string       // operands that are left out
	DTypes     map[string]tensor.DType
	Flat       bool // one number for each token comes in shape [...], not [..., 1]
	Kernel     string
	Values     map[string]func(*rand.Rand) float64 // where usual values do not do
}

// Scheme lays out the operands of a run: inputs and outputs take their layouts in turn.
type Scheme struct {
	Name      string
	Ins, Outs []Layout
	same      bool // merges dimensions as the contiguous scheme does, which decides how sums are grouped: the bits are due
	costly    bool // left out on large shapes
}

// Schemes are the combinations of layouts that the conformance suite runs.
var Schemes = []Scheme{
	{"contiguous", []Layout{Contiguous}, []Layout{Contiguous}, true, false},
	{"mixed", []Layout{Striped, Permuted, Gapped, Expanded, Flipped}, []Layout{Flipped, Permuted, Padded}, false, false},
	{"mixed again", []Layout{Permuted, Gapped, Expanded, Flipped, Striped}, []Layout{Permuted, Gapped, Flipped}, false, true},
	{"mixed otherwise", []Layout{Gapped, Expanded, Flipped, Striped, Permuted}, []Layout{Gapped, Flipped, Permuted}, false, true},
	{"mixed differently", []Layout{Expanded, Flipped, Striped, Permuted, Gapped}, []Layout{Contiguous}, false, true},
	{"behind", []Layout{Behind}, []Layout{Behind}, true, true},
	{"padded", []Layout{Padded}, []Layout{Padded}, false, true},
	{"permuted", []Layout{Permuted}, []Layout{Permuted}, false, true},
	{"gapped", []Layout{Gapped}, []Layout{Gapped}, false, true},
	{"flipped", []Layout{Flipped}, []Layout{Flipped}, false, true},
	{"expanded", []Layout{Expanded}, []Layout{Contiguous}, false, true},
}

const largeShape = 1 << 14

// Instantiate completes a descriptor with its dtype, and tells its shape. A number without
// dimensions is a token of one.
func Instantiate(d ops.Descriptor, dtype tensor.DType) (ops.Descriptor, []int64) {
	switch d := d.(type) {
	case elementwise.LerpBackward:
		d.DType = dtype
		return d, d.Shape
	case elementwise.DequantizePerToken:
		d.DType = dtype
		return d, append(d.Shape, 1)[:max(1, len(d.Shape))]
	case elementwise.FakeQuantizePerToken:
		d.DType = dtype
		return d, append(d.Shape, 1)[:max(1, len(d.Shape))]
	case elementwise.DequantizePerTokenBackward:
		d.DType = dtype
		return d, append(d.Shape, 1)[:max(1, len(d.Shape))]
	case elementwise.FakeQuantizePerTokenBackward:
		d.DType = dtype
		return d, append(d.Shape, 1)[:max(1, len(d.Shape))]
	case scan.ScanBackward:
		d.DType = dtype
		return d, d.Shape
	case scan.Scan:
		d.DType = dtype
		return d, d.Shape
	}
	if d, ok := d.(rope.RopeBackward); ok {
		d.DType = dtype
		return d, rope.Rope(d).Shape(d.NumHeads)
	}
	if d, ok := d.(rope.Rope); ok {
		d.DType = dtype
		return d, d.Shape(d.NumHeads)
	}
	if d, bag := d.(embedding.EmbeddingBagBackward); bag {
		d.DType = dtype
		return d, []int64{d.NumBags, d.EmbeddingDim}
	}
	if d, plain := d.(embedding.EmbeddingBackward); plain {
		d.DType = dtype
		return d, []int64{d.NumIndices, d.EmbeddingDim}
	}
	if d, unique := d.(embedding.UniqueRows); unique {
		d.IndexDType = dtype
		return d, []int64{d.Total}
	}
	panic(fmt.Sprintf("no instance of %T", d))
}

// Conform runs trials on every backend.
func Conform(t *testing.T, trials []Trial) {
	for _, c := range trials {
		for _, dtype := range tensor.Floats {
			t.Run(c.Reason+"/"+dtype.String(), func(t *testing.T) {
				c.conform(t, tensor.CPU, dtype)
				ModelKernels(t)
				c.conform(t, tensor.CUDA(0), dtype)
			})
		}
	}
}

func (c *Trial) conform(t *testing.T, device tensor.Device, dtype tensor.DType) {
	descriptor, shape := Instantiate(c.Descriptor, dtype)
	plan, err := core.Select(descriptor, device, ops.Preference{Kernel: c.Kernel})
	require.NoError(t, err)
	size, _ := tensor.Product(shape)
	var usual [][]byte
	for _, s := range Schemes {
		if usual != nil && size > largeShape && (s.costly || device != tensor.CPU || dtype.Size() == 2) {
			continue
		}
		r := c.Arrange(t, plan, shape, &s)
		r.Run(t, r.Outputs)
		r.want = r.definition()
		r.requireDefinition(t, r.Outputs)
		all := r.written(t)
		if device == tensor.CPU || size <= largeShape {
			r.requireEverySubset(t, all, s.same && device == tensor.CPU)
		}
		if device == tensor.CPU {
			r.requireRepeats(t, all, usual == nil)
		}
		if usual == nil {
			usual = r.Bits()
		}
		if s.same && device == tensor.CPU {
			require.True(t, slices.EqualFunc(usual, r.Bits(), bytes.Equal), "%s operands change the bits of a sum", s.Name)
		}
	}
}

// definition evaluates the oracle on the inputs.
func (r *arrangement) definition() [3][]sumOf {
	var in [4][]float64
	shapes, floatingZero := make([][]int64, len(r.Operands)), false
	for i, m := range r.Operands {
		if m == nil {
			continue
		}
		shapes[i] = m.Extents()
		if !ProblemOf(r.plan).Operands[i].Out {
			in[i] = m.Values()
		}
		floatingZero = floatingZero || ProblemOf(r.plan).Operands[i].Name == "zero_point" && m.DType.Floating()
	}
	return definitionOf(r.plan.Descriptor(), floatingZero).evaluate(r.shape, shapes, in)
}

// requireDefinition compares outputs of the last run with the oracle.
func (r *arrangement) requireDefinition(t *testing.T, outputs []int) {
	t.Helper()
	total, _ := tensor.Product(r.shape)
	inputs := slices.IndexFunc(ProblemOf(r.plan).Operands, func(o ops.Operand) bool { return o.Out })
	for _, i := range outputs {
		m, sums := r.Operands[i], r.want[i-inputs]
		terms := total / max(1, int64(len(sums)))
		for k, got := range m.Values() {
			expected, size := sums[k].value(), sums[k].size
			scratch := Tolerance(m.DType, ProblemOf(r.plan).Element.Accumulator(), terms, expected, size)
			if !SameNumber(got, rounded(m.DType, expected)) && !(math.Abs(got-expected) <= scratch) {
				require.Failf(t, "wrong number", "%s, at %d: want %v, got %v, a sum of %d terms of magnitude %v",
					r.OperandName(i), k, expected, got, terms, size)
			}
		}
	}
}

// requireEverySubset runs with every choice of outputs that the plan allows. Each is right, and
// where the operands lie as usual, it has the bits that it has among all of them.
func (r *arrangement) requireEverySubset(t *testing.T, all [][]byte, bits bool) {
	t.Helper()
	for choice := 1; choice < 1<<len(r.Outputs); choice++ {
		var outputs []int
		complete := true
		for k, i := range r.Outputs {
			if choice>>k&1 != 0 {
				outputs = append(outputs, i)
			} else if !ProblemOf(r.plan).Operands[i].Optional {
				complete = false
			}
		}
		if !complete {
			continue
		}
		r.Run(t, outputs)
		for k, i := range r.Outputs {
			if choice>>k&1 != 0 && !bytes.Equal(all[k], r.Operands[i].Bytes) {
				require.False(t, bits, "%s changes with the other outputs", r.OperandName(i))
				r.requireDefinition(t, []int{i})
			}
		}
	}
}

// requireRepeats runs with changing numbers of threads, 20 times or once for each number, and with
// shorter vectors: the bits stay.
func (r *arrangement) requireRepeats(t *testing.T, all [][]byte, often bool) {
	t.Helper()
	defer func(n int) { require.NoError(t, core.SetNumThreads(n)) }(core.NumThreads())
	numbers := []int{1, 2, 3, 8}
	if often {
		numbers = slices.Repeat(numbers, 5)
	}
	for _, threads := range numbers {
		require.NoError(t, core.SetNumThreads(threads))
		r.Run(t, r.Outputs)
		for k, i := range r.Outputs {
			require.True(t, bytes.Equal(all[k], r.Operands[i].Bytes), "%s changes with %d threads", r.OperandName(i), threads)
		}
	}
	widest := cpu.VectorWidth()
	defer cpu.SetVectorWidth(widest)
	for _, width := range []int{64, 256} {
		values := map[int][]float64{}
		for _, i := range r.Outputs {
			values[i] = r.Operands[i].Values()
		}
		cpu.SetVectorWidth(min(width, widest))
		r.Run(t, r.Outputs)
		for _, i := range r.Outputs { // which NaN it is may differ
			same := slices.EqualFunc(values[i], r.Operands[i].Values(), SameNumber)
			require.True(t, same, "%s changes with vectors of %d bits", r.OperandName(i), width)
		}
	}
}

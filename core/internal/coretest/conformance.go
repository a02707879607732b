package coretest

import (
	"bytes"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/ops"
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

// Schemes are the combinations of layouts that the conformance suite runs. Inputs and outputs have
// every layout in one of them.
var Schemes = []Scheme{
	{"contiguous", []Layout{Contiguous}, []Layout{Contiguous}, true, false},
	{"mixed", []Layout{Striped, Permuted, Gapped, Expanded, Flipped}, []Layout{Flipped, Permuted, Padded}, false, false},
	{"mixed otherwise", []Layout{Gapped, Expanded, Flipped, Padded, Permuted}, []Layout{Gapped, Flipped, Permuted}, false, true},
	{"behind", []Layout{Behind}, []Layout{Behind}, true, true},
}

const largeShape = 1 << 14

// WithDType is a descriptor with another dtype. It is that of the indices where there is no other.
func WithDType(d ops.Descriptor, dtype tensor.DType) ops.Descriptor {
	fields := reflect.New(reflect.TypeOf(d)).Elem()
	fields.Set(reflect.ValueOf(d))
	field := fields.FieldByName("DType")
	if !field.IsValid() {
		field = fields.FieldByName("IndexDType")
	}
	field.Set(reflect.ValueOf(dtype))
	return fields.Interface().(ops.Descriptor)
}

// ShapeOf is the shape of a plan's first operand.
func ShapeOf(plan *core.Plan) []int64 {
	shapes := ProblemOf(plan).Operands[0].Shapes
	return Concrete(shapes[len(shapes)-1])
}

// Conform runs trials on every backend: in every dtype with contiguous operands, and in two dtypes
// of each other scheme, which alternate so that every dtype meets every scheme.
func Conform(t *testing.T, trials []Trial) {
	for i, c := range trials {
		for k, dtype := range tensor.Floats {
			schemes := slices.Clone(Schemes[:1])
			for j := 1; j < len(Schemes); j++ {
				if (i+j+k)%2 == 0 {
					schemes = append(schemes, Schemes[j])
				}
			}
			t.Run(c.Reason+"/"+dtype.String(), func(t *testing.T) {
				c.conform(t, tensor.CPU, dtype, schemes)
				ModelKernels(t)
				c.conform(t, tensor.CUDA(0), dtype, schemes)
			})
		}
	}
}

func (c *Trial) conform(t *testing.T, device tensor.Device, dtype tensor.DType, schemes []Scheme) {
	plan, err := core.Select(WithDType(c.Descriptor, dtype), device, ops.Preference{Kernel: c.Kernel})
	require.NoError(t, err)
	size, _ := tensor.Product(ShapeOf(plan))
	var usual [][]byte
	for _, s := range schemes {
		if usual != nil && size > largeShape && (s.costly || device != tensor.CPU || dtype.Size() == 2) {
			continue
		}
		r := c.Arrange(t, plan, &s)
		r.Run(t, r.Outputs)
		r.want = r.definition()
		r.requireDefinition(t, r.Outputs)
		all := r.written(t)
		if device == tensor.CPU || size <= largeShape {
			r.requireEverySubset(t, all, s.same && device == tensor.CPU)
		}
		if device == tensor.CPU {
			r.requireRepeats(t, all)
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
	shapes := make([][]int64, len(r.Operands))
	for i, m := range r.Operands {
		if m == nil {
			continue
		}
		shapes[i] = m.Extents()
		if !ProblemOf(r.plan).Operands[i].Out {
			in[i] = m.Values()
		}
	}
	d := r.plan.Descriptor()
	isFloating := func(i int) bool { return r.Operands[i] != nil && r.Operands[i].DType.Floating() }
	return operations[d.Family()].define(d, isFloating).evaluate(r.shape, shapes, in)
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

// requireRepeats runs with changing numbers of threads, and with shorter vectors: the bits stay.
func (r *arrangement) requireRepeats(t *testing.T, all [][]byte) {
	t.Helper()
	defer func(n int) { require.NoError(t, core.SetNumThreads(n)) }(core.NumThreads())
	for _, threads := range []int{1, 2, 3, 8} {
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

package core

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/ops/rope"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// trial is one case of the conformance suite: a problem, and what its operands look like. It runs in every dtype and layout, on
// every backend, with every subset of its optional outputs.
type trial struct {
	reason     string         // why this case is here
	descriptor ops.Descriptor // without its dtype
	without    []string       // operands that are left out
	dtypes     map[string]tensor.DType
	flat       bool // one number for each token comes in shape [...], not [..., 1]
	kernel     string
	values     map[string]func(*rand.Rand) float64 // where usual values do not do
}

// scheme lays out the operands of a run: inputs and outputs take their layouts in turn.
type scheme struct {
	name      string
	ins, outs []layout
	same      bool // merges dimensions as the contiguous scheme does, which decides how sums are grouped: the bits are due
	costly    bool // left out on large shapes
}

var schemes = []scheme{
	{"contiguous", []layout{contiguous}, []layout{contiguous}, true, false},
	{"mixed", []layout{striped, permuted, gapped, expanded, flipped}, []layout{flipped, permuted, padded}, false, false},
	{"mixed again", []layout{permuted, gapped, expanded, flipped, striped}, []layout{permuted, gapped, flipped}, false, true},
	{"mixed otherwise", []layout{gapped, expanded, flipped, striped, permuted}, []layout{gapped, flipped, permuted}, false, true},
	{"mixed differently", []layout{expanded, flipped, striped, permuted, gapped}, []layout{contiguous}, false, true},
	{"behind", []layout{behind}, []layout{behind}, true, true},
	{"padded", []layout{padded}, []layout{padded}, false, true},
	{"permuted", []layout{permuted}, []layout{permuted}, false, true},
	{"gapped", []layout{gapped}, []layout{gapped}, false, true},
	{"flipped", []layout{flipped}, []layout{flipped}, false, true},
	{"expanded", []layout{expanded}, []layout{contiguous}, false, true},
}

const largeShape = 1 << 14

// instantiate completes a descriptor with its dtype, and tells its shape. A number without dimensions is a token of one.
func instantiate(d ops.Descriptor, dtype tensor.DType) (ops.Descriptor, []int64) {
	switch d := d.(type) {
	case elementwise.LerpBackward:
		d.DType = dtype
		return d, d.Shape
	case elementwise.DequantizePerTokenBackward:
		d.DType = dtype
		return d, append(d.Shape, 1)[:max(1, len(d.Shape))]
	case elementwise.FakeQuantizePerTokenBackward:
		d.DType = dtype
		return d, append(d.Shape, 1)[:max(1, len(d.Shape))]
	case scan.ScanBackward:
		d.DType = dtype
		return d, d.Shape
	}
	if d, ok := d.(rope.RopeBackward); ok {
		d.DType = dtype
		return d, d.WithDefaults().Shape(d.NumHeads)
	}
	if d, bag := d.(embedding.EmbeddingBagBackward); bag {
		d.DType = dtype
		return d, []int64{d.NumBags, d.EmbeddingDim}
	}
	if d, unique := d.(embedding.UniqueRows); unique {
		d.IndexDType = dtype
		return d, []int64{d.Total}
	}
	panic(fmt.Sprintf("no instance of %T", d))
}

// conform runs trials on every backend.
func conform(t *testing.T, trials []trial) {
	for _, c := range trials {
		for _, dtype := range tensor.Floats {
			t.Run(c.reason+"/"+dtype.String(), func(t *testing.T) {
				c.conform(t, tensor.CPU, dtype)
				if !raceDetector { // the model of the kernels has one thread
					modelKernels(t)
					c.conform(t, tensor.CUDA(0), dtype)
				}
			})
		}
	}
}

func (c *trial) conform(t *testing.T, device tensor.Device, dtype tensor.DType) {
	descriptor, shape := instantiate(c.descriptor, dtype)
	plan, err := Select(descriptor, device, ops.Preference{Kernel: c.kernel})
	require.NoError(t, err)
	size, _ := tensor.Product(shape)
	var usual [][]byte
	for _, s := range schemes {
		if usual != nil && (raceDetector && s.costly || size > largeShape && (s.costly || device != tensor.CPU || dtype.Size() == 2)) {
			continue
		}
		r := c.arrange(t, plan, shape, &s)
		r.run(t, r.outputs)
		r.want = r.definition()
		r.requireDefinition(t, r.outputs)
		all := r.written(t)
		if device == tensor.CPU || size <= largeShape {
			r.requireEverySubset(t, all, s.same && device == tensor.CPU)
		}
		if device == tensor.CPU {
			r.requireRepeats(t, all, usual == nil)
		}
		if usual == nil {
			usual = r.bits()
		}
		if s.same && device == tensor.CPU {
			require.True(t, slices.EqualFunc(usual, r.bits(), bytes.Equal), "%s operands change the bits of a sum", s.name)
		}
	}
}

// arrangement is the operands of one plan in memory.
type arrangement struct {
	name      string
	plan      *Plan
	shape     []int64
	operands  []*memory // nil: left out
	outputs   []int     // operands that are outputs
	workspace *memory
	want      [3][]sumOf // what the definition says of each output
}

func (c *trial) arrange(t testing.TB, plan *Plan, shape []int64, s *scheme) *arrangement {
	r := &arrangement{
		name: fmt.Sprintf("%s on %s", s.name, plan.device), plan: plan, shape: shape, workspace: newWorkspace(plan),
		operands: make([]*memory, len(plan.problem.Operands)),
	}
	random := rand.New(rand.NewPCG(7, uint64(len(shape))))
	ins := 0
	for i, o := range plan.problem.Operands {
		if slices.Contains(c.without, o.Name) {
			continue
		}
		dtype, given := c.dtypes[o.Name]
		if !given {
			dtype = o.Dtypes[0]
		}
		place := concrete(o.Shapes[len(o.Shapes)-1])
		if c.flat {
			place = concrete(o.Shapes[0])
		}
		if o.Out {
			r.operands[i] = newMemory(dtype, plan.device, place, s.outs[len(r.outputs)%len(s.outs)]).poison()
			r.outputs = append(r.outputs, i)
			continue
		}
		value := c.values[o.Name]
		if value == nil {
			value = usualValue(plan.problem.Family, o.Name, dtype)
		}
		r.operands[i] = newMemory(dtype, plan.device, place, s.ins[ins%len(s.ins)])
		r.operands[i].fill(func(int64) float64 { return value(random) })
		ins++
	}
	require.NotEmpty(t, r.outputs)
	return r
}

// usualValue draws numbers that every dtype holds: whole ones for integers, and for fake quantise multiples of 1/16 over scales that
// are powers of two, so that x / scale is exact, often half way between two levels, and on both sides of the bounds.
func usualValue(f *ops.Family, operand string, d tensor.DType) func(*rand.Rand) float64 {
	switch {
	case d == tensor.Int8:
		return func(r *rand.Rand) float64 { return float64(r.IntN(256) - 128) }
	case d == tensor.Uint8:
		return func(r *rand.Rand) float64 { return float64(r.IntN(256)) }
	case !d.Floating():
		return func(r *rand.Rand) float64 { return float64(r.IntN(2000) - 1000) }
	case f == elementwise.FakeQuantize && operand == "scale":
		return func(r *rand.Rand) float64 { return math.Ldexp(1, r.IntN(4)-2) }
	case f == elementwise.FakeQuantize && operand == "x":
		return func(r *rand.Rand) float64 { return float64(r.IntN(512)-256) / 16 }
	case operand == "scale":
		return func(r *rand.Rand) float64 { return 0.01 + r.Float64() }
	}
	return (*rand.Rand).NormFloat64
}

// newWorkspace is aligned as the plan asks, and no larger than it must be.
func newWorkspace(plan *Plan) *memory {
	size := plan.WorkspaceSize()
	if size == 0 {
		return &memory{}
	}
	room := make([]byte, size+3*launch.WorkspaceAlignment)
	first := 2*launch.WorkspaceAlignment - int64(uintptr(unsafe.Pointer(&room[0]))%launch.WorkspaceAlignment)
	w := &memory{Tensor: tensor.Of(unsafe.Slice((*uint8)(&room[first]), size)), bytes: room, first: first}
	w.Device = plan.device
	return w
}

// run poisons every output and runs the plan with some of them. What is no output of the run may not be written.
func (r *arrangement) run(t *testing.T, outputs []int) {
	t.Helper()
	args := make([]tensor.Tensor, len(r.operands))
	for i, m := range r.operands {
		if m != nil {
			copy(m.bytes, m.before)
			if !r.plan.problem.Operands[i].Out || slices.Contains(outputs, i) {
				args[i] = m.Tensor
			}
		}
	}
	r.workspace.poison()
	require.NoError(t, r.plan.RunOrdered(0, r.workspace.Tensor, args), r.name)
	r.workspace.requireOnlyElementsWritten(t, "the workspace, "+r.name)
	for i, m := range r.operands {
		if m != nil && !slices.Contains(outputs, i) {
			m.requireUntouched(t, r.operandName(i))
		}
	}
}

func (r *arrangement) operandName(i int) string {
	return r.plan.problem.Operands[i].Name + ", " + r.name
}

// written is the memory of every output after a run, which may have touched its elements alone.
func (r *arrangement) written(t *testing.T) (memories [][]byte) {
	t.Helper()
	for _, i := range r.outputs {
		r.operands[i].requireOnlyElementsWritten(t, r.operandName(i))
		memories = append(memories, slices.Clone(r.operands[i].bytes))
	}
	return memories
}

// bits are the elements of every output, in whatever layout.
func (r *arrangement) bits() (list [][]byte) {
	for _, i := range r.outputs {
		list = append(list, r.operands[i].bits())
	}
	return list
}

// definition evaluates the oracle on the inputs.
func (r *arrangement) definition() [3][]sumOf {
	var in [4][]float64
	shapes, floatingZero := make([][]int64, len(r.operands)), false
	for i, m := range r.operands {
		if m == nil {
			continue
		}
		shapes[i] = m.Extents()
		if !r.plan.problem.Operands[i].Out {
			in[i] = m.values()
		}
		floatingZero = floatingZero || r.plan.problem.Operands[i].Name == "zero_point" && m.DType.Floating()
	}
	return definitionOf(r.plan.descriptor, floatingZero).evaluate(r.shape, shapes, in)
}

// requireDefinition compares outputs of the last run with the oracle.
func (r *arrangement) requireDefinition(t *testing.T, outputs []int) {
	t.Helper()
	total, _ := tensor.Product(r.shape)
	for _, i := range outputs {
		m, sums := r.operands[i], r.want[i-(len(r.operands)-len(r.want))]
		terms := total / max(1, int64(len(sums)))
		for k, got := range m.values() {
			expected, size := sums[k].value(), sums[k].size
			room := tolerance(m.DType, r.plan.problem.Element.Accumulator(), terms, expected, size)
			if !sameNumber(got, rounded(m.DType, expected)) && !(math.Abs(got-expected) <= room) {
				require.Failf(t, "wrong number", "%s, at %d: want %v, got %v, a sum of %d terms of magnitude %v",
					r.operandName(i), k, expected, got, terms, size)
			}
		}
	}
}

// requireEverySubset runs with every choice of outputs that the plan allows. Each is right, and where the operands lie as usual, it
// has the bits that it has among all of them.
func (r *arrangement) requireEverySubset(t *testing.T, all [][]byte, bits bool) {
	t.Helper()
	for choice := 1; choice < 1<<len(r.outputs); choice++ {
		var outputs []int
		complete := true
		for k, i := range r.outputs {
			if choice>>k&1 != 0 {
				outputs = append(outputs, i)
			} else if !r.plan.problem.Operands[i].Optional {
				complete = false
			}
		}
		if !complete {
			continue
		}
		r.run(t, outputs)
		for k, i := range r.outputs {
			if choice>>k&1 != 0 && !bytes.Equal(all[k], r.operands[i].bytes) {
				require.False(t, bits, "%s changes with the other outputs", r.operandName(i))
				r.requireDefinition(t, []int{i})
			}
		}
	}
}

// requireRepeats runs with changing numbers of threads, 20 times or once for each number, and with shorter vectors: the bits stay.
func (r *arrangement) requireRepeats(t *testing.T, all [][]byte, often bool) {
	t.Helper()
	defer func(n int) { require.NoError(t, SetNumThreads(n)) }(NumThreads())
	numbers := []int{1, 2, 3, 8}
	if often {
		numbers = slices.Repeat(numbers, 5)
	}
	for _, threads := range numbers {
		require.NoError(t, SetNumThreads(threads))
		r.run(t, r.outputs)
		for k, i := range r.outputs {
			require.True(t, bytes.Equal(all[k], r.operands[i].bytes), "%s changes with %d threads", r.operandName(i), threads)
		}
	}
	widest := cpu.VectorWidth()
	defer cpu.SetVectorWidth(widest)
	for _, width := range []int{64, 256} {
		values := map[int][]float64{}
		for _, i := range r.outputs {
			values[i] = r.operands[i].values()
		}
		cpu.SetVectorWidth(min(width, widest))
		r.run(t, r.outputs)
		for _, i := range r.outputs { // which NaN it is may differ
			same := slices.EqualFunc(values[i], r.operands[i].values(), sameNumber)
			require.True(t, same, "%s changes with vectors of %d bits", r.operandName(i), width)
		}
	}
}

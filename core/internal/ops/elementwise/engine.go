// Package elementwise implements operations that map each element and sum over broadcast
// dimensions, such as lerp and quantization. One map-reduce engine runs all of them.
package elementwise

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Op is a pure function of one element, from inputs to outputs in the accumulator type. The engine
// stores each output element by element, or sums it over the dimensions that its operand was
// broadcast along.
//
// Either products describes the outputs, or f32 and f64 compute a block of them. In a block, the
// outputs and the first input have full length. Each other input has full length, or one number per
// run of equal length, or one number for the block; an input in denseInputs always has full length.
// Absent inputs and outputs are nil. The functions leave the term of each element in sums, in
// float64: float32 roundings would dominate where terms cancel. If perToken, they leave the sum of
// each run there.
type Op struct {
	inputs, outputs int
	denseInputs     uint8 // set of inputs that always have one number per element
	perToken        bool  // a token is a row of the last dimension, which stays the fastest; sums run over it
	// columnInputs is a set of inputs with a number for each column: they move along the fastest
	// dimension, and are broadcast along the dimensions of the sums. A thread of the columns
	// kernel, the only one of such an operation, keeps the numbers of its columns.
	columnInputs uint8
	Kernels      []KernelSet // kernel sets, those with the fewest operands first
	inputsOf     [3]uint8    // set of inputs that each output needs
	// scalars sets the scalar arguments that depend on the operands of a run; nil: none do.
	scalars func(scalar *[4]float64, args []tensor.Tensor)
	// products describes the outputs if each is a product with the first input; nil: f32 and f64
	// compute them.
	products func(scalar *[4]float64, args []tensor.Tensor) [3]product
	f32      func(scalar *[4]float64, in, out [][]float32, sums [][]float64)
	f64      func(scalar *[4]float64, in, out, sums [][]float64)
	// dense32 and dense64 are f32 and f64 for a block of the first input and the one output where
	// they lie in memory; the other inputs have one number per run. nil: blocks are converted.
	dense32 func(scalar *[4]float64, block *denseBlock, in [][]float32)
	dense64 func(scalar *[4]float64, block *denseBlock, in [][]float64)
}

// Ops are the operations of the engine, in no order.
var Ops []*Op

// newOp adds an operation to Ops.
func newOp(op Op) *Op {
	Ops = append(Ops, &op)
	return &op
}

// MaxVector is the largest number of elements of a vectorized access. A thread that keeps numbers
// and sums of its columns has registers for 4 columns.
func (op *Op) MaxVector() int64 {
	if op.IsByColumn() && op.outputs > 1 {
		return 4
	}
	return 8
}

// IsByColumn reports whether the operation has inputs with a number for each column.
func (op *Op) IsByColumn() bool { return op.columnInputs != 0 }

// sumsRuns reports whether f32 and f64 leave the sum of each run, not the term of each element.
func (op *Op) sumsRuns() bool { return op.products == nil && op.perToken }

// denseBlock is a block of adjacent elements of the first input and of the output: one run, or a
// part of it, or several whole runs.
type denseBlock struct {
	in, out           uintptr
	inDType, outDType tensor.DType
	run, n            int64
}

// product is an output x (y - z), where x is the first input, or the sum of such terms times input
// sumFactor.
type product struct {
	y, z      factor
	sumFactor int // index of an input with one number per sum; 0: none
}

// factor is an input, or a constant if input is 0. An absent input counts as 0.
type factor struct {
	input  int
	number float64
}

// mapReduce is the program of an Op.
type mapReduce struct {
	family  *ops.Family
	op      *Op
	element tensor.DType
	scalar  [4]float64
	shape   []int64
	// axis[i][d] is the dimension of operand i that matches dimension d of the shape, of which a
	// step is multiple[i][d] steps along the operand's dimension; -1 if the operand is broadcast.
	axis     [cpu.MaxOperands][tensor.MaxRank]int8
	multiple [cpu.MaxOperands][tensor.MaxRank]int64
	// sums[o] is the set of dimensions that output o is summed over; 0: the output is stored
	// element by element.
	sums   [cpu.MaxOperands]uint8
	passes []reduction // one for each distinct set in sums
	// storePass is the configuration on a GPU of a pass without sums, if the operation has
	// columnInputs: the columns kernel goes along the dimensions that these are broadcast along.
	storePass reduction
	numSMs    int // multiprocessors
	packed    packing
}

// packing is the operand of quantized values and their dtype, which may be packed: then a byte of
// the operand has two of them, along its last dimension.
type packing struct {
	operand int
	dtype   tensor.DType // empty: there are none
}

// unpacked are operands in which the packed one has the shape and the strides of its elements.
func (m *mapReduce) unpacked(args []tensor.Tensor) []tensor.Tensor {
	if i := m.packed.operand; m.packed.dtype.IsPacked() && args[i].Given() {
		args = slices.Clone(args)
		t := &args[i]
		last := t.NDim - 1
		for d := range last {
			t.Strides[d] *= 2
		}
		t.DType, t.Strides[last] = m.packed.dtype, 1
		t.Shape[last] *= 2
	}
	return args
}

// reduction is the configuration of the sums over one set of dimensions. It depends on the shape
// alone.
type reduction struct {
	dims    uint8
	columns bool
	outputs int   // number of outputs that may be summed over dims
	kept    int64 // number of sums
	chunks  int64 // parts that each sum is split into
}

// The kernel variants of an Op: map has no sums, rows sums along the fastest dimension, columns
// along slower ones.
var (
	mapKernels   = []string{"map", "rows", "columns"}
	tokenKernels = []string{"map", "rows"}
)

// match matches dimension d of the shape to a dimension of an operand, or to none (-1).
func (m *mapReduce) match(operand, d, axis int, multiple int64) {
	m.axis[operand][d] = int8(axis)
	m.multiple[operand][d] = multiple
}

// alignRight matches an operand of a shape to the trailing dimensions, as broadcasting does.
func (m *mapReduce) alignRight(operand int, shape []int64) {
	lead := len(m.shape) - len(shape)
	for d := range m.shape {
		m.match(operand, d, -1, 1)
		if d >= lead && (shape[d-lead] != 1 || m.shape[d] == 1) {
			m.match(operand, d, d-lead, 1)
		}
	}
}

// kernels are the variants that the operation has.
func (m *mapReduce) kernels() []string {
	switch {
	case m.op.IsByColumn():
		return mapKernels[2:]
	case m.op.perToken:
		return tokenKernels
	}
	return mapKernels
}

// prepare chooses the configuration of every reduction.
func (m *mapReduce) prepare(numSMs int, cuda bool, preference ops.Preference) (ops.Program, error) {
	m.numSMs = numSMs
	for o := range m.op.outputs {
		for d, extent := range m.shape {
			if m.axis[m.op.inputs+o][d] < 0 && (extent != 1 || m.op.perToken || m.op.IsByColumn()) {
				m.sums[o] |= 1 << d
			}
		}
		at := slices.IndexFunc(m.passes, func(r reduction) bool { return r.dims == m.sums[o] })
		switch {
		case m.sums[o] == 0:
		case at >= 0:
			m.passes[at].outputs++
		default:
			m.passes = append(m.passes, m.reductionOver(m.sums[o], preference.Kernel))
		}
	}
	if m.op.IsByColumn() {
		var dims uint8
		for d := range m.shape {
			if m.axis[bits.TrailingZeros8(m.op.columnInputs)][d] < 0 {
				dims |= 1 << d
			}
		}
		m.storePass = m.reductionOver(dims, "columns")
		if cuda {
			m.chooseChunks(&m.storePass)
		}
	}
	if k := preference.Kernel; k != "" && k != m.Kernel() {
		return nil, errs.New(errs.Unsupported, m.family.Name, "preference.kernel", fmt.Sprintf("%q for this problem", m.Kernel()), fmt.Sprintf("%q", k), "")
	}
	for i := range m.passes {
		if r := &m.passes[i]; cuda {
			m.chooseChunks(r)
			if limit := preference.MaxWorkspace; limit != nil && m.bytes(r) > *limit {
				r.chunks = max(1, *limit/max(1, m.bytes(r)/r.chunks))
			}
		}
	}
	return m, nil
}

// reductionOver is the reduction over a set of dimensions, along columns if the fastest dimension
// is kept.
func (m *mapReduce) reductionOver(dims uint8, kernel string) reduction {
	r := reduction{dims: dims, outputs: 1, kept: 1, chunks: 1}
	for d, extent := range m.shape {
		if extent != 1 || m.op.perToken {
			r.columns = dims>>d&1 == 0
		}
		if dims>>d&1 == 0 {
			r.kept *= extent
		}
	}
	if kernel != "map" && slices.Contains(m.kernels(), kernel) {
		r.columns = kernel == "columns" && r.kept != 1 // a single sum has no columns
	}
	return r
}

// bytes is the size of the partial sums that a reduction keeps in the workspace.
func (m *mapReduce) bytes(r *reduction) int64 {
	if r.chunks == 1 {
		return 0
	}
	return int64(r.outputs) * r.chunks * r.kept * m.element.Accumulator().Size()
}

// Workspace implements ops.Program.
func (m *mapReduce) Workspace() (bytes int64) {
	for i := range m.passes {
		bytes = max(bytes, m.bytes(&m.passes[i]))
	}
	return bytes
}

func (r *reduction) kernel() string {
	if r.columns {
		return "columns"
	}
	return "rows"
}

// Kernel implements ops.Program.
func (m *mapReduce) Kernel() string {
	switch {
	case m.op.IsByColumn():
		return "columns"
	case len(m.passes) == 0:
		return "map"
	}
	return m.passes[0].kernel()
}

// space is the iteration space of the shape with the strides of these operands.
func (m *mapReduce) space(args []tensor.Tensor) cpu.Space {
	s := cpu.Space{N: len(m.shape), Kept: len(m.shape)}
	copy(s.Extent[:], m.shape)
	for i := range args {
		if !args[i].Given() {
			continue
		}
		for d := range m.shape {
			if a := m.axis[i][d]; a >= 0 {
				s.Stride[i][d] = args[i].Strides[a] * m.multiple[i][d]
			}
		}
	}
	return s
}

// pass is one iteration over the operands. inputs, stored and summed are sets of inputs and
// outputs.
type pass struct {
	reduction *reduction // nil: nothing is summed, unless it is storePass
	inputs    uint8
	stored    uint8
	summed    uint8
}

// plan divides a run into passes: one for each distinct set of summed dimensions. The first also
// stores the outputs without sums.
func (m *mapReduce) plan(args []tensor.Tensor) (list [cpu.MaxOperands]pass, n int) {
	var stored uint8
	summed := [cpu.MaxOperands]uint8{}
	for o := range m.op.outputs {
		if !args[m.op.inputs+o].Given() {
			continue
		}
		if m.sums[o] == 0 {
			stored |= 1 << o
		}
		for i := range m.passes {
			if m.passes[i].dims == m.sums[o] {
				summed[i] |= 1 << o
			}
		}
	}
	for i := range m.passes {
		if summed[i] != 0 {
			list[n] = pass{reduction: &m.passes[i], stored: stored, summed: summed[i]}
			stored = 0
			n++
		}
	}
	if stored != 0 {
		list[n] = pass{stored: stored}
		n++
	}
	for i := range list[:n] {
		for o := range m.op.outputs {
			if (list[i].stored|list[i].summed)>>o&1 != 0 {
				list[i].inputs |= m.op.inputsOf[o]
			}
		}
		for operand := range m.op.inputs {
			if !args[operand].Given() {
				list[i].inputs &^= 1 << operand
			}
		}
	}
	return list, n
}

// arrange is the iteration space of one pass.
func (m *mapReduce) arrange(p *pass, space *cpu.Space) cpu.Space {
	switch {
	case p.reduction != nil:
		return space.Arrange(p.reduction.dims, true, p.reduction.columns, 0)
	case m.op.perToken:
		return space.Arrange(1<<(len(m.shape)-1), false, false, 0)
	}
	return space.Arrange(0, false, false, m.op.inputs+bits.TrailingZeros8(p.stored))
}

// InPlace allows an output to be the first input if it is the only output and not a sum: each
// element is read before it is written.
func (m *mapReduce) InPlace(args []tensor.Tensor, o int) bool {
	for i := m.op.inputs; i < len(args); i++ {
		if args[i].Given() && i != o {
			return false
		}
	}
	return m.sums[o-m.op.inputs] == 0 && args[o].Same(&args[0])
}

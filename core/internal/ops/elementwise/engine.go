// Package elementwise holds the operations whose results depend on one position of each operand, and on sums over the dimensions that an
// operand is broadcast along: lerp, dequantise, fake quantise. One map-reduce engine runs them all.
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

// Op is a pure function of one element: some inputs, in the accumulator, to some outputs. Lerp, dequantise and fake
// quantise are nothing else; the engine of this file stores each output, or sums it over the dimensions that it was broadcast along.
// A body works on a block: the outputs and the first input have its length; another input has it too, or one number for each run of
// equal length, or one for the whole block, unless it is in whole; absent inputs and outputs that nobody asked for are nil. Terms of
// the outputs that are summed are float64 whatever the accumulator is: where they cancel, their roundings are all that is left. f32 and
// f64 are for values of a token: they leave the sum of the terms of each run.
type Op struct {
	inputs, outputs int
	denseInputs     uint8       // the inputs that always come with a number for each element
	perToken        bool        // the last dimension is a token's own: it stays the fastest, and values for a token are sums over it
	Kernels         []kernelSet // the kernels, those with the fewest operands first
	inputsOf        [3]uint8    // the inputs that each output needs, as sets
	// scalars completes the numbers of the descriptor with what only the operands of a run tell; nil: nothing.
	scalars func(scalar *[4]float64, args []tensor.Tensor)
	// multiples are the outputs where each is a multiple of the first input; else f32 and f64 compute them.
	products func(scalar *[4]float64, args []tensor.Tensor) [3]product
	f32      func(scalar *[4]float64, in, out [][]float32, sums [][]float64)
	f64      func(scalar *[4]float64, in, out, sums [][]float64)
}

// multiple is an output that is x (y - z), where x is the first input, or the sum of it, times an input that has a number for each sum.
type product struct {
	y, z      factor
	sumFactor int // 0: none
}

// factor is an input, absent ones being 0, or, where input is 0, a number.
type factor struct {
	input  int
	number float64
}

// mapReduce is the program of an elementOp.
type mapReduce struct {
	family  *ops.Family
	op      *Op
	element tensor.DType
	scalar  [4]float64
	shape   []int64
	// axis[i][d] is the dimension of operand i that follows dimension d of the shape, or -1 where the operand is broadcast.
	axis [cpu.MaxOperands][tensor.MaxRank]int8
	// sums[o] is the set of dimensions that output o is summed over; 0: it is stored element by element.
	sums   [cpu.MaxOperands]uint8
	passes []reduction // one for each distinct set in sums
	numSMs int         // multiprocessors
}

// reduction is how one set of dimensions is summed, chosen from the shape alone.
type reduction struct {
	dims    uint8
	columns bool
	outputs int   // how many outputs may be summed over dims
	kept    int64 // number of sums
	chunks  int64 // parts that each sum is cut into
}

// The variants of an elementOp: without sums, with sums along the fastest dimension, with sums beside it.
var (
	mapKernels   = []string{"map", "rows", "columns"}
	tokenKernels = []string{"map", "rows"}
)

// alignLeft follows the leading dimensions of the shape and is constant along the last: a value for each token.
func (m *mapReduce) alignLeft(operand int) {
	for d := range m.shape {
		m.axis[operand][d] = int8(d)
	}
	m.axis[operand][len(m.shape)-1] = -1
}

// alignRight follows the trailing dimensions of the shape, as broadcasting does; extents of 1 are repeated.
func (m *mapReduce) alignRight(operand int, shape []int64) {
	lead := len(m.shape) - len(shape)
	for d := range m.shape {
		m.axis[operand][d] = -1
		if d >= lead && (shape[d-lead] != 1 || m.shape[d] == 1) {
			m.axis[operand][d] = int8(d - lead)
		}
	}
}

// prepare chooses how every sum is done.
func (m *mapReduce) prepare(numSMs int, cuda bool, preference ops.Preference) (ops.Program, error) {
	m.numSMs = numSMs
	for o := range m.op.outputs {
		for d, extent := range m.shape {
			if m.axis[m.op.inputs+o][d] < 0 && (extent != 1 || m.op.perToken) {
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
	if kernel == "rows" || kernel == "columns" {
		r.columns = kernel == "columns" && r.kept != 1 // a single sum has no columns
	}
	return r
}

// bytes of partial sums that a reduction leaves between its kernels.
func (m *mapReduce) bytes(r *reduction) int64 {
	if r.chunks == 1 {
		return 0
	}
	return int64(r.outputs) * r.chunks * r.kept * m.element.Accumulator().Size()
}

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

func (m *mapReduce) Kernel() string {
	if len(m.passes) == 0 {
		return "map"
	}
	return m.passes[0].kernel()
}

// space is the index space of the shape, with the strides that these operands have under it.
func (m *mapReduce) space(args []tensor.Tensor) cpu.Space {
	s := cpu.Space{N: len(m.shape), Kept: len(m.shape)}
	copy(s.Extent[:], m.shape)
	for i := range args {
		if !args[i].Given() {
			continue
		}
		for d := range m.shape {
			if a := m.axis[i][d]; a >= 0 {
				s.Stride[i][d] = args[i].Strides[a]
			}
		}
	}
	return s
}

// pass is one walk over the operands: the outputs that it stores and those that it sums, as sets.
type pass struct {
	reduction *reduction // nil: nothing is summed
	inputs    uint8
	stored    uint8
	summed    uint8
}

// plan cuts a run into passes: one for each distinct set of summed dimensions, the stored outputs riding on the first.
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

// arrange is the space of one pass.
func (m *mapReduce) arrange(p *pass, space *cpu.Space) cpu.Space {
	switch {
	case p.reduction != nil:
		return space.Arrange(p.reduction.dims, true, p.reduction.columns, 0)
	case m.op.perToken:
		return space.Arrange(1<<(len(m.shape)-1), false, false, 0)
	}
	return space.Arrange(0, false, false, m.op.inputs+bits.TrailingZeros8(p.stored))
}

func (m *mapReduce) Geometry() string {
	text := fmt.Sprintf("%s over %s", m.Kernel(), tensor.ShapeText(m.shape))
	for i := range m.passes {
		if r := &m.passes[i]; r.chunks > 1 {
			text += fmt.Sprintf(", %d sums in %d parts", r.kept, r.chunks)
		}
	}
	return text
}

// InPlace lets an output be dy when it is the only output and is not a sum: every element is read before it is written.
func (m *mapReduce) InPlace(args []tensor.Tensor, o int) bool {
	for i := m.op.inputs; i < len(args); i++ {
		if args[i].Given() && i != o {
			return false
		}
	}
	return m.sums[o-m.op.inputs] == 0 && args[o].Same(&args[0])
}

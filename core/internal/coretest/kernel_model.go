package coretest

import (
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/tensor"
)

// ModelKernels installs a fake driver that computes a launch on the host from its argument words,
// as cuda/elementwise/map_reduce.cuh defines them, without threads. The conformance suite thereby
// checks the words, and kernel_geometry.go that blocks and threads visit every element once.
func ModelKernels(t *testing.T) {
	t.Helper()
	at, header := WordsOf[elementwise.IterSpace]()
	operandAt, operandWords := WordsOf[elementwise.Operand]()
	(&FakeCUDA{Devices: 1, NumSMs: 3, Body: func(symbol string, l *driver.Launch) {
		m := &kernelModel{t: t, symbol: symbol, launch: l, words: l.Words(), at: at, operandAt: operandAt, header: header, operandWords: operandWords}
		m.run()
	}}).Install(t)
}

// kernelModel is one launch.
type kernelModel struct {
	t                    *testing.T
	symbol               string // family_kernel_dtype, or combine_dtype
	family, kernel       string
	dtype                tensor.DType
	launch               *driver.Launch
	words                []uint64
	at, operandAt        map[string]int // words of the fields of the header and of an operand
	header, operandWords int
	inputs               int
	unroll, short        int64           // vectors that a thread has in flight, and those of short rows
	vector               int64           // elements of a vector
	operands             []deviceOperand // inputs, then outputs
	extents              []int64
	front, back          []int // kept and reduced dimensions, the fastest first
}

// deviceOperand is an Operand of cuda/elementwise/map_reduce.cuh.
type deviceOperand struct {
	address uint64
	dtype   tensor.DType
	strides []int64
}

func (m *kernelModel) word(name string) int64 {
	at, known := m.at[name]
	if !known {
		m.t.Fatalf("the argument of the kernels has no field %s", name)
	}
	return int64(m.words[at])
}

func (m *kernelModel) summed(o int) bool { return m.word("summed")>>o&1 != 0 }

func (m *kernelModel) scalar(i int) float64 { return math.Float64frombits(m.words[m.at["scalar"]+i]) }

func (o *deviceOperand) element(offset int64) []byte {
	size := o.dtype.Size()
	return unsafe.Slice((*byte)(cpu.Pointer(uintptr(int64(o.address)+offset*size))), size)
}

// offset of the k-th index of some dimensions, of which the first runs fastest.
func (o *deviceOperand) offset(extents []int64, dims []int, k int64) (offset int64) {
	for _, d := range dims {
		offset += k % extents[d] * o.strides[d]
		k /= extents[d]
	}
	return offset
}

func dimsFrom(low, high int) (dims []int) {
	for d := low; d < high; d++ {
		dims = append(dims, d)
	}
	return dims
}

func extentOf(extents []int64, dims []int) int64 {
	n := int64(1)
	for _, d := range dims {
		n *= extents[d]
	}
	return n
}

// read takes the argument apart.
func (m *kernelModel) read() {
	underscore := strings.LastIndex(m.symbol, "_")
	suffix := m.symbol[underscore+1:]
	m.dtype = tensor.DTypeRows[slices.IndexFunc(tensor.DTypeRows[:], func(r tensor.DTypeRow) bool { return r.Suffix == suffix })].DType
	m.kernel = m.symbol[:underscore]
	outputs := 3
	if underscore = strings.LastIndex(m.kernel, "_"); underscore > 0 {
		m.family, m.kernel = m.kernel[:underscore], m.kernel[underscore+1:]
		op, set := kernelSet(m.t, m.symbol)
		m.inputs, outputs = len(set.In), len(set.Out)
		m.unroll = map[string]int64{"map": set.Unroll.Mapped, "rows": set.Unroll.Rows, "columns": set.Unroll.Columns}[m.kernel]
		m.short = set.Unroll.Short
		m.vector = min(op.MaxVector(), 16/m.dtype.Size())
	}
	require.Len(m.t, m.words, m.header+(m.inputs+outputs)*m.operandWords, "words of %s", m.symbol)
	for d := range tensor.MaxRank {
		m.extents = append(m.extents, int64(m.words[m.at["extent"]+d]))
	}
	for i := range m.inputs + outputs {
		words := m.words[m.header+i*m.operandWords:][:m.operandWords]
		o := deviceOperand{address: words[m.operandAt["data"]], dtype: tensor.DTypeRows[words[m.operandAt["dtype"]]].DType}
		for _, s := range words[m.operandAt["stride"]:][:tensor.MaxRank] {
			o.strides = append(o.strides, int64(s))
		}
		m.operands = append(m.operands, o)
	}
	kept, dims := int(m.word("kept")), int(m.word("dims"))
	m.front, m.back = dimsFrom(1, kept+1), dimsFrom(kept+1, dims+1)
	if m.kernel == "rows" {
		m.back = append([]int{0}, m.back...)
	} else {
		m.front = append([]int{0}, m.front...)
	}
}

// kernelSet is the operation of the engine to which a symbol belongs, and its set of kernels.
func kernelSet(t testing.TB, symbol string) (*elementwise.Op, *elementwise.KernelSet) {
	t.Helper()
	for _, op := range elementwise.Ops {
		for i := range op.Kernels {
			if kernel, found := strings.CutPrefix(symbol, op.Kernels[i].Name+"_"); found && strings.Count(kernel, "_") == 1 {
				return op, &op.Kernels[i]
			}
		}
	}
	t.Fatalf("%s is no kernel of the engine", symbol)
	return nil, nil
}

func (m *kernelModel) run() {
	m.read()
	m.requireGeometry()
	if m.kernel == "combine" {
		m.combine()
		return
	}
	if m.kernel != "columns" { // which also stores the outputs of operations with numbers for columns
		require.Equal(m.t, m.kernel == "map", m.word("summed") == 0, m.symbol)
	}
	m.reduce(m.definition())
}

// definition is the oracle of the problem that the launch computes.
func (m *kernelModel) definition() *definition {
	problem := launches[m.family]
	require.NotNil(m.t, problem, "a file of this package describes the kernels %s", m.family)
	d := problem(m.t, [4]float64{m.scalar(0), m.scalar(1), m.scalar(2), m.scalar(3)})
	return operations[d.Family()].define(d, m.givenFloating)
}

// givenFloating reports whether an operand is there and floating.
func (m *kernelModel) givenFloating(i int) bool {
	return m.operands[i].address != 0 && m.operands[i].dtype.Floating()
}

// reduce stores every output at each element, or sums it over the dimensions at the back for each
// index of those in front.
func (m *kernelModel) reduce(d *definition) {
	chunks, sums := m.word("chunks"), extentOf(m.extents, m.front)
	for k := range sums {
		partial := make([][3]sumOf, chunks)
		for r := range extentOf(m.extents, m.back) {
			var in [4]float64
			offset := make([]int64, len(m.operands))
			for i := range m.operands {
				o := &m.operands[i]
				offset[i] = o.offset(m.extents, m.front, k) + o.offset(m.extents, m.back, r)
				if i < m.inputs && o.address != 0 {
					in[i] = Decode(o.dtype, o.element(offset[i]))
				}
			}
			terms := d.terms(&in)
			for o := range m.operands[m.inputs:] {
				switch out := &m.operands[m.inputs+o]; {
				case m.summed(o):
					partial[r%chunks][o].add(terms[o])
				case out.address != 0:
					Encode(out.dtype, out.element(offset[m.inputs+o]), terms[o].Value)
				}
			}
		}
		m.eachSum(func(ordinal int64, o int, out *deviceOperand) {
			for c := range chunks {
				switch value := partial[c][o].value(); {
				case chunks == 1:
					Encode(out.dtype, out.element(out.offset(m.extents, m.front, k)), value)
				default:
					m.partial((ordinal*chunks+c)*sums+k, func(d tensor.DType, to []byte) { Encode(d, to, value) })
				}
			}
		})
	}
}

// combine adds the partial sums of each output.
func (m *kernelModel) combine() {
	chunks, sums := m.word("chunks"), extentOf(m.extents, m.front)
	require.Greater(m.t, chunks, int64(1))
	m.eachSum(func(ordinal int64, _ int, out *deviceOperand) {
		for k := range sums {
			total := sumOf{}
			for c := range chunks {
				m.partial((ordinal*chunks+c)*sums+k, func(d tensor.DType, from []byte) { total.add(TermOf(Decode(d, from))) })
			}
			Encode(out.dtype, out.element(out.offset(m.extents, m.front, k)), total.value())
		}
	})
}

// eachSum visits the summed outputs, numbered among themselves.
func (m *kernelModel) eachSum(visit func(ordinal int64, o int, out *deviceOperand)) {
	ordinal := int64(0)
	for o := range m.operands[m.inputs:] {
		if m.summed(o) {
			visit(ordinal, o, &m.operands[m.inputs+o])
			ordinal++
		}
	}
}

// partial hands over a place of the workspace.
func (m *kernelModel) partial(index int64, use func(tensor.DType, []byte)) {
	o := deviceOperand{address: uint64(m.word("partial")), dtype: m.dtype.Accumulator()}
	if o.address == 0 {
		m.t.Fatal("there is no workspace")
	}
	use(o.dtype, o.element(index))
}

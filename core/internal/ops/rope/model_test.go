package rope_test

import (
	"math"
	"math/bits"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/rope"
	"github.com/sternway/sternway/core/internal/tensor"
)

// ropeModel runs a launch of cuda/rope/rope.cu on the host in float64, thread by thread, from its
// argument words. It checks the words, and that the threads visit every element.
type ropeModel struct {
	t         *testing.T
	words     []uint64
	problem   map[string]int
	operand   map[string]int
	first     int // word of the first operand
	size      int // words of an operand
	dtype     tensor.DType
	half, two bool
	tokens    bool  // a thread has one row of some tokens
	rows      int64 // or no more than these of one token, unless it reads tables
}

func modelRope(t *testing.T) *coretest.FakeCUDA {
	t.Helper()
	problem, first := coretest.WordsOf[rope.RopeProblem]()
	operand, size := coretest.WordsOf[rope.RopeOperand]()
	return (&coretest.FakeCUDA{Devices: 1, NumSMs: 3, Body: func(symbol string, l *driver.Launch) {
		m := &ropeModel{t: t, words: l.Words(), problem: problem, operand: operand, first: first, size: size, rows: rope.MaxRowsPerThread}
		m.half, m.tokens = strings.Contains(symbol, "_half_"), strings.Contains(symbol, "_tokens_")
		for _, row := range tensor.DTypeRows {
			if strings.HasSuffix(symbol, "_"+row.Suffix) {
				m.dtype = row.DType
			}
		}
		m.run(int64(l.Grid), int64(l.Block))
	}}).Install(t)
}

func (m *ropeModel) word(name string, at int) int64 {
	place, known := m.problem[name]
	if !known {
		m.t.Fatalf("the argument of the kernels has no field %s", name)
	}
	return int64(m.words[place+at])
}

func (m *ropeModel) number(name string, at int) float64 {
	return math.Float64frombits(uint64(m.word(name, at)))
}

// load reads an element at an address.
func load(address int64, d tensor.DType) float64 {
	return coretest.Decode(d, unsafe.Slice((*byte)(cpu.Pointer(uintptr(address))), d.Size()))
}

func (m *ropeModel) run(grid, block int64) {
	require.Len(m.t, m.words, m.first+2*m.size)
	m.two = m.half || m.word("vector", 0) == 1
	require.LessOrEqual(m.t, int64(1)<<m.word("lanes", 0), block)
	held := m.word("vector", 0) * m.dtype.Size() // bytes of a row that a thread holds
	if m.two {
		held *= 2
	}
	require.LessOrEqual(m.t, held, int64(16), "kWidest")
	if m.tokens {
		require.EqualValues(m.t, 16, held, "there is no kernel for less")
		require.EqualValues(m.t, 1, m.word("run", 0))
	} else if m.word("cos", 0) == 0 {
		require.LessOrEqual(m.t, m.word("run", 0), m.rows)
	}
	for b := range grid {
		for thread := range block {
			m.thread(b, thread, block)
		}
	}
}

// quotient divides by two words of a launch: a factor of 32 or of 64 bits, and a shift.
func quotient(n int64, by []uint64, wide bool) int64 {
	if !wide {
		return int64(2 * uint64(n) * by[0] >> 32 >> by[1])
	}
	high, _ := bits.Mul64(2*uint64(n), by[0])
	return int64(high >> by[1])
}

func (m *ropeModel) thread(block, thread, threads int64) {
	lanes, tiles, units, tokens := int64(1)<<m.word("lanes", 0), m.word("tiles", 0), m.word("units", 0), m.word("tokens", 0)
	divide := func(n int64, by string, wide bool) int64 { return quotient(n, m.words[m.problem[by]:], wide) }
	chunk := divide(block, "byTiles", false)
	index := (block-chunk*tiles)*lanes + thread%lanes
	place := divide(index, "byUnits", true)
	if place >= m.word("places", 0) {
		return
	}
	batch := int64(0)
	if m.word("places", 0) != tokens {
		batch = divide(place, "byTokens", true)
	}
	o := m.words[m.first:]
	if chunk >= m.word("chunks", 0) {
		o, chunk = o[m.size:], chunk-m.word("chunks", 0)
	}
	o = o[:m.size]
	group := quotient(chunk, o[m.operand["byChunks"]:], false)
	chunk -= group * int64(o[m.operand["chunks"]])
	run, rows, token, unit := m.word("run", 0), int64(o[m.operand["rows"]]), place-batch*tokens, index-place*units
	row := (chunk*(threads/lanes) + thread/lanes) * run
	if m.tokens {
		if batch != 0 {
			m.t.Fatalf("block %d, thread %d: tokens of batch %d", block, thread, batch)
		}
		for n := int64(0); n < m.word("most", 0) && row < rows && token < tokens; n++ {
			m.rotate(o, [4]int64{0, group, row, token}, unit)
			token += m.word("stride", 0)
		}
		return
	}
	for ; run > 0 && row < rows; row, run = row+1, run-1 {
		m.rotate(o, [4]int64{batch, group, row, token}, unit)
	}
}

// rotate turns or copies one unit of a row: number batch, group, row, token.
func (m *ropeModel) rotate(o []uint64, number [4]int64, unit int64) {
	batch, token := number[0], number[3]
	address := func(data, strides string, element int64) int64 {
		at := int64(o[m.operand[data]])
		for d, i := range append(number[:], element) {
			at += i * int64(o[m.operand[strides]+d])
		}
		return at
	}
	in := func(e int64) float64 { return load(address("in", "inStride", e), m.dtype) }
	out := func(e int64, v float64) {
		coretest.Encode(m.dtype, unsafe.Slice((*byte)(cpu.Pointer(uintptr(address("out", "outStride", e)))), m.dtype.Size()), v)
	}
	vector, start, pairs, rotating := m.word("vector", 0), m.word("start", 0), m.word("pairs", 0), m.word("rotating", 0)
	if unit >= rotating {
		each := int64(1)
		if m.two {
			each = 2
		}
		for v := (unit - rotating) * each; v < min((unit-rotating+1)*each, m.word("copied", 0)); v++ {
			first := v * vector
			if first >= start {
				first += 2 * pairs
			}
			for e := first; e < first+vector; e++ {
				out(e, in(e))
			}
		}
		return
	}
	held := vector
	if !m.two {
		held = vector / 2
	}
	for pair := unit * held; pair < (unit+1)*held; pair++ {
		i, j := start+2*pair, start+2*pair+1
		if m.half {
			i, j = start+pair, start+pair+pairs
		}
		ci, si, cj, sj := m.factors(batch, token, pair)
		x, y := in(i), in(j)
		if m.word("forward", 0) != 0 {
			out(i, ci*x-si*y)
			out(j, cj*y+sj*x)
		} else {
			out(i, ci*x+sj*y)
			out(j, cj*y-si*x)
		}
	}
}

func (m *ropeModel) factors(batch, token, pair int64) (ci, si, cj, sj float64) {
	position := token
	if p := m.word("positions", 0); p != 0 {
		position = int64(load(p+batch*m.word("positionStride", 0)+token*m.word("positionStride", 1), tensor.DTypeRows[m.word("positionDtype", 0)].DType))
	}
	if m.word("cos", 0) != 0 {
		if position < 0 || position >= m.word("rows", 0) {
			return 1, 0, 1, 0
		}
		look := func(name string, column int64) float64 {
			at := batch*m.word(name+"Stride", 0) + position*m.word(name+"Stride", 1) + column*m.word(name+"Stride", 2)
			return load(m.word(name, 0)+at, tensor.DTypeRows[m.word(name+"Dtype", 0)].DType)
		}
		i := pair * m.word("pairStride", 0)
		j := i + m.word("partnerOffset", 0)
		return look("cos", i), look("sin", i), look("cos", j), look("sin", j)
	}
	frequency := m.frequency(pair)
	if fastest := m.number("fastest", 0); !(frequency <= fastest*(1+1e-12)) {
		m.t.Fatalf("the frequency of pair %d is %v, above %v", pair, frequency, fastest)
	}
	angle := float64(position) * frequency
	if m.word("single", 0) != 0 {
		angle = float64(float32(position) * float32(frequency))
	}
	s, c := math.Sincos(angle)
	return c, s, c, s
}

// frequency is the product of the powers that a pair's number is made of. Above the first pairs it
// is formed to more places than those of a float64, since a position multiplies its error.
func (m *ropeModel) frequency(pair int64) float64 {
	fine := int64(m.problem["coarse"] - m.problem["fine"])
	short := func(name string, at int64) float64 {
		return float64(math.Float32frombits(uint32(m.word(name, int(at/2)) >> (at % 2 * 32))))
	}
	first, coarse, low, relative := m.number("fine", int(pair%fine)), 1.0, 0.0, 0.0
	if m.word("pairs", 0) <= fine {
		return first
	}
	for k, rest := int64(0), pair/fine; rest > 0; k, rest = k+1, rest/2 {
		if rest%2 == 0 {
			continue
		}
		factor := m.number("coarse", int(k))
		product := float64(coarse * factor) // rounded, as below
		low = math.FMA(low, factor, math.FMA(coarse, factor, -product))
		coarse, relative = product, relative+short("coarseLow", k)
	}
	product := float64(first * coarse) // rounded: Go must not fuse it with the sum below
	rest := math.FMA(first, low, math.FMA(first, coarse, -product))
	return product + math.FMA(product, relative+short("fineLow", pair%fine), rest)
}

// wordsOf is a part of an argument in words.
func wordsOf(f *rope.Frequencies) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(f)), unsafe.Sizeof(*f)/8)
}

// The frequencies of a launch are those of the CPU, which are the nearest, but for one in 2^20.
func TestFrequenciesOfLaunchAreNearest(t *testing.T) {
	problem, _ := coretest.WordsOf[rope.RopeProblem]()
	for _, base := range []ops.Scalar{10000, 500000, 2, 1e-200, 1e200} {
		for _, pairs := range []int64{1, 64, 65, 20000} {
			checked, err := rope.Rope{HeadDim: 2 * pairs, Base: &base, DType: tensor.Float32}.Problem()
			require.NoError(t, err)
			program, err := checked.Compile(checked, 1, true, ops.Preference{})
			require.NoError(t, err)
			p := program.(*rope.Program)
			m := &ropeModel{t: t, problem: problem, words: append(make([]uint64, problem["fine"]), wordsOf(&p.Frequencies)...)}
			m.words[problem["pairs"]] = uint64(pairs)
			differ := 0
			for pair, want := range p.Frequency {
				if got := m.frequency(int64(pair)); got != want {
					require.InEpsilon(t, want, got, 1.0/(1<<52))
					differ++
				}
			}
			require.LessOrEqual(t, differ, 1, "base %v, %d pairs", base, pairs)
		}
	}
}

func words(divisor [2]int64) []uint64 { return []uint64{uint64(divisor[0]), uint64(divisor[1])} }

// What a launch says of a divisor divides every number that a kernel asks of it.
func TestDivisorsOfLaunch(t *testing.T) {
	for _, d := range []int64{1, 2, 3, 5, 7, 12, 64, 65, 255, 641, 1<<20 - 1, 1 << 20, 1<<30 + 1, 1<<31 - 1} {
		for _, n := range []int64{0, 1, d - 1, d, d + 1, 2*d - 1, 7*d - 1, 7 * d, 1<<31 - 1, 1<<31 - d, (1<<31 - 1) / d * d, (1<<31-1)/d*d - 1} {
			if n < 0 || n >= 1<<31 {
				continue
			}
			require.Equal(t, n/d, quotient(n, words(rope.Divisor32(d)), false), "%d / %d", n, d)
		}
	}
	for _, d := range []int64{1, 2, 3, 5, 7, 12, 72, 1<<20 - 1, 1 << 20, 1<<40 + 1, 1<<62 - 1, math.MaxInt64} {
		for _, n := range []int64{0, 1, d - 1, d, math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 / d * d, math.MaxInt64/d*d - 1} {
			require.Equal(t, n/d, quotient(n, words(rope.Divisor64(d)), true), "%d / %d", n, d)
		}
	}
}

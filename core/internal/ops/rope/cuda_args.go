package rope

import (
	"math"
	"math/bits"

	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file fills RopeArgs, the argument of the CUDA kernels of rope.

func (p *Program) setProblem(q *launch.Queue, a *RopeProblem, args []tensor.Tensor, l *launchConfig) {
	flag := func(on bool) int64 {
		if on {
			return 1
		}
		return 0
	}
	a.start, a.pairs, a.units, a.rotating, a.copied = p.RotaryStart, p.pairs, l.units, l.rotating, l.copied
	a.tokens, a.places, a.stride, a.most = p.SeqLen, l.tokens, l.tokenStride, l.tokensPerThread
	a.lanes, a.tiles, a.run, a.chunks, a.vector = int64(l.log2Lanes), l.tiles, l.rowsPerThread, l.groups[0].chunks*l.groups[0].number, l.vector
	a.byUnits, a.byTokens, a.byTiles = Divisor64(l.units), Divisor64(p.SeqLen), Divisor32(l.tiles)
	a.forward, a.single, a.fastest = flag(p.isForward), flag(p.Angle == "float32"), p.fastest
	a.fine, a.coarse, a.fineLow, a.coarseLow = p.Frequencies.fine, p.Frequencies.coarse, p.Frequencies.fineLow, p.Frequencies.coarseLow
	positions := positionsOf(&args[Positions])
	dtype := tensor.Int64
	if positions.tensor != nil {
		dtype = positions.tensor.DType
		q.SetAddress(&a.positions, Positions, args[Positions].Data)
	}
	a.positionDtype, a.positionStride = int64(dtype.Row()), [2]int64{positions.batch * dtype.Size(), positions.token * dtype.Size()}
	if !p.hasTables(args) {
		return
	}
	table := &args[Cos]
	a.rows = table.Shape[table.NDim-2]
	a.pairStride, a.partnerOffset = p.tableColumns(table)
	q.SetAddress(&a.cos, Cos, table.Data)
	q.SetAddress(&a.sin, Sin, args[Sin].Data)
	a.cosDtype, a.cosStride = bytesOfTable(tableOf(table))
	a.sinDtype, a.sinStride = bytesOfTable(tableOf(&args[Sin]))
}

// bytesOfTable is the dtype of a table, and its strides in bytes.
func bytesOfTable(t tableLayout) (dtype int64, stride [3]int64) {
	size := t.dtype.Size()
	return int64(t.dtype.Row()), [3]int64{t.batch * size, t.row * size, t.column * size}
}

func (p *Program) setOperand(q *launch.Queue, a *RopeOperand, r *rotation, g *rowGroups) {
	q.SetAddress(&a.in, r.input, r.in.data)
	q.SetAddress(&a.out, r.output, r.out.data)
	a.rows, a.chunks, a.byChunks = g.rows, g.chunks, Divisor32(max(1, g.chunks))
	a.inStride, a.outStride = p.bytesOfRows(&r.in, g.in), p.bytesOfRows(&r.out, g.out)
}

// bytesOfRows are the strides in bytes of batch, group, row, token and element.
func (p *Program) bytesOfRows(rows *rowLayout, g [2]int64) [5]int64 {
	size := p.DType.Size()
	return [5]int64{rows.batch * size, g[0] * size, g[1] * size, rows.token * size, rows.step * size}
}

// Frequencies are those from which a kernel computes the frequency of a pair in extended precision:
// the first ones, factors for the higher bits of a pair's index, and their relative errors.
type Frequencies struct {
	fine      [FineFrequencies]float64
	coarse    [coarseFactors]float64
	fineLow   [FineFrequencies]float32
	coarseLow [coarseFactors]float32
}

// frequenciesOf splits the powers of the base into those of the first pairs and the factors for the
// higher bits of a pair's index.
func frequenciesOf(list []Double) (f Frequencies) {
	for i := range FineFrequencies + coarseFactors {
		at, power := i, Double{High: 1}
		if i >= FineFrequencies {
			at = FineFrequencies << (i - FineFrequencies)
		}
		if at < len(list) {
			power = list[at]
		}
		if relative := float32(power.low / power.High); i < FineFrequencies {
			f.fine[i], f.fineLow[i] = power.High, relative
		} else {
			f.coarse[i-FineFrequencies], f.coarseLow[i-FineFrequencies] = power.High, relative
		}
	}
	return f
}

// Divisor32 is the multiplier and shift for exact division of 31-bit integers by d (division by
// invariant integers): the smallest s with 2^s >= d, and 2^(31 + s) / d rounded up.
func Divisor32(d int64) [2]int64 {
	s := bits.Len64(uint64(d - 1))
	return [2]int64{int64((1<<(31+s)-1)/uint64(d) + 1), int64(s)}
}

// Divisor64 is the multiplier and shift for exact division of 63-bit integers by d; see Divisor32.
func Divisor64(d int64) [2]int64 {
	if d == 1 {
		return [2]int64{math.MinInt64, 0} // 2^63 as an unsigned number
	}
	s := bits.Len64(uint64(d - 1))
	factor, _ := bits.Div64(1<<(s-1)-1, math.MaxUint64, uint64(d))
	return [2]int64{int64(factor + 1), int64(s)}
}

package rope

import (
	"math"
	"math/bits"

	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file packs RopeArgs, the argument of the CUDA kernels of rope.

const (
	fineFrequencies = 64 // frequencies of the first pairs, passed as they are
	coarseFactors   = 14 // factors for the higher bits of a pair's index, and one for padding
)

// packArguments packs RopeProblem (cuda/rope/angles.cuh), which RopeArgs begins with.
func (p *Program) packArguments(q *launch.Queue, args []tensor.Tensor, l *launchConfig) {
	flag := func(on bool) uint64 {
		if on {
			return 1
		}
		return 0
	}
	positions, cos, sin := positionsOf(&args[Positions]), tableLayout{dtype: tensor.Float32}, tableLayout{dtype: tensor.Float32}
	rows, pairStride, partnerOffset := int64(0), int64(0), int64(0)
	if p.hasTables(args) {
		table := &args[Cos]
		cos, sin, rows = tableOf(table), tableOf(&args[Sin]), table.Shape[table.NDim-2]
		pairStride, partnerOffset = p.tableColumns(table)
	}
	for _, v := range []int64{p.RotaryStart, p.pairs, l.units, l.rotating, l.copied, p.SeqLen, l.tokens, l.tokenStride, l.tokensPerThread, int64(l.log2Lanes), l.tiles, l.rowsPerThread, l.groups[0].chunks * l.groups[0].number, l.vector} {
		q.Launch.Put(uint64(v))
	}
	q.Launch.Put(Divisor64(l.units)...)
	q.Launch.Put(Divisor64(p.SeqLen)...)
	q.Launch.Put(Divisor32(l.tiles)...)
	q.Launch.Put(flag(p.isForward), flag(p.Angle == "float32"), math.Float64bits(p.fastest), uint64(rows), uint64(pairStride), uint64(partnerOffset))
	for _, operand := range []int{Positions, Cos, Sin} {
		if args[operand].Given() {
			q.Address(operand, args[operand].Data)
		} else {
			q.Launch.Put(0)
		}
	}
	dtype := tensor.Int64
	if positions.tensor != nil {
		dtype = positions.tensor.DType
	}
	q.Launch.Put(uint64(dtype.Row()), uint64(positions.batch*dtype.Size()), uint64(positions.token*dtype.Size()))
	for _, t := range []*tableLayout{&cos, &sin} {
		q.Launch.Put(uint64(t.dtype.Row()))
		for _, stride := range []int64{t.batch, t.row, t.column} {
			q.Launch.Put(uint64(stride * t.dtype.Size()))
		}
	}
	q.Launch.Put(p.Powers...)
}

func (p *Program) packStrides(q *launch.Queue, rows *rowLayout, g [2]int64) {
	for _, stride := range []int64{rows.batch, g[0], g[1], rows.token, rows.step} {
		q.Launch.Put(uint64(stride * p.DType.Size()))
	}
}

// powersOfLaunch are the words from which a kernel computes frequencies in extended precision:
// the frequencies of the first pairs and the factors for the higher bits of a pair's index, in
// float64, then the relative errors of both in float32.
func powersOfLaunch(list []Double) (words []uint64) {
	var low [fineFrequencies + coarseFactors]uint64
	for i := range low {
		at, power := i, Double{High: 1}
		if i >= fineFrequencies {
			at = fineFrequencies << (i - fineFrequencies)
		}
		if at < len(list) {
			power = list[at]
		}
		words = append(words, math.Float64bits(power.High))
		low[i] = uint64(math.Float32bits(float32(power.low / power.High)))
	}
	for i := 0; i < len(low); i += 2 {
		words = append(words, low[i]|low[i+1]<<32)
	}
	return words
}

// Divisor32 is the multiplier and shift for exact division of 31-bit integers by d (division by
// invariant integers): the smallest s with 2^s >= d, and 2^(31 + s) / d rounded up.
func Divisor32(d int64) []uint64 {
	s := bits.Len64(uint64(d - 1))
	return []uint64{(1<<(31+s)-1)/uint64(d) + 1, uint64(s)}
}

// Divisor64 is the multiplier and shift for exact division of 63-bit integers by d; see Divisor32.
func Divisor64(d int64) []uint64 {
	if d == 1 {
		return []uint64{1 << 63, 0}
	}
	s := bits.Len64(uint64(d - 1))
	factor, _ := bits.Div64(1<<(s-1)-1, math.MaxUint64, uint64(d))
	return []uint64{factor + 1, uint64(s)}
}

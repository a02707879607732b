package scan_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
)

// chunk is a part of a dimension: positions from..to-1.
type chunk struct{ from, to int64 }

// chunksOf splits n positions at random places into chunks in scan order, some of which may be
// empty.
func chunksOf(random *rand.Rand, n int64, count int, reverse bool) []chunk {
	borders := []int64{0, n}
	for range count - 1 {
		borders = append(borders, random.Int64N(n+1))
	}
	slices.Sort(borders)
	var chunks []chunk
	for i := range count {
		chunks = append(chunks, chunk{borders[i], borders[i+1]})
	}
	if reverse {
		slices.Reverse(chunks)
	}
	return chunks
}

// chunkOf is a case whose dimension has the positions of a chunk.
func (c scanCase) chunkOf(k chunk) scanCase {
	c.shape = slices.Clone(c.shape)
	c.shape[c.dim] = k.to - k.from
	return c
}

// visitChunk calls body with each position of a chunk of a contiguous array, and with its position
// in the whole array.
func (c scanCase) visitChunk(k chunk, body func(inChunk, inWhole int64)) {
	inner, outer := int64(1), int64(1)
	for _, e := range c.shape[c.dim+1:] {
		inner *= e
	}
	for _, e := range c.shape[:c.dim] {
		outer *= e
	}
	n, at := c.shape[c.dim], int64(0)
	for o := range outer {
		for i := k.from * inner; i < k.to*inner; i++ {
			body(at, o*n*inner+i)
			at++
		}
	}
}

// of are the numbers of a chunk.
func (c scanCase) of(k chunk, whole []float64) []float64 {
	var part []float64
	c.visitChunk(k, func(_, i int64) { part = append(part, whole[i]) })
	return part
}

// carry is the numbers of a carry, row by row.
type carry []float64

// carryShape is the shape of a carry: forward, or of a gradient.
func (c scanCase) carryShape(gradient bool) []int64 {
	kind := scan.ByName[c.kind]
	size := kind.CarrySize
	switch {
	case gradient && c.dtype == tensor.Float64:
		size = kind.GradientCarrySizeFloat64
	case gradient:
		size = kind.GradientCarrySize
	}
	return append(slices.Delete(slices.Clone(c.shape), c.dim, c.dim+1), size)
}

// scattered is a tensor of float64 whose dimensions lie in memory the other way round, from high
// addresses to low ones, with gaps. memory is all of it.
func scattered(shape []int64, values []float64) (t tensor.Tensor, memory []float64) {
	count, _ := tensor.Product(shape)
	memory = slices.Repeat([]float64{12345}, int(2*count)+2)
	t = tensor.Of(memory)
	t.NDim = int32(len(shape))
	step := int64(-2)
	for d, extent := range shape {
		t.Shape[d], t.Strides[d] = extent, step
		step *= extent
	}
	t.Data += uintptr(8 * (2 * max(count, 1)))
	for i := range count {
		*scatteredAt(&t, i) = values[i]
	}
	return t, memory
}

// scatteredAt is number i in the order of dimensions.
func scatteredAt(t *tensor.Tensor, i int64) *float64 {
	offset := int64(0)
	for d := int(t.NDim) - 1; d >= 0; d-- {
		offset += i % t.Shape[d] * t.Strides[d]
		i /= t.Shape[d]
	}
	return &cpu.Elements[float64](t, offset, 1, 1)[0]
}

// carryIn is an input of carries of adjacent chunks, contiguous or not; nil: one that is left out.
func (c scanCase) carryIn(args core.Args, name string, gradient, isScattered bool, carries []carry) {
	if carries == nil {
		return
	}
	shape := c.carryShape(gradient)
	if len(carries) != 1 {
		shape = append([]int64{int64(len(carries))}, shape...)
	}
	if numbers := slices.Concat(carries...); isScattered {
		args[name], _ = scattered(shape, numbers)
	} else {
		args[name] = scanTensor(tensor.Float64, shape, numbers)
	}
}

// runWithCarry runs a plan whose output of a carry lies scattered over NaN, and returns the carry.
func (c scanCase) runWithCarry(t testing.TB, d ops.Descriptor, args core.Args, name string, gradient bool) carry {
	t.Helper()
	plan, err := core.Select(d, tensor.CPU, ops.Preference{})
	require.NoError(t, err)
	shape := c.carryShape(gradient)
	count, _ := tensor.Product(shape)
	out, memory := scattered(shape, scanRepeat(int(count), scanNaN))
	args[name] = out
	require.NoError(t, plan.Run(0, tensor.Tensor{}, args))
	written := make(carry, count)
	for i := range written {
		written[i] = *scatteredAt(&out, int64(i))
	}
	for i, v := range memory {
		require.True(t, i%2 == 0 && i > 0 || v == 12345, "%s wrote beside its carry", c)
	}
	return written
}

// forwardChunk runs one chunk; y nil: its summary alone.
func (c scanCase) forwardChunk(t testing.TB, k chunk, x []float64, carries []carry, isScattered, isSummary bool) (y []float64, indices []int64, out carry) {
	t.Helper()
	part := c.chunkOf(k)
	args := core.Args{"x": scanTensor(c.dtype, part.shape, c.of(k, x))}
	c.carryIn(args, "carry_in", false, isScattered, carries)
	if !isSummary {
		args["y"] = forwardNaN(c.dtype, part.shape)
		if c.indices {
			n, _ := tensor.Product(part.shape)
			args["indices"] = scanIndexTensor(part.shape, slices.Repeat([]int64{math.MinInt64}, int(n)))
		}
	}
	out = part.runWithCarry(t, scan.Scan{Kind: c.kind, Shape: part.shape, DType: c.dtype, Dim: int64(c.dim), Reverse: c.reverse, Tie: c.tie, Carries: true},
		args, "carry_out", false)
	if !isSummary {
		y = scanValues(args["y"])
		if found := args["indices"]; c.indices && len(y) > 0 {
			indices = slices.Clone(cpu.Elements[int64](&found, 0, int64(len(y)), 1))
		}
	}
	return y, indices, out
}

// backwardChunk runs one chunk; dx nil: its map alone.
func (c scanCase) backwardChunk(t testing.TB, k chunk, dy, x []float64, carries, after []carry, isScattered, isSummary bool) (dx []float64, out carry) {
	t.Helper()
	part := c.chunkOf(k)
	args := core.Args{"dy": scanTensor(c.dtype, part.shape, c.of(k, dy))}
	kind := scan.ByName[c.kind]
	if kind.ReadsX {
		args["x"] = scanTensor(c.dtype, part.shape, c.of(k, x))
	}
	if !kind.IsOwnGradient() {
		c.carryIn(args, "carry_in", false, isScattered, carries)
	}
	c.carryIn(args, "dcarry_out", true, isScattered, after)
	if !isSummary {
		args["dx"] = forwardNaN(c.dtype, part.shape)
	}
	d := part.descriptor()
	d.Carries = true
	out = part.runWithCarry(t, d, args, "dcarry_in", true)
	if !isSummary {
		dx = scanValues(args["dx"])
	}
	return dx, out
}

// forwardChain scans chunk by chunk. It returns the carry that enters each chunk, and the last one.
func (c scanCase) forwardChain(t testing.TB, chunks []chunk, x []float64, random *rand.Rand) (y []float64, indices []int64, carries []carry) {
	t.Helper()
	y, indices = scanRepeat(len(x), scanNaN), make([]int64, len(x))
	before := c.emptyCarry(0)
	if c.reverse {
		before = c.emptyCarry(c.shape[c.dim])
	}
	carries = []carry{before}
	for i, k := range chunks {
		in := []carry{carries[i]}
		if i == 0 && (!c.reverse || k == chunk{0, c.shape[c.dim]}) && random.IntN(2) == 0 {
			in = [][]carry{nil, {}}[random.IntN(2)] // as if there were no carry
		}
		if len(c.shape) == tensor.MaxRank && len(in) == 0 {
			in = nil // several carries have one dimension more
		}
		part, found, out := c.forwardChunk(t, k, x, in, random.IntN(2) == 0, false)
		_, _, summary := c.forwardChunk(t, k, x, in, random.IntN(2) == 0, true)
		requireSameNumbers(t, out, summary, fmt.Sprint(c, ": a summary of ", k))
		c.visitChunk(k, func(at, whole int64) {
			if y[whole] = part[at]; c.indices {
				indices[whole] = found[at]
			}
		})
		carries = append(carries, out)
	}
	return y, indices, carries
}

// backwardChain computes the gradient chunk by chunk, from the last to the first.
func (c scanCase) backwardChain(t testing.TB, chunks []chunk, dy, x []float64, carries []carry, random *rand.Rand) []float64 {
	t.Helper()
	dx := scanRepeat(len(dy), scanNaN)
	var after []carry
	for i := len(chunks) - 1; i >= 0; i-- {
		in := []carry{carries[i]}
		part, out := c.backwardChunk(t, chunks[i], dy, x, in, after, random.IntN(2) == 0, false)
		_, summary := c.backwardChunk(t, chunks[i], dy, x, in, after, random.IntN(2) == 0, true)
		requireSameNumbers(t, out, summary, fmt.Sprint(c, ": the map of ", chunks[i]))
		c.visitChunk(chunks[i], func(at, whole int64) { dx[whole] = part[at] })
		after = []carry{out}
	}
	return dx
}

// requireSameNumbers requires equal bits, of NaN excepted.
func requireSameNumbers(t testing.TB, want, got []float64, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i := range want {
		if math.Float64bits(want[i]) != math.Float64bits(got[i]) && !(math.IsNaN(want[i]) && math.IsNaN(got[i])) {
			require.Failf(t, "other bits", "%s: %v, not %v, at %d", what, got, want, i)
		}
	}
}

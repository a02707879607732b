package scan_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/tensor"
)

// chunkShapes are rows that are split and rows that are not, in all layouts.
var chunkShapes = []struct {
	shape []int64
	dim   int
}{
	{[]int64{1}, 0}, {[]int64{40}, 0}, {[]int64{2900}, 0}, {[]int64{3, 1500}, 1}, {[]int64{70, 33}, 1}, {[]int64{9, 200}, 1}, {[]int64{1500, 2}, 0},
	{[]int64{300, 4}, 0}, {[]int64{2, 1400, 3}, 1}, {[]int64{33, 70}, 0}, {[]int64{0, 5}, 1}, {[]int64{2, 0}, 1}, {[]int64{2, 2, 2, 9, 1, 2, 2, 1}, 3},
}

// chunkCases yields every kind, direction, tie and dtype, maxima and minima with and without
// indices.
func chunkCases(yield func(c scanCase, random *rand.Rand)) {
	random := rand.New(rand.NewPCG(11, 11))
	scanCases(func(c scanCase) {
		for _, s := range chunkShapes {
			c.shape, c.dim = s.shape, s.dim
			yield(c, random)
		}
	})
}

// rounded are numbers as a dtype holds them.
func (c scanCase) rounded(values []float64) []float64 {
	return scanValues(scanTensor(c.dtype, []int64{int64(len(values))}, values))
}

// Chunks one after the other have the results of the whole row.
func TestForwardChunks(t *testing.T) {
	chunkCases(func(c scanCase, random *rand.Rand) {
		total, _ := tensor.Product(c.shape)
		_, x := scanNumbers(c.kind, random, total)
		x = c.rounded(x)
		for _, count := range []int{1, 2, 5} {
			chunks := chunksOf(random, c.shape[c.dim], count, c.reverse)
			y, indices, carries := c.forwardChain(t, chunks, x, random)
			forwardCase(c).requireDefinition(t, x, y, indices)
			c.requireCarry(t, x, carries[len(carries)-1])
		}
	})
}

// requireCarry compares the carry after all chunks with the definition.
func (c scanCase) requireCarry(t *testing.T, x []float64, out carry) {
	t.Helper()
	if len(out) == 0 {
		return
	}
	double := c
	double.dtype = tensor.Float64
	size, row := len(c.emptyCarry(0))/c.rows(), 0
	if c.shape[c.dim] == 0 {
		requireSameNumbers(t, c.emptyCarry(0), out, c.String())
	}
	scanRows(c.shape, c.dim, func(at []int64) {
		numbers := out[row*size : (row+1)*size]
		if row++; len(at) == 0 {
			return
		}
		values := scanOrder(c, x, at)
		want, sizes := forwardOracle(forwardCase(c), values)
		last := len(at) - 1
		got := c.valueOfCarry(t, values, numbers)
		require.True(t, scanClose(double, got, want[last], sizes[last], len(at)), "%s: %v, not %v", c, got, want[last])
	})
}

// rows is the number of rows.
func (c scanCase) rows() int {
	rows := int64(1)
	for d, e := range c.shape {
		if d != c.dim {
			rows *= e
		}
	}
	return int(rows)
}

// Chunks one after the other, from the last to the first, have the gradient of the whole row.
func TestBackwardChunks(t *testing.T) {
	chunkCases(func(c scanCase, random *rand.Rand) {
		total, _ := tensor.Product(c.shape)
		if c.indices || c.kind == "logcumsumexp" && total > 3000 && c.dtype != tensor.Float64 {
			return
		}
		dy, x := scanNumbers(c.kind, random, total)
		dy, x = c.rounded(dy), c.rounded(x)
		for _, count := range []int{1, 2, 5} {
			chunks := chunksOf(random, c.shape[c.dim], count, c.reverse)
			_, _, carries := c.forwardChain(t, chunks, x, random)
			c.requireDefinition(t, dy, x, c.backwardChain(t, chunks, dy, x, carries, random))
		}
	})
}

// Chunks by themselves, whose carries are combined later, as ranks do.
func TestChunksInParts(t *testing.T) {
	chunkCases(func(c scanCase, random *rand.Rand) {
		total, _ := tensor.Product(c.shape)
		if c.kind == "logcumsumexp" && total > 3000 || c.dtype == tensor.Float16 || total == 0 || len(c.shape) == tensor.MaxRank {
			return
		}
		for _, specials := range [][]float64{{0, 1e30, 1e-30, -1, 0x1p-149}, {scanInf, -scanInf, -scanInf, scanNaN, 0}} {
			dy, x := scanNumbers(c.kind, random, total)
			for i := range x {
				if random.IntN(int(c.shape[c.dim])+9) == 0 {
					x[i] = specials[random.IntN(len(specials))]
				}
			}
			dy, x = c.rounded(dy), c.rounded(x)
			// Single chunks of products with infinities have no map of this form.
			isAffine := c.kind != "cumprod" || !slices.ContainsFunc(x, func(v float64) bool { return v-v != 0 })
			c.requireParts(t, chunksOf(random, c.shape[c.dim], 4, c.reverse), dy, x, isAffine, random)
		}
	})
}

// requireParts runs chunks from the summaries of the others.
func (c scanCase) requireParts(t *testing.T, chunks []chunk, dy, x []float64, isAffine bool, random *rand.Rand) {
	t.Helper()
	summaries, maps := []carry{}, make([]carry, len(chunks))
	for _, k := range chunks {
		boundary := k.from
		if c.reverse {
			boundary = k.to
		}
		_, _, summary := c.forwardChunk(t, k, x, []carry{c.emptyCarry(boundary)}, false, true)
		summaries = append(summaries, summary)
	}
	y, indices, dx := make([]float64, len(x)), make([]int64, len(x)), make([]float64, len(x))
	start := int64(0)
	if c.reverse {
		start = c.shape[c.dim]
	}
	before := func(i int) []carry { return append([]carry{c.emptyCarry(start)}, summaries[:i]...) }
	for i, k := range chunks {
		part, found, _ := c.forwardChunk(t, k, x, before(i), random.IntN(2) == 0, false)
		c.visitChunk(k, func(at, whole int64) {
			if y[whole] = part[at]; c.indices {
				indices[whole] = found[at]
			}
		})
		_, maps[i] = c.backwardChunk(t, k, dy, x, before(i), nil, false, true)
	}
	forwardCase(c).requireDefinition(t, x, y, indices)
	if !isAffine {
		return
	}
	for i, k := range chunks {
		part, _ := c.backwardChunk(t, k, dy, x, before(i), maps[i+1:], random.IntN(2) == 0, false)
		c.visitChunk(k, func(at, whole int64) { dx[whole] = part[at] })
	}
	c.requireDefinition(t, dy, x, dx)
}

// Numbers that break a naive scan, on both sides of the borders of chunks.
func TestChunkBorders(t *testing.T) {
	random := rand.New(rand.NewPCG(12, 12))
	for _, n := range []int64{5, 9, 9, 9, 40, 1300} {
		for _, special := range []float64{0, math.Copysign(0, -1), scanNaN, scanInf, -scanInf, 1e30, 1e-30, 0x1p-149} {
			scanCases(func(c scanCase) {
				if c.dtype == tensor.Float16 || c.dtype == tensor.BFloat16 || n > 1000 && c.kind == "logcumsumexp" && special != scanInf {
					return
				}
				c.shape = []int64{n}
				dy, x := scanNumbers(c.kind, random, n)
				border := 1 + random.Int64N(n-2)
				x[border-random.Int64N(2)] = special
				if random.IntN(2) == 0 {
					x[random.Int64N(n)] = special
				}
				dy, x = c.rounded(dy), c.rounded(x)
				chunks := []chunk{{0, border}, {border, border + 1}, {border + 1, n}}
				if c.reverse {
					chunks[0], chunks[2] = chunks[2], chunks[0]
				}
				y, indices, carries := c.forwardChain(t, chunks, x, random)
				forwardCase(c).requireDefinition(t, x, y, indices)
				if !c.indices {
					c.requireDefinition(t, dy, x, c.backwardChain(t, chunks, dy, x, carries, random))
				}
			})
		}
	}
}

// Products leave the range of their dtype in one chunk, and come back in another.
func TestChunkProductRange(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 13))
	for _, row := range []struct {
		x     []float64
		dtype tensor.DType
	}{
		{scanRepeat(300, 1e-20, 1e20), tensor.Float32}, {scanRepeat(1024, 1e20, 1e-20), tensor.Float32},
		{append(scanRepeat(40, 1e30), scanRepeat(40, 1e-30)...), tensor.Float32},
		{scanRepeat(300, 0x1p-1000, 0x1p1000), tensor.Float64}, {scanRepeat(1024, 0x1p500, 0x1p-1070, 0x1p570, 1), tensor.Float64},
		{append(scanRepeat(700, 0x1p-900), scanRepeat(700, 0x1p900)...), tensor.Float64},
	} {
		for _, count := range []int{2, 5, 9} {
			c := scanCase{kind: "cumprod", shape: []int64{int64(len(row.x))}, dtype: row.dtype}
			x, chunks := c.rounded(row.x), chunksOf(random, int64(len(row.x)), count, false)
			y, _, carries := c.forwardChain(t, chunks, x, random)
			forwardCase(c).requireDefinition(t, x, y, nil)
			if row.x[0] == row.x[1] {
				continue // suffixes of the gradient leave the range of float64
			}
			dy := scanRepeat(len(x), 0)
			dy[0], dy[len(dy)-1] = 1, 1
			c.requireDefinition(t, dy, x, c.backwardChain(t, chunks, dy, x, carries, random))
		}
	}
}

// Rows whose boundaries or records differ, which no chain has.
func TestChunkRowsByThemselves(t *testing.T) {
	for _, reverse := range []bool{false, true} {
		for _, s := range []struct {
			shape []int64
			dim   int
		}{{[]int64{4, 20}, 1}, {[]int64{20, 4}, 0}, {[]int64{300, 4}, 0}, {[]int64{4, 1300}, 1}, {[]int64{1300, 4}, 0}} {
			c := scanCase{kind: "cummax", shape: s.shape, dim: s.dim, reverse: reverse, dtype: tensor.Float32, indices: true}
			n := s.shape[s.dim]
			x := make([]float64, 4*n)
			for i := range x {
				x[i] = float64(i % 7)
			}
			in := carry{5, 17, 9000, 0, -1, 8000, 100, 3, 9000, scanNaN, 5, 7000}
			for _, same := range []bool{false, true} {
				if same {
					in[5], in[11] = 9000, 9000
				}
				y, indices, out := c.forwardChunk(t, chunk{0, n}, x, []carry{in}, false, false)
				row := 0
				scanRows(c.shape, c.dim, func(at []int64) {
					first := int64(in[3*row+2])
					if reverse {
						first -= n
					}
					best, index := in[3*row], int64(in[3*row+1])
					for k := range at {
						place := scanPlace(c, k, len(at))
						if v := x[at[place]]; index == -1 || v >= best {
							best, index = v, first+int64(place)
						}
						require.True(t, y[at[place]] == best || best != best && y[at[place]] != y[at[place]], "%s: row %d: %v, not %v", c, row, y[at[place]], best)
						require.Equal(t, index, indices[at[place]], "%s: row %d at %d", c, row, k)
					}
					end := float64(first + n)
					if reverse {
						end = float64(first)
					}
					requireSameNumbers(t, carry{best, float64(index), end}, out[3*row:3*row+3], c.String())
					row++
				})
			}
		}
	}
}

// Bits of carries depend neither on the number of threads nor on the run.
func TestChunksRepeat(t *testing.T) {
	defer func(n int) { require.NoError(t, core.SetNumThreads(n)) }(core.NumThreads())
	chunkCases(func(c scanCase, random *rand.Rand) {
		total, _ := tensor.Product(c.shape)
		if total < 1000 || c.reverse || c.indices || c.dtype == tensor.Float16 {
			return
		}
		dy, x := scanNumbers(c.kind, random, total)
		k := chunk{c.shape[c.dim] / 3, c.shape[c.dim]}
		run := func(threads int) (values, out, dx, d []float64) {
			require.NoError(t, core.SetNumThreads(threads))
			_, _, in := c.forwardChunk(t, chunk{0, k.from}, x, nil, false, true)
			y, _, next := c.forwardChunk(t, k, x, []carry{in}, false, false)
			dx, d = c.backwardChunk(t, k, dy, x, []carry{in}, nil, false, false)
			return y, next, dx, d
		}
		y, out, dx, d := run(1)
		for i := range 4 {
			y2, out2, dx2, d2 := run(1 + i)
			coretest.RequireSame(t, y, y2, c.String())
			coretest.RequireSame(t, dx, dx2, c.String())
			requireSameNumbers(t, out, out2, c.String())
			requireSameNumbers(t, d, d2, c.String())
		}
	})
}

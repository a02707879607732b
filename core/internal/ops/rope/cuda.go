package rope

import (
	"slices"

	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file chooses the kernel and its launch configuration.

const maxTokensPerThread = 8 // tokens of a thread if tokens have few rows

// Indices of the kernels in Symbols: angles computed from positions; angles read from tables;
// angles computed from positions, with several tokens per thread.
const (
	kernelByPosition = iota
	kernelByTables
	kernelAlongTokens
)

// launchConfig is the launch configuration. A unit is the part of a row that a thread accesses at
// once: two vectors, or one if pairs are interleaved.
type launchConfig struct {
	vector                       int64 // elements per access
	units, rotating              int64 // units of a row, and how many of them rotate
	copied                       int64 // vectors outside of the rotated part
	tokens                       int64 // tokens; of all batches if batches have different angles
	log2Lanes                    int   // log2 of the threads of a block along units and tokens
	tiles                        int64 // blocks along units and tokens
	tokenStride, tokensPerThread int64 // stride and largest number of the tokens of a thread; 0: one token per thread
	rowsPerThread                int64
	groups                       [2]rowGroups
	chunks                       int64 // blocks along the rows of all operands
}

// rowGroups divides the rows of an operand into groups that share angles. A group is addressed by
// two of batch and head; a chunk is a part of one group.
type rowGroups struct {
	number, rows, chunks int64    // number of groups; rows and chunks per group
	in, out              [2]int64 // strides of group and row
}

// Device implements ops.Program.
func (p *Program) Device(args []tensor.Tensor, _ uintptr, q *launch.Queue) error {
	if p.isEmpty() {
		return nil
	}
	rotations, n := p.rotations(args)
	l := p.configure(args, rotations[:n])
	q.Begin()
	a := launch.Append[RopeArgs](q)
	p.setProblem(q, &a.problem, args, &l)
	for i := range rotations[:n] {
		p.setOperand(q, &a.operand[i], &rotations[i], &l.groups[i])
	}
	kernel := kernelByPosition
	switch {
	case p.hasTables(args):
		kernel = kernelByTables
	case l.tokensPerThread > 0:
		kernel = kernelAlongTokens
	}
	return q.Submit(kernel, l.tiles*l.chunks, launch.BlockThreads)
}

func (p *Program) configure(args []tensor.Tensor, rotations []rotation) launchConfig {
	l := launchConfig{vector: p.vectorElements(args, rotations), tokens: p.SeqLen}
	differ := p.anglesDiffer(args)
	if differ {
		l.tokens *= p.BatchSize
	}
	l.rotating = p.pairs / l.vector
	l.copied = (p.HeadDim - 2*p.pairs) / l.vector
	l.units = l.rotating + num.CeilDiv(l.copied, 2) // a unit is two vectors
	if p.Pairing == "interleaved" && l.vector > 1 { // a unit is one vector
		l.rotating = 2 * p.pairs / l.vector
		l.units = l.rotating + l.copied
	}
	for 1<<l.log2Lanes < min(launch.BlockThreads, l.units*l.tokens) {
		l.log2Lanes++
	}
	l.tiles = num.CeilDiv(l.units*l.tokens, 1<<l.log2Lanes)
	for i := range rotations {
		l.groups[i] = p.groups(&rotations[i], differ)
	}
	least := int64(p.numSMs) * 3 / 4 // blocks: fewer blocks with more rows each are faster than more blocks
	l.rowsPerThread = MaxRowsPerThread
	switch {
	case p.hasTables(args): // all rows of a thread share what it reads
		l.rowsPerThread, least = 64, int64(p.numSMs)*2
	case p.hasFewRows(rotations, &l):
		l.rowsPerThread = 1
		p.alongTokens(&l)
	}
	for ; ; l.rowsPerThread /= 2 {
		l.chunks = 0
		for i := range rotations {
			g := &l.groups[i]
			g.chunks = num.CeilDiv(g.rows, l.rowsPerThread*launch.BlockThreads>>l.log2Lanes)
			l.chunks += g.chunks * g.number
		}
		if l.rowsPerThread == 1 || l.tiles*l.chunks >= least {
			return l
		}
	}
}

// hasFewRows reports whether a token has too few rows to amortize its angles while the widest
// vectors suit all rows.
func (p *Program) hasFewRows(rotations []rotation, l *launchConfig) bool {
	hasFew := l.tokens == p.SeqLen && 1<<l.log2Lanes == launch.BlockThreads && l.vector*p.DType.Size() == p.maxVectorBytes()
	for i := range rotations {
		hasFew = hasFew && l.groups[i].number*l.groups[i].rows < MaxRowsPerThread && rotations[i].in.step != 0
	}
	return hasFew
}

// alongTokens gives each thread the same unit of several tokens, a grid stride apart.
func (p *Program) alongTokens(l *launchConfig) {
	whole := l.units // tiles that end where a token does
	for whole%2 == 0 && l.units/whole < launch.BlockThreads {
		whole /= 2
	}
	tokens := int64(maxTokensPerThread)
	if p.DType.Size() == 2 { // more arithmetic for each byte
		tokens *= 2
	}
	for tokens > 1 && num.CeilDiv(l.tiles, tokens) < max(4*int64(p.numSMs), whole) {
		tokens /= 2
	}
	if l.tokensPerThread = tokens; tokens > 1 {
		l.tiles = num.CeilDiv(l.tiles, tokens*whole) * whole
		l.tokenStride = l.tiles * launch.BlockThreads / l.units
		l.tokensPerThread = num.CeilDiv(l.tokens, l.tokenStride)
	}
}

// groups divides the rows of a rotation into groups: a single group if the strides allow it.
func (p *Program) groups(r *rotation, differ bool) rowGroups {
	g := rowGroups{number: p.BatchSize, rows: r.heads, in: [2]int64{r.in.batch, r.in.head}, out: [2]int64{r.out.batch, r.out.head}}
	switch {
	case differ: // the token index includes the batch
		g.number = 1
	case g.number == 1 || g.rows*g.in[1] == g.in[0] && g.rows*g.out[1] == g.out[0]:
		g.number, g.rows = 1, g.number*g.rows
	case g.number > g.rows:
		g.number, g.rows = g.rows, g.number
		slices.Reverse(g.in[:])
		slices.Reverse(g.out[:])
	}
	return g
}

// maxVectorBytes is the longest access in bytes. A thread holds 16 bytes of a row: one vector, or
// two if the members of pairs are apart.
func (p *Program) maxVectorBytes() int64 {
	if p.Pairing == "half" {
		return 8
	}
	return 16
}

// vectorElements is the number of elements of the longest access that every row can be divided
// into: maxVectorBytes, 8 bytes or one element.
func (p *Program) vectorElements(args []tensor.Tensor, rotations []rotation) int64 {
	size := p.DType.Size()
	whole := p.pairs
	if p.Pairing == "interleaved" {
		whole *= 2
	}
	for bytes := p.maxVectorBytes(); bytes >= 8; bytes /= 2 {
		v := bytes / size
		fits := v > 1 && p.RotaryStart%v == 0 && whole%v == 0 && p.HeadDim%v == 0
		for i := range rotations {
			r := &rotations[i]
			fits = fits && p.isVectorizable(&args[r.input], &r.in, v, true) && p.isVectorizable(&args[r.output], &r.out, v, false)
		}
		if fits {
			return v
		}
	}
	return 1
}

// isVectorizable reports whether rows consist of aligned vectors of v elements. An expanded input,
// of stride 0, is too.
func (p *Program) isVectorizable(t *tensor.Tensor, rows *rowLayout, v int64, input bool) bool {
	if input && rows.step == 0 {
		return true
	}
	for d, extent := range t.Extents() {
		last := d == int(t.NDim)-1
		if last && t.Strides[d] != 1 || !last && extent > 1 && t.Strides[d]%v != 0 {
			return false
		}
	}
	return t.Data%uintptr(v*p.DType.Size()) == 0
}

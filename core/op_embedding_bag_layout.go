package core

import "math/bits"

// Geometry of cuda/embedding_bag*.cuh.
const (
	bagUnit        = 64       // rows and entries of a unit, at most, or half of it
	bagCache       = 24 << 20 // bytes of dy that stay in the level-2 cache while dweight passes through it
	bagChunk       = 32       // kChunk
	bagTile        = 2048     // kTile
	bagDigitBits   = 8        // of kDigits
	bagGroup       = 32       // kGroup
	bagStretch     = 32       // kStretch
	bagCollected   = 4        // kCollected
	bagSortBlocks  = 1024     // at most; bagGroup groups
	bagChunkBlocks = 3        // of a multiprocessor, that sum chunks beside the rows
	bagLongBlocks  = 4        // of a multiprocessor
	bagTopChunks   = 64       // chunks of a level that need no larger ones
	bagFewRows     = 255      // kNoRow: rows of a block, at most
	bagFewBlocks   = 2        // of a multiprocessor
)

// passes of the sort; what counts nowhere is a row behind the last one.
func (p *bagProgram) passes() int64 {
	return max(1, ceil(int64(bits.Len64(uint64(p.NumEmbeddings))), bagDigitBits))
}

func (p *bagProgram) digit() int64 {
	return ceil(int64(bits.Len64(uint64(p.NumEmbeddings))), p.passes())
}

// sortGrid is how many blocks sort, and how many tiles each has.
func (p *bagProgram) sortGrid() (blocks, tiles int64) {
	all := ceil(p.TotalIndices, bagTile)
	tiles = max(1, ceil(all, bagSortBlocks))
	return ceil(all, tiles), tiles
}

// groupTotals is how many counters the groups of blocks have in a pass.
func (p *bagProgram) groupTotals() int64 {
	blocks, _ := p.sortGrid()
	return ceil(blocks, bagGroup) << bagDigitBits
}

// unit is how many rows and entries, together, the same threads go through one after the other: few where there is little to share out,
// and where entries add little to the writes, which are the more in order the fewer rows a unit has.
func (p *bagProgram) unit() int64 {
	size, vectors := int64(bagUnit), ceil(p.EmbeddingDim*p.DType.Size(), 16)
	if p.Mode == "max" {
		size /= 2
	}
	for size > 1 && (p.NumEmbeddings+p.TotalIndices)*vectors < size*int64(p.units)*threadsPerSM {
		size /= 2
	}
	return size
}

// unitCount is how many units there are.
func (p *bagProgram) unitCount() int64 { return ceil(p.NumEmbeddings+p.TotalIndices, p.unit()) }

// chunks of a level, of bagChunk^level entries.
func (p *bagProgram) chunks(level int64) int64 {
	n := p.TotalIndices
	for range level {
		n /= bagChunk
	}
	return n
}

func (p *bagProgram) levels() (n int64) {
	for p.chunks(n+1) > 0 && (n == 0 || p.chunks(n) > bagTopChunks) {
		n++
	}
	return n
}

// parts is how many chunks there may be on all levels.
func (p *bagProgram) parts() (n int64) {
	for level := range p.levels() {
		n += p.chunks(level + 1)
	}
	return n
}

// suitsFew reports that one launch is quicker than a sort: no block has much to do, even where all positions hold one row.
func (p *bagProgram) suitsFew() bool {
	slices := ceil(p.EmbeddingDim*p.DType.Size(), 32*16)
	return p.NumEmbeddings <= bagFewRows*bagFewBlocks*int64(p.units) && p.TotalIndices*slices <= bagTile
}

// fewRows is how many rows a block has.
func (p *bagProgram) fewRows() int64 {
	return clamp(ceil(p.NumEmbeddings, bagFewBlocks*int64(p.units)), 1, bagFewRows)
}

// bagLayout is where things lie in the workspace, in bytes.
type bagLayout struct {
	counts, totals, bags, counted, winners, won, bounds, lists, partial int64
	entries                                                             [2]int64
	size                                                                int64
}

func (p *bagProgram) layout() (l bagLayout) {
	take := func(n, size int64) int64 {
		at := l.size
		l.size += ceil(n*size, workspaceAlignment) * workspaceAlignment
		return at
	}
	blocks, _ := p.sortGrid()
	if p.TotalIndices == 0 || p.few {
		return l
	}
	l.entries[0], l.entries[1] = take(p.TotalIndices, 8), take(p.TotalIndices, 8)
	if p.Mode == "mean" {
		l.counted = take(p.NumBags, 4)
	}
	l.totals = take(p.passes()*p.groupTotals(), 4) // behind counted: both begin as zeros
	l.counts = take(blocks<<bagDigitBits, 4)
	l.bounds = take(p.unitCount()+1, 8)
	l.lists = take(2+4*p.chunks(1)+p.mostSlices()*p.parts(), 4)
	switch p.Mode {
	case "sum":
		l.bags = take(p.TotalIndices, 4)
	case "max":
		words := p.TotalIndices * ceil(p.EmbeddingDim, 32)
		l.bags, l.winners, l.won = take(p.TotalIndices, 4), take(words, 4), take(words, 4)
	}
	l.partial = take(p.parts()*p.EmbeddingDim, p.DType.Accumulator().Size())
	return l
}

// mostSlices is how many slices a row may be cut into, however its operands lie: of 32 columns, or of half of 32 accesses of 16 bytes.
func (p *bagProgram) mostSlices() int64 {
	return max(ceil(p.EmbeddingDim, 32), 2*ceil(p.EmbeddingDim*p.DType.Size(), 32*16))
}

func (p *bagProgram) workspace() int64 {
	if !p.cuda {
		return 0
	}
	return p.layout().size
}

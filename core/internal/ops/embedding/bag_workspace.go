package embedding

import (
	"math/bits"

	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/num"
)

// This file lays out the workspace of embedding bags on a GPU.

// Tuned numbers of the launches; the kernels know those in args.go.
const (
	bagUnit               = 64       // largest unit in rows plus entries; half of it in mode max
	BagL2Bytes            = 24 << 20 // bytes of dy that stay in the level-2 cache while dweight passes through it
	BagSortBlocks         = 1024     // at most; bagGroup groups
	bagChunkBlocks        = 3        // blocks per SM that sum chunks while others sum rows
	bagLongBlocks         = 4        // blocks per SM of the kernel for long rows
	BagTopChunks          = 64       // chunks of a level that need no larger ones
	BagSingleLaunchBlocks = 2        // blocks per SM of the single launch
)

// Passes is the number of passes of the radix sort. Positions that do not count sort as row
// NumEmbeddings.
func (p *BagProgram) Passes() int64 {
	return max(1, num.CeilDiv(int64(bits.Len64(uint64(p.NumEmbeddings))), BagDigitBits))
}

// Digit is the number of bits per pass of the radix sort.
func (p *BagProgram) Digit() int64 {
	return num.CeilDiv(int64(bits.Len64(uint64(p.NumEmbeddings))), p.Passes())
}

// sortGrid is the number of blocks of the sort, and of tiles per block.
func (p *BagProgram) sortGrid() (blocks, tiles int64) {
	all := num.CeilDiv(p.TotalIndices, BagTile)
	tiles = max(1, num.CeilDiv(all, BagSortBlocks))
	return num.CeilDiv(all, tiles), tiles
}

// groupTotals is the number of digit counters of the groups of blocks in a pass.
func (p *BagProgram) groupTotals() int64 {
	blocks, _ := p.sortGrid()
	return num.CeilDiv(blocks, BagGroup) << BagDigitBits
}

// unit is the size of a work item in rows plus entries, which the same threads process in sequence
// (merge-path partition). Small problems use smaller units, to fill the SMs.
func (p *BagProgram) unit() int64 {
	size, vectors := int64(bagUnit), num.CeilDiv(p.EmbeddingDim*p.DType.Size(), 16)
	if p.Mode == "max" {
		size /= 2
	}
	for size > 1 && p.unitWork()*vectors < size*int64(p.numSMs)*launch.ThreadsPerSM {
		size /= 2
	}
	return size
}

// unitWork is the number of rows and entries that units share, or of entries if other rows are left
// alone.
func (p *BagProgram) unitWork() int64 {
	if p.writesOnlyEntries() {
		return p.TotalIndices
	}
	return p.NumEmbeddings + p.TotalIndices
}

// unitCount is the number of units.
func (p *BagProgram) unitCount() int64 { return num.CeilDiv(p.unitWork(), p.unit()) }

// Chunks is the number of chunks of a level, each of BagChunk^level entries.
func (p *BagProgram) Chunks(level int64) int64 {
	n := p.TotalIndices
	for range level {
		n /= BagChunk
	}
	return n
}

// Levels is the number of levels of chunks.
func (p *BagProgram) Levels() (n int64) {
	for p.Chunks(n+1) > 0 && (n == 0 || p.Chunks(n) > BagTopChunks) {
		n++
	}
	return n
}

// TotalChunks is the number of chunks of all levels.
func (p *BagProgram) TotalChunks() (n int64) {
	for level := range p.Levels() {
		n += p.Chunks(level + 1)
	}
	return n
}

// suitsSingleLaunch reports whether one launch is faster than a sort. The bounds keep the work of a
// block small even if all positions have the same row.
func (p *BagProgram) suitsSingleLaunch() bool {
	slices := num.CeilDiv(p.EmbeddingDim*p.DType.Size(), 32*16)
	return p.NumEmbeddings <= BagSingleLaunchRows*BagSingleLaunchBlocks*int64(p.numSMs) && p.TotalIndices*slices <= BagTile
}

// rowsPerBlock is the number of rows of a block of the single launch.
func (p *BagProgram) rowsPerBlock() int64 {
	return num.Clamp(num.CeilDiv(p.NumEmbeddings, BagSingleLaunchBlocks*int64(p.numSMs)), 1, BagSingleLaunchRows)
}

// bagLayout is the layout of the workspace as offsets in bytes. positionArgmax and entryArgmax hold
// one bit per column for each position and for each sorted entry: the row of the entry is the
// argmax of its bag.
type bagLayout struct {
	Counts, Totals, bags, bagCounts, positionArgmax, entryArgmax, bounds, Lists, Partial int64
	entries                                                                              [2]int64
	Size                                                                                 int64
}

// Layout is the layout of the workspace.
func (p *BagProgram) Layout() (l bagLayout) {
	take := func(n, size int64) int64 {
		at := l.Size
		l.Size += num.CeilDiv(n*size, launch.WorkspaceAlignment) * launch.WorkspaceAlignment
		return at
	}
	blocks, _ := p.sortGrid()
	if p.TotalIndices == 0 || p.singleLaunch {
		return l
	}
	l.entries[0], l.entries[1] = take(p.TotalIndices, 8), take(p.TotalIndices, 8)
	if p.Mode == "mean" {
		l.bagCounts = take(p.NumBags, 4)
	}
	l.Totals = take(p.Passes()*p.groupTotals(), 4) // right after bagCounts: one launch clears both
	l.Counts = take(blocks<<BagDigitBits, 4)
	l.bounds = take(p.unitCount()+1, 8)
	l.Lists = take(2+4*p.Chunks(1)+p.MaxSlices()*p.TotalChunks(), 4)
	switch p.Mode {
	case "sum":
		if !p.bagless() {
			l.bags = take(p.TotalIndices, 4)
		}
	case "max":
		words := p.TotalIndices * num.CeilDiv(p.EmbeddingDim, 32)
		l.bags, l.positionArgmax, l.entryArgmax = take(p.TotalIndices, 4), take(words, 4), take(words, 4)
	}
	l.Partial = take(p.TotalChunks()*p.EmbeddingDim, p.DType.Accumulator().Size())
	return l
}

// MaxSlices is the largest number of slices of a row for any operand layout: slices of 32 columns,
// or of 16 accesses of 16 bytes.
func (p *BagProgram) MaxSlices() int64 {
	return max(num.CeilDiv(p.EmbeddingDim, 32), 2*num.CeilDiv(p.EmbeddingDim*p.DType.Size(), 32*16))
}

// Workspace implements ops.Program.
func (p *BagProgram) Workspace() int64 {
	if !p.cuda {
		return 0
	}
	return p.Layout().Size
}

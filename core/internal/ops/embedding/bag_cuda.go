package embedding

import (
	"fmt"
	"math"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file selects and launches the kernels of embedding bags.

// BagProgram is the program of an EmbeddingBagBackward or an EmbeddingBackward. Every sum is added
// in the order of positions, so all kernels are deterministic.
type BagProgram struct {
	EmbeddingBagBackward
	operands     bagOperands
	many         *EmbeddingBags // several tables, which the descriptor has as one; nil: one table
	firstElement int64          // CPU: of the table among the elements of several tables
	padding      int64          // row that does not count, or -1
	cuda         bool
	Wide         bool // CPU: 64-bit rows, bags and positions
	singleLaunch bool // GPU: one launch, in which every block reads all positions; no sort
	numSMs       int
}

func (d EmbeddingBagBackward) compile(problem *ops.Problem, numSMs int, cuda bool, preference ops.Preference) (ops.Program, error) {
	if cuda {
		if err := d.checkDeviceCounts(problem.Op()); err != nil {
			return nil, err
		}
	}
	return d.program(problem, nil, numSMs, cuda, preference)
}

// writesOnlyEntries reports whether rows without entries are left alone.
func (p *BagProgram) writesOnlyEntries() bool { return p.learns() || p.many != nil }

// program selects the kernel.
func (d EmbeddingBagBackward) program(problem *ops.Problem, many *EmbeddingBags, numSMs int, cuda bool, preference ops.Preference) (ops.Program, error) {
	p := &BagProgram{EmbeddingBagBackward: d, operands: operandsOf(problem), many: many, padding: d.Padding(), cuda: cuda, numSMs: numSMs, Wide: d.needsWide()}
	fits := cuda && 0 < d.TotalIndices && d.TotalIndices <= BagTile && !p.writesOnlyEntries()
	if preference.Kernel == KernelSingleLaunch && !fits {
		wanted := fmt.Sprintf("%q, unless one table has 1 to %d indices on a GPU and no optimizer", KernelSorted, BagTile)
		return nil, errs.New(errs.Unsupported, problem.Op(), "preference.kernel", wanted, fmt.Sprintf("%q", KernelSingleLaunch), "")
	}
	limit, free := preference.MaxWorkspace, preference.Kernel == ""
	p.singleLaunch = fits && (preference.Kernel == KernelSingleLaunch || free && (p.suitsSingleLaunch() || limit != nil && *limit < p.Layout().Size))
	return p, nil
}

// checkDeviceCounts refuses counts that do not fit the entries of the sort on a GPU, pairs of
// 32-bit integers.
func (d EmbeddingBagBackward) checkDeviceCounts(op string) error {
	counts := []string{"num_embeddings", "embedding_dim", "num_bags", "total_indices"}
	if err := ops.CheckCounts(op, counts, d.NumEmbeddings, d.EmbeddingDim, d.NumBags, d.TotalIndices); err != nil {
		return err
	}
	if n := d.NumBags * d.EmbeddingDim; d.Mode == "max" && n > math.MaxUint32 {
		return errs.New(errs.Unsupported, op, "num_bags * embedding_dim", "at most 2^32 - 1 in mode max on a GPU", fmt.Sprint(n), "split the bags")
	}
	return nil
}

// Kernel implements ops.Program.
func (p *BagProgram) Kernel() string {
	if p.singleLaunch {
		return KernelSingleLaunch
	}
	return KernelSorted
}

// InPlace implements ops.Program.
func (p *BagProgram) InPlace([]tensor.Tensor, int) bool { return false }

// bagLaunch holds the launch arguments of a kernel apart from the operands and the workspace
// layout.
type bagLaunch struct {
	from, to, pass, tiles      int64
	tail                       int64 // bytes to clear after the tiles
	lanes, slices, chunkBlocks int64
	wide, plain                bool
}

// bagRun is one run on a GPU. err is the first error; later launches are skipped.
type bagRun struct {
	*BagProgram
	bagLayout
	args []tensor.Tensor
	base uintptr // of the workspace
	q    *launch.Queue
	err  error
}

// Device implements ops.Program.
func (p *BagProgram) Device(args []tensor.Tensor, workspace uintptr, q *launch.Queue) error {
	args = p.operands.of(args)
	r := &bagRun{BagProgram: p, bagLayout: p.Layout(), args: args, base: workspace, q: q}
	if args[BagDsample].Given() {
		l := r.rowLaunch(bagWeight)
		r.launch(symbolDots, num.CeilDiv(num.CeilDiv(p.TotalIndices, BagStretch)*l.lanes, launch.BlockThreads), l)
	}
	switch dweight := &args[bagDweight]; {
	case p.learns() && (dweight.Empty() || p.TotalIndices == 0):
		r.launch(symbolAdvance, 1, bagLaunch{})
	case !dweight.Given() || dweight.Empty():
	case p.many != nil && p.TotalIndices == 0:
		r.clearTables()
	case p.TotalIndices == 0 && r.rowLaunch(bagDweight).wide && (dweight.Shape[0] == 1 || dweight.Strides[0] == dweight.Shape[1]):
		words := p.NumEmbeddings * p.EmbeddingDim * p.DType.Size() / 16
		r.launch(symbolClear, num.CeilDiv(words, launch.BlockThreads), bagLaunch{tiles: words, wide: true})
	case p.singleLaunch:
		l := r.rowLaunch(bagDweight)
		l.tiles = p.rowsPerBlock()
		r.launch(symbolSingleLaunch, num.CeilDiv(p.NumEmbeddings, l.tiles), l)
	default:
		if p.many != nil && !p.learns() {
			r.clearTables()
		}
		r.sumRows(r.sort())
	}
	return r.err
}

// clearTables zero-fills the gradients of all tables, in which other kernels write the rows that
// have entries.
func (r *bagRun) clearTables() {
	dweight := &r.args[bagDweight]
	l := bagLaunch{wide: true, tail: dweight.Shape[0] * dweight.DType.Size()}
	if dweight.Data%16 == 0 {
		l.tiles, l.tail = l.tail/16, l.tail%16
	}
	r.launch(symbolClear, num.CeilDiv(max(l.tiles, l.tail), launch.BlockThreads), l)
}

// sort sorts the positions by row (radix sort) and returns the offset of the sorted entries in the
// workspace.
func (r *bagRun) sort() (sorted int64) {
	if r.TotalIndices == 0 {
		return 0
	}
	blocks, tiles := r.sortGrid()
	from, to, single := r.entries[0], r.entries[1], blocks == 1 && tiles == 1
	zeros := bagLaunch{to: r.Totals}
	if r.Mode == "mean" {
		zeros.to = r.bagCounts
	}
	if zeros.tiles = (r.bagLayout.Counts - zeros.to) / 16; !single || r.Mode == "mean" {
		r.launch(symbolClear, num.CeilDiv(zeros.tiles, launch.BlockThreads), zeros)
	}
	if single {
		r.launch(symbolSort, 1, bagLaunch{to: from, tiles: r.Passes()})
		return from
	}
	r.launch(symbolKeys, blocks, bagLaunch{to: from, tiles: tiles})
	for pass := range r.Passes() {
		l := bagLaunch{from: from, to: to, pass: pass, tiles: tiles}
		if pass > 0 {
			r.launch(symbolCount, blocks, l)
		}
		r.launch(symbolScatter, blocks, l)
		from, to = to, from
	}
	return from
}

// sumRows writes dweight from the sorted entries.
func (r *bagRun) sumRows(sorted int64) {
	l := r.rowLaunch(bagDweight)
	l.from = sorted
	if r.halvesSlices(l) {
		l.lanes, l.slices = l.lanes/2, 2*l.slices
	}
	threads := l.slices * l.lanes // per row
	l.chunkBlocks = min(num.CeilDiv(r.Chunks(1)*threads, launch.BlockThreads), bagChunkBlocks*int64(r.numSMs))
	if r.TotalIndices > 0 {
		if r.Mode == "max" {
			r.launch(symbolArgmax, num.CeilDiv(r.TotalIndices, launch.BlockThreads), l)
			r.launch(symbolCollect, num.CeilDiv(r.TotalIndices, BagGathered*launch.BlockThreads), l)
		}
		bounds := max(r.unitCount()+1, r.Chunks(1))
		r.launch(symbolBounds, num.CeilDiv(bounds, launch.BlockThreads), l)
	}
	sum, long := symbolSumSorted, symbolLongRows
	switch max := r.Mode == "max"; {
	case r.writesOnlyEntries() && max:
		sum, long = symbolUpdateArgmax, symbolUpdateLongRows
	case r.writesOnlyEntries():
		sum, long = symbolUpdateSorted, symbolUpdateLongRows
	case max:
		sum = symbolSumArgmax
	}
	if r.isRowwise() { // a group of threads has all slices of a row
		threads = l.lanes
	}
	r.launch(sum, l.chunkBlocks+num.CeilDiv(r.unitCount()*threads, launch.BlockThreads), l)
	if r.Levels() > 0 {
		r.launch(long, min(num.CeilDiv(r.Chunks(1)*threads, launch.BlockThreads), bagLongBlocks*int64(r.numSMs)), l)
	}
}

// halvesSlices reports whether the part of dy under one slice of columns exceeds the L2 cache, and
// fits if slices are half as wide. In mode max this does not pay: most entries contribute to few
// columns, and each slice reads them again.
func (r *bagRun) halvesSlices(l bagLaunch) bool {
	size := r.NumBags * l.lanes * 16
	return l.wide && r.many == nil && !r.isRowwise() && l.lanes == 32 && size > BagL2Bytes && size <= 2*BagL2Bytes && r.TotalIndices > 4*r.NumBags && r.Mode != "max"
}

// rowLaunch divides a row of dy, and of another matrix, among threads: in 16-byte accesses if both
// matrices allow it.
func (r *bagRun) rowLaunch(matrix int) (l bagLaunch) {
	v := 16 / r.DType.Size()
	dy, other := &r.args[bagDy], &r.args[matrix]
	l.wide = r.alignedStates() && alignedRows(dy, v)
	if r.many != nil {
		l.wide = l.wide && r.many.IsAligned && other.Data%16 == 0
	} else {
		l.wide = r.EmbeddingDim%v == 0 && alignedRows(other, v) && (l.wide || r.alignedStates() && !dy.Empty() && dy.Strides[1] == 0)
	}
	if !l.wide {
		v = 1
	}
	l.plain = l.wide && dy.Strides[1] == 1 && r.Mode == "sum" && !r.ScaleGradByFreq && !r.args[BagSampleWeights].Given()
	vectors := num.CeilDiv(r.EmbeddingDim, v)
	l.lanes = min(32, num.Pow2(vectors))
	l.slices = max(1, num.CeilDiv(vectors, l.lanes))
	return l
}

// alignedRows reports whether each row is dense and begins at a multiple of v elements.
func alignedRows(t *tensor.Tensor, v int64) bool {
	return t.Empty() || t.Strides[1] == 1 && (t.Shape[0] == 1 || t.Strides[0]%v == 0) && t.Data%uintptr(v*t.DType.Size()) == 0
}

// alignedStates reports whether the states of an optimizer begin at a multiple of 16 bytes.
func (r *bagRun) alignedStates() bool {
	return r.isRowwise() || r.args[bagState].Data%16 == 0 && r.args[bagState2].Data%16 == 0
}

func (r *bagRun) launch(kernel int, grid int64, l bagLaunch) {
	if r.err != nil {
		return
	}
	r.q.Begin()
	a := launch.Append[BagArgs](r.q)
	r.setOperands(a)
	r.q.SetAddress(&a.workspace, launch.WorkspaceOperand, r.base)
	a.rows, a.columns, a.bags, a.total, a.padding = r.NumEmbeddings, r.EmbeddingDim, r.NumBags, r.TotalIndices, r.padding
	a.onlyEntries = flagWord(r.writesOnlyEntries())
	if r.many != nil {
		a.numTables, a.tableBags = r.many.NumTables, r.many.NumBags
		a.weightColumn = 1
		if a.dyStep = r.DType.Size(); l.wide {
			a.dyStep = 16
		}
	}
	a.last, a.mean, a.byFrequency, a.bagless = flagWord(r.IncludeLastOffset), flagWord(r.Mode == "mean"), flagWord(r.ScaleGradByFreq), flagWord(r.bagless())
	a.positions = flagWord(r.args[BagSampleWeights].Given() || r.Mode == "max")
	a.fromAt, a.toAt, a.countsAt, a.totalsAt = l.from, l.to, r.Counts, r.Totals+l.pass*r.groupTotals()*4
	a.shift, a.bits, a.tiles, a.tail = l.pass*r.Digit(), r.Digit(), l.tiles, l.tail
	a.bagsAt, a.countedAt, a.argmaxAt, a.sortedArgmaxAt = r.bags, r.bagCounts, r.positionArgmax, r.entryArgmax
	a.unit, a.boundsAt = r.unit(), r.bounds
	a.partialAt, a.chunkCapacity, a.levels, a.chunkBlocks, a.listsAt = r.Partial, r.TotalChunks(), r.Levels(), l.chunkBlocks, r.Lists
	a.lanes, a.slices, a.wide, a.plain = l.lanes, l.slices, flagWord(l.wide), flagWord(l.plain)
	r.err = r.q.Submit(kernel, grid, launch.BlockThreads)
}

// setOperands stores the addresses of the operands, their strides, and the element width of those
// of several dtypes.
func (r *bagRun) setOperands(a *BagArgs) {
	address := func(i int, field *launch.Address) {
		if number := r.operands[i]; number != noOperand {
			r.q.SetAddress(field, number, r.args[i].Data)
		}
	}
	address(bagDy, &a.dy)
	address(bagIndices, &a.indices)
	address(bagOffsets, &a.offsets)
	address(BagSampleWeights, &a.sampleWeights)
	address(BagMaxIndices, &a.maxIndices)
	address(bagWeight, &a.weight)
	address(bagDweight, &a.dweight)
	address(BagDsample, &a.dsample)
	address(bagOptions, &a.options)
	address(bagState, &a.state)
	address(bagState2, &a.state2)
	address(bagTables, &a.tables)
	a.byRow, a.stochastic = flagWord(r.isRowwise()), flagWord(r.StochasticRounding)
	matrix := func(i int, row, column *int64) { *row, *column = r.args[i].Strides[0], r.args[i].Strides[1] }
	matrix(bagDy, &a.dyBag, &a.dyColumn)
	matrix(BagMaxIndices, &a.maxBag, &a.maxColumn)
	matrix(bagWeight, &a.weightRow, &a.weightColumn)
	matrix(bagDweight, &a.dweightRow, &a.dweightColumn)
	a.dyStep = a.dyBag * r.DType.Size()
	a.indexStep, a.offsetStep, a.sampleWeightStep = r.args[bagIndices].Strides[0], r.args[bagOffsets].Strides[0], r.args[BagSampleWeights].Strides[0]
	a.indexWide, a.offsetWide, a.maxWide = r.args[bagIndices].DType.Size()/8, r.args[bagOffsets].DType.Size()/8, r.args[BagMaxIndices].DType.Size()/8
	a.sampleWeightSingle = flagWord(r.args[BagSampleWeights].DType == tensor.Float32)
	dsample := sampleRows(&r.args[BagDsample])
	a.dsampleRow, a.dsampleColumn, a.dsampleSingle = dsample.Strides[0], dsample.Strides[1], flagWord(dsample.DType == tensor.Float32)
	if dsample.Shape[0] > 1 {
		a.dsampleWidth = dsample.Shape[1]
	}
}

func flagWord(on bool) int64 {
	if on {
		return 1
	}
	return 0
}

package elementwise

import (
	"math"
	"math/bits"
	"slices"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Launch configuration of the CUDA kernels of the engine. The number of chunks, which decides the
// order of additions, depends on the shape and the number of SMs only; the rest also depends on
// strides and addresses.
const (
	rowBlocksPerSM     = 64  // blocks per SM that share few long sums of rows
	columnBlocksPerSM  = 3   // blocks per SM that share few long sums of columns
	minSplitVectors    = 256 // 16-byte vectors of a sum from which on it may be split
	maxShortRowVectors = 16  // vectors of a short row
)

// KernelSet is the kernels of an Op for one choice of operands.
type KernelSet struct {
	Name    string // prefix of the symbols
	In, Out []int
	Unroll  unroll
}

// unroll is the number of vectors that a thread of a kernel loads before it uses them: of map, rows
// and columns, and of map and rows where rows are short; 0 if there is no such kernel.
type unroll struct{ Mapped, Rows, Columns, Short int64 }

// Symbols are the kernels of each set, then the combine kernel, which adds partial sums.
func (m *mapReduce) Symbols() (list []launch.Symbol) {
	for _, set := range m.op.Kernels {
		for _, kernel := range m.kernels() {
			if kernel == "map" || len(m.passes) > 0 || m.op.IsByColumn() {
				list = append(list, launch.Symbol{Image: m.family.Image, Name: set.Name + "_" + kernel + "_" + m.element.Suffix()})
			}
		}
	}
	if len(m.passes) > 0 {
		list = append(list, launch.Symbol{Image: "mapreduce", Name: "combine_" + m.element.Accumulator().Suffix()})
	}
	return list
}

// kernelIndex is the index of a kernel in Symbols.
func (m *mapReduce) kernelIndex(set int, kernel string) int {
	if len(m.passes) == 0 {
		return set
	}
	kernels := m.kernels()
	return set*len(kernels) + slices.Index(kernels, kernel)
}

// vector is the number of elements of a vectorized access.
func (m *mapReduce) vector() int64 { return min(m.op.MaxVector(), 16/m.element.Size()) }

// chooseChunks sets the number of parts that each sum of r is split into, so that few long sums
// fill the device.
func (m *mapReduce) chooseChunks(r *reduction) {
	s := cpu.Space{N: len(m.shape)}
	copy(s.Extent[:], m.shape)
	for i, stride := range tensor.Compact(m.shape) {
		s.Stride[0][i] = stride
	}
	a := s.Arrange(r.dims, true, r.columns, 0)
	kept, reduced, columns := a.Counts()
	u := m.op.Kernels[len(m.op.Kernels)-1].Unroll
	if r.columns {
		vectors := num.CeilDiv(columns, m.vector())
		lanes := columnLanes(vectors, reduced)
		tiles := max(1, num.CeilDiv(vectors, lanes)*kept)
		r.chunks = num.Clamp(columnBlocksPerSM*int64(m.numSMs)/tiles, 1, max(1, num.CeilDiv(reduced, launch.BlockThreads/lanes*u.Columns)))
		return
	}
	inner := a.Extent[a.N-1]
	shape := m.configureRows(kept, num.CeilDiv(inner, m.vector()), reduced/max(1, inner), u.Rows, true, false)
	threads := max(1, kept*shape.group)
	if shape.total > minSplitVectors && threads < launch.ThreadsPerSM*int64(m.numSMs) {
		r.chunks = max(1, min(num.CeilDiv(rowBlocksPerSM*SmallBlock*int64(m.numSMs), threads), shape.workItems))
	}
}

// rowConfig is the configuration of the rows kernel: `group` threads for each part of a sum,
// `lanes` of them along the fastest dimension. A work item is the data that a group loads at once.
type rowConfig struct{ total, group, lanes, tiles, workItems int64 }

func (m *mapReduce) configureRows(kept, vectors, reduced, unrolled int64, vectorized, strided bool) rowConfig {
	r := rowConfig{total: vectors * reduced}
	busy := min(64, max(num.Pow2(num.CeilDiv(r.total, 8)), min(4, num.Pow2(num.CeilDiv(r.total, 4))))) // several vectors per thread
	fill := num.Pow2(num.CeilDiv(launch.ThreadsPerSM*int64(m.numSMs), max(1, kept)))                   // full SMs
	r.group = min(SmallBlock, max(busy, fill), num.Pow2(num.CeilDiv(r.total, unrolled)))
	if !vectorized {
		r.group = max(r.group, min(32, num.Pow2(vectors)))
	}
	if strided && kept >= 1024 {
		r.group = 1
	}
	r.lanes = r.group
	if reduced != 1 {
		r.lanes = min(r.group, bestLanes(usefulThreads(vectors, unrolled, vectorized), r.group))
	}
	r.tiles = num.CeilDiv(vectors, r.lanes*unrolled)
	r.workItems = r.tiles * num.CeilDiv(reduced, r.group/r.lanes)
	return r
}

// usefulThreads is the number of threads that have work along a row of vectors.
func usefulThreads(vectors, unrolled int64, vectorized bool) int64 {
	if vectorized {
		return num.CeilDiv(vectors, unrolled)
	}
	return vectors
}

// bestLanes is the power of two, at most `most`, that leaves the fewest threads idle. The largest
// one wins if at most an eighth of the threads idle.
func bestLanes(vectors, most int64) int64 {
	best, bestIdle := int64(1), int64(math.MaxInt64)
	for lanes := min(8, num.Pow2(vectors)); lanes <= most; lanes *= 2 {
		idle := num.CeilDiv(vectors, lanes)*lanes - vectors
		if idle <= bestIdle || idle <= vectors/8 {
			best, bestIdle = lanes, idle
		}
	}
	return best
}

// columnLanes is the number of threads of a block along columns. The other dimension of the block
// shares the reduced indices.
func columnLanes(vectors, reduced int64) int64 {
	tall := num.Clamp(num.Pow2(reduced/32+1)/2, 1, 8)
	return bestLanes(vectors, launch.BlockThreads/tall)
}

// Device implements ops.Program.
func (m *mapReduce) Device(args []tensor.Tensor, workspace uintptr, q *launch.Queue) error {
	args = m.unpacked(args)
	space := m.space(args)
	passes, n := m.plan(args)
	for i := range n {
		p := &passes[i]
		if p.reduction == nil && m.op.IsByColumn() {
			p.reduction = &m.storePass
		}
		s := m.arrange(p, &space)
		k := devicePass{mapReduce: m, pass: p, args: args, space: &s, workspace: workspace, q: q}
		if err := k.launch(); err != nil {
			return err
		}
	}
	return nil
}

// devicePass is one pass over the operands on a GPU.
type devicePass struct {
	*mapReduce
	*pass
	args           []tensor.Tensor
	space          *cpu.Space
	workspace      uintptr
	q              *launch.Queue
	kernelSetIndex int // the kernels that take the operands of the pass
}

// launchConfig holds the launch arguments of a kernel apart from the operands: the numbers of kept
// and of reduced indices; `group` threads for each part of a sum, `lanes` of them along the fastest
// dimension; tiles along that dimension; chunks of a sum, of `chunk` work items each; and the
// address of the partial sums, 0 if sums are not split. isShort: a thread has a vector of each of
// several short rows.
type launchConfig struct {
	keptSize, reducedSize, group, lanes, tiles, chunks, chunk int64
	isShort                                                   bool
	partial                                                   uintptr
}

func (k *devicePass) launch() error {
	k.kernelSetIndex = 0
	for !k.covers(&k.op.Kernels[k.kernelSetIndex]) { // the last set takes every operand
		k.kernelSetIndex++
	}
	kept, reduced, columns := k.space.Counts()
	inner := k.inner()
	vectors := num.CeilDiv(inner, k.vector())
	switch {
	case k.reduction == nil:
		if kept == 0 {
			return nil
		}
		return k.launchMap(kept/inner, vectors)
	case k.space.Columns:
		return k.launchColumns(kept, reduced, columns, vectors)
	default:
		return k.launchRows(kept, vectors, reduced/max(inner, 1))
	}
}

// inner is the extent of the fastest dimension.
func (k *devicePass) inner() int64 {
	if k.space.N == 0 {
		return 1
	}
	return k.space.Extent[k.space.N-1]
}

// covers reports whether a kernel set takes every operand of the pass.
func (k *devicePass) covers(set *KernelSet) bool {
	missing := uint16(k.inputs) | uint16(k.stored|k.summed)<<k.op.inputs
	for _, operands := range [...][]int{set.In, set.Out} {
		for _, i := range operands {
			missing &^= 1 << i
		}
	}
	return missing == 0
}

func (k *devicePass) launchMap(outer, vectors int64) error {
	u := k.op.Kernels[k.kernelSetIndex].Unroll.Mapped
	l := launchConfig{keptSize: outer, reducedSize: 1, lanes: SmallBlock, chunks: 1}
	if k.space.N > 1 {
		l.lanes = bestLanes(usefulThreads(vectors, u, k.vectorized()), SmallBlock)
		if k.outputsStrided() {
			l.lanes = 1
		}
		if k.inputsStrided() {
			l.lanes = min(l.lanes, 8)
		}
	}
	l.tiles = num.CeilDiv(vectors, l.lanes*u)
	rows := SmallBlock / l.lanes // of a CTA
	if k.hasShortRows(vectors) {
		l.isShort, l.lanes, l.tiles = true, num.Pow2(vectors), 1
		rows = SmallBlock / l.lanes * k.op.Kernels[k.kernelSetIndex].Unroll.Short
	}
	k.pack(&l)
	return k.q.Submit(k.kernelIndex(k.kernelSetIndex, "map"), l.tiles*num.CeilDiv(outer, rows), SmallBlock)
}

// hasShortRows reports whether a thread of map or rows takes one vector of each of several rows, so
// that the accesses of a warp coalesce. No vector is cut, and at most a quarter of the threads are
// without one. In more than two dimensions the rows of a thread are adjacent along the slowest one.
func (k *devicePass) hasShortRows(vectors int64) bool {
	lanes := num.Pow2(vectors)
	rows := k.op.Kernels[k.kernelSetIndex].Unroll.Short
	return (k.space.N == 2 || k.space.N > 2 && k.space.Extent[0]%rows == 0) && k.vectorized() && k.inner() == vectors*k.vector() &&
		lanes <= maxShortRowVectors && lanes-vectors <= lanes/4
}

func (k *devicePass) launchRows(kept, vectors, reduced int64) error {
	u := k.op.Kernels[k.kernelSetIndex].Unroll
	r := k.configureRows(kept, vectors, reduced, u.Rows, k.vectorized(), k.outputsStrided())
	chunks := min(k.reduction.chunks, max(1, r.workItems))
	l := launchConfig{keptSize: kept, reducedSize: reduced, group: r.group, lanes: r.lanes, tiles: r.tiles, chunk: num.CeilDiv(r.workItems, chunks)}
	l.chunks = max(1, num.CeilDiv(r.workItems, max(1, l.chunk)))
	if l.chunks == 1 && k.space.Kept == 1 && k.space.N == 2 && vectors >= u.Short && k.hasShortRows(vectors) {
		l.isShort, l.lanes = true, num.Pow2(vectors)
		return k.launchSums("rows", &l, num.CeilDiv(kept, SmallBlock/l.lanes*u.Short), SmallBlock, kept)
	}
	return k.launchSums("rows", &l, num.CeilDiv(kept*l.chunks*r.group, SmallBlock), SmallBlock, kept)
}

func (k *devicePass) launchColumns(kept, reduced, columns, vectors int64) error {
	l := launchConfig{keptSize: kept, reducedSize: reduced, lanes: columnLanes(vectors, reduced)}
	height := launch.BlockThreads / l.lanes
	l.tiles = num.CeilDiv(vectors, l.lanes)
	l.chunk = max(1, num.CeilDiv(num.CeilDiv(reduced, k.reduction.chunks), height)*height)
	l.chunks = max(1, num.CeilDiv(reduced, l.chunk))
	if k.summed == 0 {
		k.pack(&l)
		return k.q.Submit(k.kernelIndex(k.kernelSetIndex, "columns"), l.tiles*l.chunks*kept, launch.BlockThreads)
	}
	return k.launchSums("columns", &l, l.tiles*l.chunks*kept, launch.BlockThreads, kept*columns)
}

// launchSums launches a reduction, and then the combine kernel if sums are split into chunks.
func (k *devicePass) launchSums(kernel string, l *launchConfig, grid int64, block uint32, sums int64) error {
	if l.chunks > 1 {
		l.partial = k.workspace
	}
	k.pack(l)
	if err := k.q.Submit(k.kernelIndex(k.kernelSetIndex, kernel), grid, block); err != nil || l.chunks == 1 {
		return err
	}
	height := min(num.Pow2(num.CeilDiv(l.chunks, 4)), 32)
	l.lanes, l.keptSize = min(launch.BlockThreads/height, num.Pow2(sums)), sums
	l.tiles = num.CeilDiv(sums, l.lanes)
	k.packKept(l)
	return k.q.Submit(len(k.op.Kernels)*len(k.kernels()), l.tiles*int64(bits.OnesCount8(k.summed)), launch.BlockThreads)
}

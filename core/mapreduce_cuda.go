package core

import (
	"math"
	"math/bits"
	"slices"
)

// Launch geometry of cuda/mapreduce.cuh. Chunks, which decide how a sum is grouped, follow from the shape and the number of
// multiprocessors alone; the rest also looks at strides and addresses.
const (
	blockThreads  = 256  // of columns, and of kernels elsewhere
	smallBlock    = 128  // threads of a block of map and rows
	threadsPerSM  = 2048 // that fill a multiprocessor
	rowBlocks     = 64   // blocks of a multiprocessor that share a few long sums along the fastest dimension
	columnBlocks  = 3    // and beside it
	smallestSplit = 256  // vectors of a sum that is worth cutting
)

// kernelSet is a group of kernels of an elementOp and the operands of the plan that they take.
type kernelSet struct {
	name    string // what the symbols begin with
	in, out []int
	unroll  unroll
}

// unroll is the number of vectors that a thread has in flight: MAP_UNROLL, ROWS_UNROLL and COLUMNS_UNROLL in cuda/.
type unroll struct{ mapped, rows, columns int64 }

// symbols are the kernels of each set, then the one that adds partial sums.
func (m *mapReduce) symbols() (list []symbol) {
	for _, set := range m.op.sets {
		for _, kernel := range m.family.Kinds[0].Kernels {
			if kernel == "map" || len(m.passes) > 0 {
				list = append(list, symbol{m.family.Image, set.name + "_" + kernel + "_" + m.element.suffix()})
			}
		}
	}
	if len(m.passes) > 0 {
		list = append(list, symbol{"mapreduce", "combine_" + m.element.Accumulator().suffix()})
	}
	return list
}

// number is the place of a kernel among the symbols.
func (m *mapReduce) number(set int, kernel string) int {
	if len(m.passes) == 0 {
		return set
	}
	kernels := m.family.Kinds[0].Kernels
	return set*len(kernels) + slices.Index(kernels, kernel)
}

// vector is the number of elements of a 16-byte access.
func (m *mapReduce) vector() int64 { return 16 / m.element.Size() }

// chooseChunks sets the number of parts that each sum of r is cut into, so that a few long sums still fill the device.
func (m *mapReduce) chooseChunks(r *reduction) {
	s := space{n: len(m.shape)}
	copy(s.extent[:], m.shape)
	for i, stride := range compact(m.shape) {
		s.stride[0][i] = stride
	}
	a := s.arrange(r.dims, true, r.columns, 0)
	kept, reduced, columns := a.counts()
	u := m.op.sets[len(m.op.sets)-1].unroll
	if r.columns {
		vectors := ceil(columns, m.vector())
		lanes := columnLanes(vectors, reduced)
		tiles := max(1, ceil(vectors, lanes)*kept)
		r.chunks = clamp(columnBlocks*int64(m.units)/tiles, 1, max(1, ceil(reduced, blockThreads/lanes*u.columns)))
		return
	}
	inner := a.extent[a.n-1]
	shape := m.rowShape(kept, ceil(inner, m.vector()), reduced/max(1, inner), u.rows, true, false)
	threads := max(1, kept*shape.group)
	if shape.total > smallestSplit && threads < threadsPerSM*int64(m.units) {
		r.chunks = max(1, min(ceil(rowBlocks*smallBlock*int64(m.units), threads), shape.units))
	}
}

// rowShape is how threads share the sums of the rows kernel: a group of them for each part of a sum, lanes along the fastest
// dimension. A unit is what a group takes at once.
type rowShape struct{ total, group, lanes, tiles, units int64 }

func (m *mapReduce) rowShape(kept, vectors, reduced, unrolled int64, wide, far bool) rowShape {
	r := rowShape{total: vectors * reduced}
	busy := min(64, max(pow2(ceil(r.total, 8)), min(4, pow2(ceil(r.total, 4))))) // each thread has some vectors to its start
	fill := pow2(ceil(threadsPerSM*int64(m.units), max(1, kept)))                // each multiprocessor has threads
	r.group = min(smallBlock, max(busy, fill), pow2(ceil(r.total, unrolled)))
	if !wide {
		r.group = max(r.group, min(32, pow2(vectors)))
	}
	if far && kept >= 1024 {
		r.group = 1
	}
	r.lanes = r.group
	if reduced != 1 {
		r.lanes = min(r.group, fit(along(vectors, unrolled, wide), r.group))
	}
	r.tiles = ceil(vectors, r.lanes*unrolled)
	r.units = r.tiles * ceil(reduced, r.group/r.lanes)
	return r
}

// along is the number of threads that the vectors of a row can use.
func along(vectors, unrolled int64, wide bool) int64 {
	if wide {
		return ceil(vectors, unrolled)
	}
	return vectors
}

func ceil(n, by int64) int64 { return (n + by - 1) / by }

func clamp(v, low, high int64) int64 { return max(low, min(v, high)) }

// pow2 is the smallest power of two that is at least n.
func pow2(n int64) int64 { return 1 << bits.Len64(uint64(max(n, 1)-1)) }

// fit is the power of two, up to most, that tiles vectors with the fewest idle threads; up to an eighth idle, the largest wins.
func fit(vectors, most int64) int64 {
	best, bestIdle := int64(1), int64(math.MaxInt64)
	for lanes := min(8, pow2(vectors)); lanes <= most; lanes *= 2 {
		idle := ceil(vectors, lanes)*lanes - vectors
		if idle <= bestIdle || idle <= vectors/8 {
			best, bestIdle = lanes, idle
		}
	}
	return best
}

// columnLanes is the number of threads side by side over columns; the others of the block share the reduced indices.
func columnLanes(vectors, reduced int64) int64 {
	tall := clamp(pow2(reduced/32+1)/2, 1, 8)
	return fit(vectors, blockThreads/tall)
}

func (m *mapReduce) device(args []Tensor, workspace uintptr, q *queue) error {
	whole := m.space(args)
	passes, n := m.plan(args)
	for i := range n {
		p := &passes[i]
		s := m.arrange(p, &whole)
		k := devicePass{mapReduce: m, pass: p, args: args, space: &s, workspace: workspace, q: q}
		if err := k.launch(); err != nil {
			return err
		}
	}
	return nil
}

// devicePass is one walk over the operands on a GPU.
type devicePass struct {
	*mapReduce
	*pass
	args      []Tensor
	space     *space
	workspace uintptr
	q         *queue
	set       int // the kernels that take the operands of the pass
}

// launchShape is what a launch tells its kernel beside the operands.
type launchShape struct {
	keptSize, reducedSize, group, lanes, tiles, chunks, chunk int64
	partial                                                   uintptr
}

func (k *devicePass) launch() error {
	for k.set = 0; !k.covers(&k.op.sets[k.set]); k.set++ {
	}
	kept, reduced, columns := k.space.counts()
	inner := int64(1)
	if k.space.n > 0 {
		inner = k.space.extent[k.space.n-1]
	}
	vectors := ceil(inner, k.vector())
	switch {
	case k.reduction == nil:
		if kept == 0 {
			return nil
		}
		return k.launchMap(kept/inner, vectors)
	case k.space.columns:
		return k.launchColumns(kept, reduced, columns, vectors)
	default:
		return k.launchRows(kept, vectors, reduced/max(inner, 1))
	}
}

// covers reports that a set takes every operand of the pass.
func (k *devicePass) covers(set *kernelSet) bool {
	missing := uint16(k.inputs) | uint16(k.full|k.summed)<<k.op.inputs
	for _, operands := range [...][]int{set.in, set.out} {
		for _, i := range operands {
			missing &^= 1 << i
		}
	}
	return missing == 0
}

func (k *devicePass) launchMap(outer, vectors int64) error {
	u := k.op.sets[k.set].unroll.mapped
	l := launchShape{keptSize: outer, reducedSize: 1, lanes: smallBlock, chunks: 1}
	if k.space.n > 1 {
		l.lanes = fit(along(vectors, u, k.wide()), smallBlock)
		if k.far() {
			l.lanes = 1
		}
		if k.strided() {
			l.lanes = min(l.lanes, 8)
		}
	}
	l.tiles = ceil(vectors, l.lanes*u)
	k.pack(&l)
	return k.q.submit(k.number(k.set, "map"), l.tiles*ceil(outer, smallBlock/l.lanes), smallBlock)
}

func (k *devicePass) launchRows(kept, vectors, reduced int64) error {
	r := k.rowShape(kept, vectors, reduced, k.op.sets[k.set].unroll.rows, k.wide(), k.far())
	chunks := min(k.reduction.chunks, max(1, r.units))
	l := launchShape{keptSize: kept, reducedSize: reduced, group: r.group, lanes: r.lanes, tiles: r.tiles, chunk: ceil(r.units, chunks)}
	l.chunks = max(1, ceil(r.units, max(1, l.chunk)))
	return k.launchSums("rows", &l, ceil(kept*l.chunks*r.group, smallBlock), smallBlock, kept)
}

func (k *devicePass) launchColumns(kept, reduced, columns, vectors int64) error {
	l := launchShape{keptSize: kept, reducedSize: reduced, lanes: columnLanes(vectors, reduced)}
	height := blockThreads / l.lanes
	l.tiles = ceil(vectors, l.lanes)
	l.chunk = max(1, ceil(ceil(reduced, k.reduction.chunks), height)*height)
	l.chunks = max(1, ceil(reduced, l.chunk))
	return k.launchSums("columns", &l, l.tiles*l.chunks*kept, blockThreads, kept*columns)
}

// launchSums launches a reduction, and the kernel that adds its parts where there are several.
func (k *devicePass) launchSums(kernel string, l *launchShape, grid int64, block uint32, sums int64) error {
	if l.chunks > 1 {
		l.partial = k.workspace
	}
	k.pack(l)
	if err := k.q.submit(k.number(k.set, kernel), grid, block); err != nil || l.chunks == 1 {
		return err
	}
	height := min(pow2(ceil(l.chunks, 4)), 32)
	l.lanes, l.keptSize = min(blockThreads/height, pow2(sums)), sums
	l.tiles = ceil(sums, l.lanes)
	k.packKept(l)
	return k.q.submit(k.number(len(k.op.sets), k.family.Kinds[0].Kernels[0]), l.tiles*int64(bits.OnesCount8(k.summed)), blockThreads)
}

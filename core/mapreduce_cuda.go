package core

import (
	"math"
	"math/bits"
)

// Launch geometry of cuda/mapreduce.cuh. Chunks, which decide how a sum is grouped, follow from the shape and the number of
// multiprocessors alone; the rest also looks at strides and addresses.
const (
	blockThreads = 256
	unrolled     = 4    // vectors that a thread has in flight
	mapTile      = 1024 // vectors of a block of the map kernel
)

// The kernels of a plan, in the order of symbols.
const (
	mapKernel = iota
	rowsKernel
	columnsKernel
	combineKernel
)

func (m *mapReduce) symbols() []symbol {
	own := func(kernel string) symbol {
		return symbol{m.family.Image, m.family.Symbol("", kernel, m.element)}
	}
	if len(m.passes) == 0 {
		return []symbol{own("map")}
	}
	return []symbol{own("map"), own("rows"), own("columns"), {"mapreduce", "combine_" + m.element.Accumulator().suffix()}}
}

// vector is the number of elements of a 16-byte access.
func (m *mapReduce) vector() int64 { return 16 / m.element.Size() }

// deviceChunks is the number of parts that each sum of r is cut into, so that a few long sums still fill the device.
func (m *mapReduce) deviceChunks(r *reduction) int64 {
	inner, others := int64(1), int64(1) // extents of the fastest run of reduced dimensions, and of the reduced ones beside it
	run := true
	for d := len(m.shape) - 1; d >= 0; d-- {
		reduced := r.dims>>d&1 != 0
		switch {
		case reduced && run && !r.columns:
			inner *= m.shape[d]
		case reduced:
			others *= m.shape[d]
		case m.shape[d] != 1 && inner > 1:
			run = false
		}
	}
	blocks := int64(8 * m.units)
	if r.columns {
		width := m.columnWidth(r.dims)
		lanes := columnLanes(ceil(width, m.vector()), others)
		tiles := ceil(width, m.vector()*lanes) * max(1, r.kept/max(1, width))
		return clamp(ceil(blocks, max(1, tiles)), 1, ceil(others, blockThreads/lanes*unrolled))
	}
	total := ceil(inner, m.vector()) * others
	if total <= blockThreads || 2*r.kept >= blocks {
		return 1
	}
	return clamp(ceil(blocks, max(1, r.kept)), 1, ceil(total, blockThreads*unrolled))
}

// columnWidth is the extent of the fastest run of kept dimensions.
func (m *mapReduce) columnWidth(reduced uint8) int64 {
	width := int64(1)
	for d := len(m.shape) - 1; d >= 0; d-- {
		if reduced>>d&1 == 0 {
			width *= m.shape[d]
		} else if width > 1 {
			break
		}
	}
	return width
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
	lanes := fit(vectors, 32)
	if reduced < 4*blockThreads/lanes {
		lanes = fit(vectors, clamp(blockThreads/pow2(ceil(reduced, 4)), 32, blockThreads))
	}
	return lanes
}

func (m *mapReduce) device(args []Tensor, workspace uintptr, q *queue) error {
	whole := m.space(args)
	passes, n := m.plan(args)
	for i := range n {
		p := &passes[i]
		s := p.arrange(&whole, m.op.inputs)
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
}

// shape of one launch.
type launchShape struct {
	chunks, chunk, lanes, step int64
	partial                    uintptr
}

func (k *devicePass) launch() error {
	kept, reduced, columns := k.space.counts()
	inner := int64(1)
	if k.space.n > 0 {
		inner = k.space.extent[k.space.n-1]
	}
	vectors := ceil(inner, k.vector())
	scattered := k.scattered()
	switch {
	case k.reduction == nil:
		if kept == 0 {
			return nil
		}
		return k.launchMap(kept/inner, vectors, scattered)
	case k.space.columns:
		return k.launchColumns(kept, reduced, columns, vectors, scattered)
	default:
		return k.launchRows(kept, vectors*(reduced/max(inner, 1)), scattered)
	}
}

func (k *devicePass) launchMap(outer, vectors int64, scattered bool) error {
	l := launchShape{lanes: mapTile, step: 1}
	if k.space.n > 1 {
		l.lanes = fit(vectors, mapTile)
	}
	if k.strided() {
		l.lanes = min(l.lanes, 8)
	}
	if scattered {
		l.step = l.lanes
	}
	k.pack(&l)
	return k.q.submit(mapKernel, ceil(vectors, l.lanes)*ceil(outer, mapTile/l.lanes), blockThreads)
}

func (k *devicePass) launchRows(kept, total int64, scattered bool) error {
	l := launchShape{chunks: 1, chunk: total, step: 1}
	if total <= blockThreads {
		l.lanes = max(min(32, pow2(ceil(total, 4))), min(4, pow2(total)))
	} else {
		l.lanes = blockThreads
		l.chunk = ceil(ceil(total, k.reduction.chunks), blockThreads) * blockThreads
		l.chunks = ceil(total, l.chunk)
	}
	if scattered && k.space.n == k.space.kept+1 {
		l.step = l.lanes
	}
	return k.launchSums(rowsKernel, &l, ceil(kept*l.chunks, blockThreads/l.lanes), kept)
}

func (k *devicePass) launchColumns(kept, reduced, columns, vectors int64, scattered bool) error {
	l := launchShape{lanes: columnLanes(vectors, reduced), step: 1}
	tall := blockThreads / l.lanes
	l.chunk = max(1, ceil(ceil(reduced, k.reduction.chunks), tall)*tall)
	l.chunks = max(1, ceil(reduced, l.chunk))
	if scattered {
		l.step = l.lanes
	}
	return k.launchSums(columnsKernel, &l, ceil(vectors, l.lanes)*l.chunks*kept, kept*columns)
}

// launchSums launches a reduction, and the kernel that adds its parts where there are several.
func (k *devicePass) launchSums(kernel int, l *launchShape, grid, sums int64) error {
	if l.chunks > 1 {
		l.partial = k.workspace
	}
	k.pack(l)
	if err := k.q.submit(kernel, grid, blockThreads); err != nil || l.chunks == 1 {
		return err
	}
	tall := min(pow2(l.chunks), 32)
	l.lanes, l.step = min(blockThreads/tall, pow2(sums)), 1
	k.packKept(l)
	return k.q.submit(combineKernel, ceil(sums, l.lanes)*int64(bits.OnesCount8(k.summed)), blockThreads)
}

// strided reports that some input jumps from element to element.
func (k *devicePass) strided() bool {
	for i := range k.op.inputs {
		if k.inputs>>i&1 != 0 && k.access(i) == accessStrided {
			return true
		}
	}
	return false
}

// scattered reports that 16-byte accesses are impossible where they matter most: at a stored output, or without one at an input.
func (k *devicePass) scattered() bool {
	for o := range k.op.outputs {
		if k.full>>o&1 != 0 && !k.vectorisable(k.op.inputs+o) {
			return true
		}
	}
	for i := range k.op.inputs {
		if k.full == 0 && k.inputs>>i&1 != 0 && k.args[i].DType == k.element && k.access(i) == accessDense && !k.vectorisable(i) {
			return true
		}
	}
	return false
}

func (k *devicePass) vectorisable(i int) bool {
	if k.access(i) != accessDense || k.args[i].Data%16 != 0 {
		return false
	}
	for d := range max(0, k.space.n-1) {
		if k.space.stride[i][d]%k.vector() != 0 {
			return false
		}
	}
	return true
}

// How an operand moves along the fastest dimension.
const (
	accessStrided  = 0
	accessDense    = 1
	accessConstant = 2
)

func (k *devicePass) access(i int) uint64 {
	if k.space.n == 0 {
		return accessConstant
	}
	switch k.space.stride[i][k.space.n-1] {
	case 0:
		return accessConstant
	case 1:
		return accessDense
	}
	return accessStrided
}

// pack writes the argument of map, rows and columns: the fastest dimension, then the kept ones and the reduced ones, faster first.
func (k *devicePass) pack(l *launchShape) {
	var order [MaxRank]int
	n := 0
	add := func(d int) { order[n] = d; n++ }
	last := k.space.n - 1
	if last >= 0 {
		add(last)
	}
	for d := min(k.space.kept, last) - 1; d >= 0; d-- {
		add(d)
	}
	kept := max(0, n-1)
	for d := last - 1; d >= k.space.kept; d-- {
		add(d)
	}
	k.header(l, order[:n], kept)
	for i := range k.op.inputs {
		k.operand(i, order[:n], k.inputs>>i&1 != 0)
	}
	for o := range k.op.outputs {
		k.operand(k.op.inputs+o, order[:n], (k.full|k.summed)>>o&1 != 0)
	}
}

// packKept writes the argument of combine, which sees kept dimensions alone.
func (k *devicePass) packKept(l *launchShape) {
	var order [MaxRank]int
	first := -1 // rows: an extent of 1 stands for the fastest dimension
	if k.space.columns {
		first = k.space.n - 1
	}
	n := 1
	order[0] = first
	for d := k.space.kept - 1; d >= 0; d-- {
		order[n] = d
		n++
	}
	k.header(l, order[:n], n-1)
	for o := range k.op.outputs {
		k.operand(k.op.inputs+o, order[:n], k.summed>>o&1 != 0)
	}
}

func (k *devicePass) header(l *launchShape, order []int, kept int) {
	q := &k.q.launch
	q.Reset()
	for d := range MaxRank {
		extent := int64(1)
		if d < len(order) && order[d] >= 0 {
			extent = k.space.extent[order[d]]
		}
		q.Put(uint64(extent))
	}
	q.Put(uint64(kept), uint64(max(0, len(order)-1)), uint64(l.chunks), uint64(l.chunk), uint64(l.lanes), uint64(l.step),
		uint64(k.summed), uint64(l.partial))
	for _, s := range k.scalar {
		q.Put(math.Float64bits(s))
	}
}

func (k *devicePass) operand(i int, order []int, used bool) {
	var words [3 + MaxRank]uint64
	if t := &k.args[i]; used {
		words[0], words[1], words[2] = uint64(t.Data), uint64(t.DType.row()), k.access(i)
		for d, from := range order {
			if from >= 0 {
				words[3+d] = uint64(k.space.stride[i][from])
			}
		}
	}
	k.q.launch.Put(words[:]...)
}

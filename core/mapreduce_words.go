package core

import "math"

// strided reports that some input jumps from element to element.
func (k *devicePass) strided() bool {
	for i := range k.op.inputs {
		if k.inputs>>i&1 != 0 && k.args[i].DType == k.element && k.access(i) == accessStrided {
			return true
		}
	}
	return false
}

// leading reports that some stored output, or without one some input, is as asked.
func (k *devicePass) leading(asked func(i int) bool) bool {
	for o := range k.op.outputs {
		if k.full>>o&1 != 0 && asked(k.op.inputs+o) {
			return true
		}
	}
	for i := range k.op.inputs {
		if k.full == 0 && k.inputs>>i&1 != 0 && k.args[i].DType == k.element && asked(i) {
			return true
		}
	}
	return false
}

// far reports that the fastest dimension is not where memory is dense.
func (k *devicePass) far() bool {
	return k.leading(func(i int) bool { return k.access(i) == accessStrided })
}

// scattered reports that 16-byte accesses are impossible where they matter most.
func (k *devicePass) scattered() bool {
	return k.leading(func(i int) bool {
		return !k.vectorisable(i) && (i >= k.op.inputs || k.access(i) == accessDense)
	})
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
	q, step := &k.q.launch, int64(1)
	if k.scattered() {
		step = l.lanes
	}
	q.Reset()
	for d := range MaxRank {
		extent := int64(1)
		if d < len(order) && order[d] >= 0 {
			extent = k.space.extent[order[d]]
		}
		q.Put(uint64(extent))
	}
	q.Put(uint64(kept), uint64(max(0, len(order)-1)), uint64(l.chunks), uint64(l.chunk), uint64(l.group), uint64(l.lanes),
		uint64(step), uint64(k.summed), uint64(l.partial))
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

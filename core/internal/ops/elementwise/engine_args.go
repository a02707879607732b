package elementwise

import (
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file fills the arguments of the CUDA kernels of the engine.

// step is the stride of operand i along the fastest dimension.
func (k *devicePass) step(i int) int64 {
	if last := k.space.N - 1; last >= 0 && k.space.Extent[last] != 1 {
		return k.space.Stride[i][last]
	}
	return 0
}

// isSide reports whether operand i has one number per token, constant along the fastest dimension,
// or per column.
func (k *devicePass) isSide(i int) bool {
	return k.op.columnInputs>>i&1 != 0 || k.op.perToken && k.axis[i][len(k.shape)-1] < 0
}

// readsElements reports whether the pass reads input i element by element.
func (k *devicePass) readsElements(i int) bool { return k.inputs>>i&1 != 0 && !k.isSide(i) }

// storesElements reports whether the pass stores output o element by element.
func (k *devicePass) storesElements(o int) bool { return k.stored>>o&1 != 0 }

// inputsStrided reports whether an input has a stride other than 0 or 1 along the fastest
// dimension.
func (k *devicePass) inputsStrided() bool {
	for i := range k.op.inputs {
		if step := k.step(i); k.readsElements(i) && step != 0 && step != 1 {
			return true
		}
	}
	return false
}

// outputsStrided reports whether a stored output, or without stored outputs an input, has a stride
// other than 0 or 1 along the fastest dimension.
func (k *devicePass) outputsStrided() bool {
	for o := range k.op.outputs {
		if step := k.step(k.op.inputs + o); k.storesElements(o) && step != 0 && step != 1 {
			return true
		}
	}
	return k.stored == 0 && k.inputsStrided()
}

// vectorized reports whether every operand can be accessed in vectors: each is dense and
// aligned in every row, or constant along it.
func (k *devicePass) vectorized() bool {
	for i := range k.op.inputs {
		if k.readsElements(i) && k.step(i) != 0 && !k.aligned(i) {
			return false
		}
	}
	for o := range k.op.outputs {
		if k.storesElements(o) && !k.aligned(k.op.inputs+o) {
			return false
		}
	}
	return true
}

func (k *devicePass) aligned(i int) bool {
	v := k.vector()
	if k.step(i) != 1 || k.args[i].Data%uintptr(v*int64(k.args[i].DType.Bits)/8) != 0 {
		return false
	}
	for d := range max(0, k.space.N-1) {
		if k.space.Stride[i][d]%v != 0 {
			return false
		}
	}
	return true
}

// pack writes the argument of map, rows and columns. Dimensions are ordered fastest
// first: the fastest one, then the kept ones, then the reduced ones.
func (k *devicePass) pack(l *launchConfig) {
	var order [tensor.MaxRank]int
	n := 0
	add := func(d int) { order[n] = d; n++ }
	last := k.space.N - 1
	if last >= 0 {
		add(last)
	}
	for d := min(k.space.Kept, last) - 1; d >= 0; d-- {
		add(d)
	}
	kept := max(0, n-1)
	for d := last - 1; d >= k.space.Kept; d-- {
		add(d)
	}
	set := &k.op.Kernels[k.kernelSetIndex]
	k.header(l, order[:n], kept, k.accessBits(set), k.vectorized())
	for _, i := range set.In {
		k.operand(i, order[:n], k.inputs>>i&1 != 0)
	}
	for _, i := range set.Out {
		k.operand(i, order[:n], (k.stored|k.summed)>>(i-k.op.inputs)&1 != 0)
	}
}

// packKept writes the argument of the combine kernel, which has kept dimensions only.
func (k *devicePass) packKept(l *launchConfig) {
	var order [tensor.MaxRank]int
	order[0] = -1 // rows: the fastest dimension has extent 1
	if k.space.Columns {
		order[0] = k.space.N - 1
	}
	n := 1
	for d := k.space.Kept - 1; d >= 0; d-- {
		order[n] = d
		n++
	}
	k.header(l, order[:n], n-1, 0, false)
	out := k.op.Kernels[k.kernelSetIndex].Out
	for place := range 3 {
		i := out[min(place, len(out)-1)]
		k.operand(i, order[:n], place < len(out) && k.summed>>(i-k.op.inputs)&1 != 0)
	}
}

// accessBits has two bits per operand of a kernel set: the pass accesses it element by element; it
// is constant along the fastest dimension.
func (k *devicePass) accessBits(set *KernelSet) (bits int64) {
	at := 0
	for _, i := range set.In {
		if k.inputs>>i&1 != 0 {
			bits |= 1 << at
			if k.readsElements(i) && k.step(i) == 0 {
				bits |= 2 << at
			}
		}
		at += 2
	}
	for _, i := range set.Out {
		if k.storesElements(i - k.op.inputs) {
			bits |= 1 << at
		}
		at += 2
	}
	return bits
}

func (k *devicePass) header(l *launchConfig, order []int, kept int, uses int64, vectorized bool) {
	k.q.Begin()
	a := launch.Append[IterSpace](k.q)
	for d := range tensor.MaxRank {
		a.extent[d] = 1
		if d < len(order) && order[d] >= 0 {
			a.extent[d] = k.space.Extent[order[d]]
		}
	}
	a.kept, a.dims, a.keptSize, a.reducedSize = int64(kept), int64(max(0, len(order)-1)), l.keptSize, l.reducedSize
	a.group, a.lanes, a.tiles, a.chunks, a.chunk = l.group, l.lanes, l.tiles, l.chunks, l.chunk
	if vectorized {
		a.wide = 1
	}
	if l.isShort {
		a.isShort = 1
	}
	a.uses, a.scalar = uses, k.scalar
	for place, i := range k.op.Kernels[k.kernelSetIndex].Out {
		a.summed |= int64(k.summed>>(i-k.op.inputs)&1) << place
	}
	if l.partial != 0 {
		k.q.SetAddress(&a.partial, launch.WorkspaceOperand, l.partial)
	}
}

func (k *devicePass) operand(i int, order []int, used bool) {
	a := launch.Append[Operand](k.q)
	if !used {
		return
	}
	k.q.SetAddress(&a.data, i, k.args[i].Data)
	a.dtype = int64(k.args[i].DType.Row())
	for d, from := range order {
		if from >= 0 && (d > 0 || k.space.Extent[from] != 1) {
			a.stride[d] = k.space.Stride[i][from]
		}
	}
}

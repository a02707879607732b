package gpu

import (
	"github.com/sternway/sternway/core/internal/tensor"
)

// Scans with carries (cuda/scan/state/carry.cuh) have two kernels, row_tiled and column_tiled of
// the general kinds, which take any layout. Their CTAs read the states that enter a row once.

// CarryKernels are the kernels of every kind with carries, in the order of a plan's symbols.
var CarryKernels = []string{RowTiled, ColumnTiled}

// carryBaseline is the kernel for a layout, and the number of adjacent columns that it takes.
func carryBaseline(p *Problem, l *Layout) (kernel string, columns int64) {
	isLong := minCarryTileFraction*p.Length >= tiledThreads(p)*TiledItems(p)
	if p.Kernel == RowTiled || p.Kernel == "" && isLong && !l.AlongColumns {
		return RowTiled, 1
	}
	return ColumnTiled, l.Columns
}

// setChunks describes the carries that an operand consists of. In memory they are in scan order.
func (o *stridedOperands) setChunks(role int, t *tensor.Tensor, rank int) {
	o.chunks[role] = 1
	if int(t.NDim) <= max(rank, 1) {
		return
	}
	o.chunks[role], o.chunkStride[role] = t.Shape[0], t.ElementStrides()[0]
}

// reverseChunks puts the nearest chunk first: that of a forward scan is the last one in scan order.
func (o *stridedOperands) reverseChunks(role int) {
	o.first[role] = max(0, o.chunks[role]-1) * o.chunkStride[role]
	o.chunkStride[role] = -o.chunkStride[role]
}

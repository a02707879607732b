package gpu

// What selection and kernels see of where the operands of a run lie in memory.

import (
	"math"

	"github.com/sternway/sternway/core/internal/num"
)

// Layout is what selection depends on of the operands of a run.
type Layout struct {
	AlongColumns      bool  // dx is dense along a dimension other than the scanned one
	Columns           int64 // extent of the fastest of the other dimensions
	RowsAdjacent      bool  // every operand is one run of rows without gaps
	ColumnsContiguous bool  // adjacent columns are whole aligned vectors in every operand
	RowsAligned       bool  // rows run in one direction and are whole aligned vectors in every operand
	RowsEquallyOffset bool  // rows run in one direction and begin at equal offsets from an aligned vector, or line, in every operand
}

func columnsContiguous(l *Layout) bool { return l.ColumnsContiguous }
func rowsAligned(l *Layout) bool       { return l.RowsAligned }
func rowsEquallyOffset(l *Layout) bool { return l.RowsEquallyOffset }

// ContiguousLayout is the layout of contiguous, aligned operands, which plans are made for.
func ContiguousLayout(p *Problem) Layout {
	return Layout{AlongColumns: p.Inner > 1 && p.Length > 1, Columns: p.Inner, RowsAdjacent: true, ColumnsContiguous: true, RowsAligned: true, RowsEquallyOffset: true}
}

// layoutOf is the layout of operands in the order of memory.
func layoutOf(p *Problem, o *stridedOperands) Layout {
	l := Layout{Columns: 1, RowsAdjacent: o.dims <= 1, ColumnsContiguous: o.columnsContiguous(p)}
	for i := range numElementRoles {
		l.RowsAdjacent = l.RowsAdjacent && (o.dims == 0 || o.stride[i][0] == p.Length*o.step[i])
	}
	if o.dims > 0 {
		l.Columns = o.extent[0]
		l.AlongColumns = num.Abs(o.step[result]) != 1 && p.Length > 1 && o.stride[result][0] == 1
	}
	if o.sameDirection() {
		// row_cluster takes rows that are whole aligned vectors; row_pipelined also those that
		// begin inside a vector, at the same place in all operands.
		l.RowsAligned = o.vectorFlags(p, &Config{Kernel: RowCluster}) != 0
		l.RowsEquallyOffset = o.vectorFlags(p, &Config{Kernel: RowPipelined}) != 0
	}
	return l
}

// columnsContiguous reports whether adjacent columns are whole aligned vectors in every operand.
func (o *stridedOperands) columnsContiguous(p *Problem) bool {
	if p.Kind.readsIndices || o.dims == 0 || o.extent[0]%p.Vector() != 0 {
		return false
	}
	for i := range o.numbers {
		if !o.inVectors(i) {
			continue
		}
		aligned := o.data[i]%16 == 0 && o.stride[i][0] == 1 && o.step[i]%p.Vector() == 0
		for k := 1; k < o.dims; k++ {
			aligned = aligned && o.stride[i][k]%p.Vector() == 0
		}
		if !aligned {
			return false
		}
	}
	return true
}

// inVectors reports whether an operand is there and kernels may access it in vectors. They store
// indices one by one.
func (o *stridedOperands) inVectors(role int) bool {
	return o.numbers[role] >= 0 && (role < indices || o.isLinear && role == second && !o.sumsSecond)
}

// sameDirection reports whether rows run in the same direction in all operands. Step 0, of an
// expanded dy, counts as any direction.
func (o *stridedOperands) sameDirection() bool {
	for i, step := range o.step[:numElementRoles] {
		if step != 0 && step != o.step[result] && o.inVectors(i) {
			return false
		}
	}
	return true
}

// vectorFlags are the flags that let a kernel read whole vectors: FlagVectorized, FlagMisaligned
// and FlagLineAligned.
func (o *stridedOperands) vectorFlags(p *Problem, c *Config) int64 {
	vectors := &strategyOf(c.Kernel).vectors
	if !vectors.supported || p.Kind.readsIndices || o.dims > 1 || p.Rows > math.MaxUint32 {
		return 0
	}
	misaligned := p.Length*max(1, c.RowsPerWarp)%p.Vector() != 0
	switch {
	case misaligned && (vectors.misaligned == nil || !vectors.misaligned(p.Kind)):
		return 0
	case vectors.lineAligned && p.lineAlignedLength() > p.Length && o.rowsShareOffset(p, c, LineBytes/p.ElementSize):
		return FlagVectorized | FlagMisaligned | FlagLineAligned
	case misaligned && o.rowsShareOffset(p, c, p.Vector()):
		return FlagVectorized | FlagMisaligned
	case !misaligned && o.rowsAreVectors(p, c):
		return FlagVectorized
	}
	return 0
}

// rowsAreVectors reports whether the rows of every operand are whole aligned vectors. The rows of a
// warp of row_packed are so together.
func (o *stridedOperands) rowsAreVectors(p *Problem, c *Config) bool {
	packed := c.RowsPerWarp > 0
	for i := range numElementRoles {
		if !o.inVectors(i) || o.repeats(i, c) {
			continue
		}
		isAligned := num.Abs(o.step[i]) == 1 && o.lowest(i, p.Vector(), p)%16 == 0
		switch {
		case o.dims == 0:
		case packed:
			isAligned = isAligned && o.stride[i][0] == p.Length*o.step[i]
		default:
			isAligned = isAligned && o.stride[i][0]%p.Vector() == 0
		}
		if !isAligned {
			return false
		}
	}
	return true
}

// rowsShareOffset reports whether the first row begins with an aligned vector, and each row begins
// at the same offset from a multiple of the unit [elements] in all operands.
func (o *stridedOperands) rowsShareOffset(p *Problem, c *Config, unit int64) bool {
	resultAddress, resultStride := o.lowest(result, p.Length, p), o.stride[result][0]
	for i := range numElementRoles {
		if !o.inVectors(i) || o.repeats(i, c) {
			continue
		}
		address, stride := o.lowest(i, p.Length, p), o.stride[i][0]
		if num.Abs(o.step[i]) != 1 || address%16 != 0 || (address-resultAddress)%(unit*p.ElementSize) != 0 {
			return false
		}
		// Vectors at the ends of a row hold elements of its neighbours. The first row has none
		// before it; those after the last row are read but not used.
		if o.dims > 0 && (stride < p.Length || (stride-resultStride)%unit != 0) {
			return false
		}
	}
	return true
}

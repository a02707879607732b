package gpu

// The operands of a run as kernels index them, and the Layout that selection sees of them.

import (
	"math"

	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Layout is what selection depends on of the operands of a run.
type Layout struct {
	AlongColumns      bool  // dx is dense along a dimension other than the scanned one
	Columns           int64 // extent of the fastest of the other dimensions
	EndToEnd          bool  // every operand is one run of rows without gaps
	ColumnsContiguous bool  // adjacent columns are whole aligned vectors in every operand
	RowsAligned       bool  // rows run in one direction and are whole aligned vectors in every operand
	RowsEquallyOffset bool  // rows run in one direction and begin at equal offsets from an aligned vector, or line, in every operand
}

func columnsContiguous(l *Layout) bool { return l.ColumnsContiguous }
func rowsAligned(l *Layout) bool       { return l.RowsAligned }
func rowsEquallyOffset(l *Layout) bool { return l.RowsEquallyOffset }

// ContiguousLayout is the layout of contiguous, aligned operands, which plans are made for.
func ContiguousLayout(p *Problem) Layout {
	return Layout{AlongColumns: p.Inner > 1 && p.Length > 1, Columns: p.Inner, EndToEnd: true, ColumnsContiguous: true, RowsAligned: true, RowsEquallyOffset: true}
}

// vectorization says in which layouts a kernel reads whole aligned 16-byte vectors.
type vectorization struct {
	supported   bool                  // rows that begin with an aligned vector
	misaligned  func(kind *Kind) bool // rows that begin inside a vector, too; nil: of no kind
	lineAligned bool                  // tiles that begin with a cache line, too
}

// Roles of the operands in a kernel: the inputs of ScanArgs, then its outputs.
const (
	numInputs  = 3
	numOutputs = 2

	scanned         = 0             // dy; the input of a forward scan
	saved           = 1             // x, or the indices of the forward
	result          = numInputs     // dx; the result of a forward scan
	indices         = numInputs + 1 // the indices that a forward scan stores
	numElementRoles = numInputs + numOutputs
)

// Roles of the carries, which are members of CarryArgs.
const (
	prefixIn  = numElementRoles + iota // the carry_in of a gradient
	suffixIn                           // the carry_in of a forward scan; the dcarry_out of a gradient
	suffixOut                          // the carry_out of a forward scan; the dcarry_in of a gradient
	numRoles
)

// roles are the numbers of the operands in the arguments of a run, -1 where no operand has the
// role; and whether indices are among them.
func (s *Scan) roles(args []tensor.Tensor) (numbers [numRoles]int, hasIndices bool) {
	for i := range numbers {
		numbers[i] = -1
	}
	if s.IsForward {
		numbers[scanned], numbers[result], numbers[indices] = operand.ForwardX, operand.ForwardY, operand.ForwardIndices
		numbers[suffixIn], numbers[suffixOut] = operand.ForwardCarryIn, operand.ForwardCarryOut
		hasIndices = args[operand.ForwardIndices].Given()
	} else {
		numbers[scanned], numbers[saved], numbers[result] = operand.Dy, operand.X, operand.Dx
		numbers[prefixIn], numbers[suffixIn], numbers[suffixOut] = operand.CarryIn, operand.DCarryOut, operand.DCarryIn
		if hasIndices = args[operand.Indices].Given(); hasIndices {
			numbers[saved] = operand.Indices
		}
	}
	for i, number := range numbers {
		if number >= 0 && !args[number].Given() {
			numbers[i] = -1
		}
	}
	return numbers, hasIndices
}

// stridedOperands are the operands of a run as kernels index them: the scanned dimension, and the
// other dimensions, fastest in the result first.
type stridedOperands struct {
	numbers [numRoles]int     // in the arguments of the run; -1: no operand has the role
	data    [numRoles]uintptr // addresses
	dims    int               // other dimensions
	extent  [tensor.MaxRank]int64
	first   [numRoles]int64 // element at position 0
	step    [numRoles]int64 // stride of the scanned dimension [elements]; of a carry, of its numbers
	stride  [numRoles][tensor.MaxRank]int64
	// Of a carry: how many carries the operand is, and their stride [elements]. The nearest chunk
	// comes first for a suffix, and last for a prefix.
	chunks, chunkStride [numRoles]int64
}

// stridedOf orders the other dimensions by stride of the result, smallest first, and merges those
// that are one dimension in every operand.
func stridedOf(shape []int64, dim int, numbers [numRoles]int, args []tensor.Tensor) stridedOperands {
	o := stridedOperands{numbers: numbers}
	for i, number := range o.numbers {
		if number >= 0 {
			o.data[i] = args[number].Data
		}
		if number >= 0 && (len(shape) > 0 || i >= numElementRoles) {
			o.step[i] = strideAlong(&args[number], i, dim, dim, len(shape))
		}
		if number >= 0 && i >= numElementRoles {
			o.setChunks(i, &args[number], len(shape))
		}
	}
	for _, k := range fastestFirst(shape, dim, args[numbers[result]].Strides[:]) {
		var stride [numRoles]int64
		for i, number := range o.numbers {
			if number >= 0 {
				stride[i] = strideAlong(&args[number], i, k, dim, len(shape))
			}
		}
		o.append(shape[k], stride)
	}
	return o
}

// strideAlong is the stride of an operand along dimension k of the shape. A carry has no dimension
// dim: the numbers of a row are in its last dimension, and this is their stride.
func strideAlong(t *tensor.Tensor, role, k, dim, rank int) int64 {
	strides := t.ElementStrides()
	switch {
	case role < numElementRoles:
		return strides[k]
	case k == dim:
		return strides[len(strides)-1]
	case k > dim:
		k--
	}
	if int(t.NDim) > max(rank, 1) { // several carries
		k++
	}
	return strides[k]
}

// fastestFirst returns the dimensions other than the scanned one that have more than one element,
// smallest stride first.
func fastestFirst(shape []int64, dim int, strides []int64) (order []int) {
	for k, extent := range shape {
		if k == dim || extent == 1 {
			continue
		}
		at := len(order)
		for order = append(order, k); at > 0 && num.Abs(strides[order[at-1]]) >= num.Abs(strides[k]); at-- {
			order[at] = order[at-1]
		}
		order[at] = k
	}
	return order
}

// append adds a slower dimension, or continues the last one where that is possible in every
// operand.
func (o *stridedOperands) append(extent int64, stride [numRoles]int64) {
	if last := o.dims - 1; last >= 0 && o.continues(last, stride) {
		o.extent[last] *= extent
		return
	}
	o.extent[o.dims] = extent
	for i := range stride {
		o.stride[i][o.dims] = stride[i]
	}
	o.dims++
}

// continues reports whether a slower dimension continues dimension k in every operand.
func (o *stridedOperands) continues(k int, stride [numRoles]int64) bool {
	for i := range stride {
		if stride[i] != o.stride[i][k]*o.extent[k] {
			return false
		}
	}
	return true
}

// reverse makes positions run in scan order. Rows that lie end to end, several of them in a warp,
// are mirrored together, so that they still do.
func (o *stridedOperands) reverse(p *Problem, c *Config) {
	for i, number := range o.numbers[:numElementRoles] {
		if number < 0 {
			continue
		}
		o.first[i] = (p.Length - 1) * o.step[i]
		o.step[i] = -o.step[i]
		if c.RowsPerWarp > 0 && o.dims == 1 {
			o.first[i] += (o.extent[0] - 1) * o.stride[i][0]
			o.stride[i][0] = -o.stride[i][0]
		}
	}
}

// layoutOf is the layout of operands in the order of memory.
func layoutOf(p *Problem, o *stridedOperands) Layout {
	l := Layout{Columns: 1, EndToEnd: o.dims <= 1, ColumnsContiguous: o.columnsContiguous(p)}
	for i := range numElementRoles {
		l.EndToEnd = l.EndToEnd && (o.dims == 0 || o.stride[i][0] == p.Length*o.step[i])
	}
	if o.dims > 0 {
		l.Columns = o.extent[0]
		l.AlongColumns = num.Abs(o.step[result]) != 1 && p.Length > 1 && o.stride[result][0] == 1
	}
	if o.sameDirection() {
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
	return o.numbers[role] >= 0 && role < indices
}

// sameDirection reports whether rows run in the same direction in all operands. Step 0, of an
// expanded dy, counts as any direction.
func (o *stridedOperands) sameDirection() bool {
	for i, step := range o.step[:result] {
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
		if !o.inVectors(i) || o.repeats(i, packed) {
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
		if !o.inVectors(i) || o.repeats(i, c.RowsPerWarp > 0) {
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

// repeats reports whether one number is read for a whole row of an operand, or for all rows of a
// warp if they are packed.
func (o *stridedOperands) repeats(role int, packed bool) bool {
	return role == scanned && o.step[role] == 0 && (!packed || o.stride[role][0] == 0)
}

// lowest is the address of the lowest of the first `count` adjacent elements of an operand.
func (o *stridedOperands) lowest(role int, count int64, p *Problem) int64 {
	first := o.first[role]
	if o.step[role] < 0 {
		first -= count - 1
	}
	return int64(o.data[role]) + first*p.ElementSize
}

func flagIf(set bool, flag int64) int64 {
	if set {
		return flag
	}
	return 0
}

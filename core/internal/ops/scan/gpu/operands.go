package gpu

// The operands of a run by their roles, as kernels index them.

import (
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Roles of the operands in a kernel: the inputs of ScanArgs, then its outputs.
const (
	numInputs  = 3
	numOutputs = 2

	scanned         = 0             // dy; the input of a forward scan; b of a linear recurrence
	saved           = 1             // x, or the indices of the forward; a of a linear recurrence
	states          = 2             // h of the gradient of a linear recurrence
	result          = numInputs     // dx; the result of a forward scan; db of a linear recurrence
	indices         = numInputs + 1 // the indices that a forward scan stores
	second          = numInputs + 1 // da of a linear recurrence
	numElementRoles = numInputs + numOutputs
)

// Roles of the carries, which are members of CarryArgs, and of the states of linear recurrences,
// which are members of LinearArgs.
const (
	prefixIn  = numElementRoles + iota // the carry_in of a gradient; the initial state
	suffixIn                           // the carry_in of a forward scan; the dcarry_out of a gradient; the state that enters
	suffixOut                          // the carry_out of a forward scan; the dcarry_in of a gradient; the state that leaves
	numRoles
)

// roles are the numbers of the operands in the arguments of a run, -1 where no operand has the
// role; and whether indices are among them.
func (s *Scan) roles(args []tensor.Tensor) (numbers [numRoles]int, hasIndices bool) {
	numbers = noNumbers()
	switch {
	case s.Plain.Kind.isLinear && s.IsForward:
		numbers[scanned], numbers[saved], numbers[result] = operand.LinearB, operand.LinearA, operand.LinearH
		numbers[suffixIn], numbers[suffixOut] = operand.LinearInitial, operand.LinearFinal
	case s.Plain.Kind.isLinear:
		numbers[scanned], numbers[saved], numbers[states] = operand.LinearDH, operand.LinearBackwardA, operand.LinearBackwardH
		numbers[result], numbers[second] = operand.LinearDB, operand.LinearDA
		numbers[prefixIn], numbers[suffixIn], numbers[suffixOut] = operand.LinearBackwardInitial, operand.LinearDFinal, operand.LinearDInitial
	case s.IsForward:
		numbers[scanned], numbers[result], numbers[indices] = operand.ForwardX, operand.ForwardY, operand.ForwardIndices
		numbers[suffixIn], numbers[suffixOut] = operand.ForwardCarryIn, operand.ForwardCarryOut
		hasIndices = args[operand.ForwardIndices].Given()
	default:
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

// noNumbers are the numbers of operands where none is given.
func noNumbers() (numbers [numRoles]int) {
	for i := range numbers {
		numbers[i] = -1
	}
	return numbers
}

// boundsNumber is the number of the bounds of packed sequences in the arguments of a run; -1: it
// has none.
func (s *Scan) boundsNumber(args []tensor.Tensor) int {
	number := s.boundsOperand()
	if number >= 0 && !args[number].Given() { // an exclusive scan alone
		return -1
	}
	return number
}

func (s *Scan) boundsOperand() int {
	switch {
	case !s.Plain.Kind.isPacked:
		return -1
	case s.Plain.Kind.isLinear && s.IsForward:
		return operand.LinearSeqlens
	case s.Plain.Kind.isLinear:
		return operand.LinearBackwardSeqlens
	case s.IsForward:
		return operand.ForwardSeqlens
	}
	return operand.Seqlens
}

// stridedOperands are the operands of a run as kernels index them: the scanned dimension, and the
// other dimensions, fastest in the result first.
type stridedOperands struct {
	numbers    [numRoles]int     // in the arguments of the run; -1: no operand has the role
	data       [numRoles]uintptr // addresses
	sumsSecond bool              // the second result has sums of groups of elements, which are stored one by one
	isLinear   bool              // of a linear recurrence: states have the dimensions of elements, and there may be two results
	dims       int               // other dimensions
	extent     [tensor.MaxRank]int64
	first      [numRoles]int64 // element at position 0
	step       [numRoles]int64 // stride of the scanned dimension [elements]; of a carry, of its numbers
	stride     [numRoles][tensor.MaxRank]int64
	// Of a carry: how many carries the operand is, and their stride [elements]. The nearest chunk
	// comes first for a suffix, and last for a prefix.
	chunks, chunkStride [numRoles]int64
}

// stridedOf orders the other dimensions by stride of the result, smallest first, and merges those
// that are one dimension in every operand.
func stridedOf(shape []int64, dim int, numbers [numRoles]int, args []tensor.Tensor, isLinear bool) stridedOperands {
	o := stridedOperands{numbers: numbers, isLinear: isLinear}
	for i, number := range o.numbers {
		if number >= 0 {
			o.data[i] = args[number].Data
		}
		if number >= 0 && (len(shape) > 0 || i >= numElementRoles && !isLinear) {
			o.step[i] = o.strideAlong(&args[number], i, dim, dim, len(shape))
		}
		if number >= 0 && i >= numElementRoles && !isLinear {
			o.setChunks(i, &args[number], len(shape))
		}
	}
	for _, k := range fastestFirst(shape, dim, args[numbers[result]].Strides[:]) {
		var stride [numRoles]int64
		for i, number := range o.numbers {
			if number >= 0 {
				stride[i] = o.strideAlong(&args[number], i, k, dim, len(shape))
			}
		}
		o.append(shape[k], stride)
	}
	return o
}

// strideAlong is the stride of an operand along dimension k of the shape. A carry has no dimension
// dim: the numbers of a row are in its last dimension, and this is their stride.
func (o *stridedOperands) strideAlong(t *tensor.Tensor, role, k, dim, rank int) int64 {
	strides := t.ElementStrides()
	switch {
	case role < numElementRoles || o.isLinear:
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
	if last := o.dims - 1; last >= 0 && o.canCoalesce(last, stride) {
		o.extent[last] *= extent
		return
	}
	o.extent[o.dims] = extent
	for i := range stride {
		o.stride[i][o.dims] = stride[i]
	}
	o.dims++
}

// canCoalesce reports whether a slower dimension continues dimension k in every operand.
func (o *stridedOperands) canCoalesce(k int, stride [numRoles]int64) bool {
	for i := range stride {
		if stride[i] != o.stride[i][k]*o.extent[k] {
			return false
		}
	}
	return true
}

// leaveOneOut makes an exclusive scan an inclusive one of all positions but one: `late`, the result
// or dy, begins one position later in scan order, which may run from the end of memory.
func (o *stridedOperands) leaveOneOut(late int, fromEnd bool) {
	for i := range numElementRoles {
		if (i == late) != fromEnd {
			o.first[i] += o.step[i]
		}
	}
}

// reverse makes positions run in scan order. Rows that lie end to end, several of them in a warp,
// are mirrored together, so that they still do.
func (o *stridedOperands) reverse(p *Problem, c *Config) {
	for i, number := range o.numbers {
		if number < 0 || i >= numElementRoles && !o.isLinear {
			continue
		}
		if i < numElementRoles {
			o.first[i] += (p.Length - 1) * o.step[i]
			o.step[i] = -o.step[i]
		}
		if c.RowsPerWarp > 0 && o.dims == 1 {
			o.first[i] += (o.extent[0] - 1) * o.stride[i][0]
			o.stride[i][0] = -o.stride[i][0]
		}
	}
}

// repeats reports whether one number is read for a whole row of an operand, or for all rows of a
// warp if they are packed. Pipelines repeat no factors of a linear recurrence.
func (o *stridedOperands) repeats(role int, c *Config) bool {
	mayRepeat := role == scanned || role == saved && o.isLinear && strategyOf(c.Kernel).tile == nil
	return mayRepeat && o.step[role] == 0 && (c.RowsPerWarp == 0 || o.stride[role][0] == 0)
}

// lowest is the address of the lowest of the first `count` adjacent elements of an operand.
func (o *stridedOperands) lowest(role int, count int64, p *Problem) int64 {
	first := o.first[role]
	if o.step[role] < 0 {
		first -= count - 1
	}
	return int64(o.data[role]) + first*p.ElementSize
}

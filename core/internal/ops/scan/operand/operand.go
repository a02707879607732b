// Package operand numbers the operands of scans in the order of their descriptors.
package operand

// Positions of the operands of a backward in the arguments of a run.
const (
	Dy = iota
	X
	Indices
	CarryIn
	DCarryOut
	Seqlens
	Dx
	DCarryIn
)

// Positions of the operands of a forward in the arguments of a run.
const (
	ForwardX = iota
	ForwardCarryIn
	ForwardSeqlens
	ForwardY
	ForwardIndices
	ForwardCarryOut
)

// Positions of the operands of a linear recurrence in the arguments of a run.
const (
	LinearA = iota
	LinearB
	LinearInitial
	LinearSeqlens
	LinearH
	LinearFinal
)

// Positions of the operands of the gradient of a linear recurrence in the arguments of a run.
const (
	LinearDH = iota
	LinearBackwardA
	LinearBackwardH
	LinearBackwardInitial
	LinearDFinal
	LinearBackwardSeqlens
	LinearDA
	LinearDB
	LinearDInitial
)
